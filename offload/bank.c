/* Bank header and index: read, checked against the one layout that formats and shape allow.
 *
 *   [ header 64 B, zeros to 4096 | index n x 128 B, zeros to 4096 | record 0 | record 1 | ... ]
 *
 * The record layout is computed afresh from the three format bytes of each entry and compared field by
 * field, so an offset that points elsewhere, overlaps or leaves a hole has no way in. Payloads are not
 * read here. */
#define _GNU_SOURCE
#include "offload/bank.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "on-disk structs are read in place");

static int bad_number(struct sl_err *err, const struct sl_bank *b, const char *field, uint64_t got,
                      uint64_t want)
{
    return sl_fail(err, SL_E_PACK, b->label, field, "%llu, expected %llu", (unsigned long long)got,
                   (unsigned long long)want);
}

static bool all_zero(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

static int check_header(struct sl_bank *b, const unsigned char page[SL_PAGE],
                        const struct sl_bank_shape *shape, uint32_t *index_crc, struct sl_err *err)
{
    struct sl_bank_header h;
    memcpy(&h, page, sizeof h);
    if (memcmp(h.magic, SL_BANK_MAGIC, sizeof h.magic) != 0)
        return sl_fail(err, SL_E_PACK, b->label, "magic", "not a bank: no %s at its start",
                       SL_BANK_MAGIC);
    /* The version first: a later one may well compute its crc over other bytes. */
    if (h.version != SL_BANK_VERSION)
        return bad_number(err, b, "version", h.version, SL_BANK_VERSION);
    uint32_t crc = sl_crc32(0, page, offsetof(struct sl_bank_header, header_crc32));
    if (crc != h.header_crc32)
        return sl_fail(err, SL_E_PACK, b->label, "header", "crc32 %08x, expected %08x", crc,
                       h.header_crc32);
    if (h.n_experts != shape->n_experts)
        return bad_number(err, b, "n_experts", h.n_experts, shape->n_experts);
    if (h.entry_bytes != sizeof(struct sl_bank_entry))
        return bad_number(err, b, "entry_bytes", h.entry_bytes, sizeof(struct sl_bank_entry));
    if (h.index_offset != SL_PAGE)
        return bad_number(err, b, "index_offset", h.index_offset, SL_PAGE);
    if (h.file_bytes != b->file_bytes)
        return sl_fail(err, SL_E_PACK, b->label, "file_bytes",
                       "the file has %llu bytes, its header says %llu",
                       (unsigned long long)b->file_bytes, (unsigned long long)h.file_bytes);
    if (!all_zero((const unsigned char *)h.reserved, sizeof h.reserved) ||
        !all_zero(page + sizeof h, SL_PAGE - sizeof h))
        return sl_fail(err, SL_E_PACK, b->label, "header", "bytes after its fields are not zero");
    *index_crc = h.index_crc32;
    return 0;
}

static int bad_entry(struct sl_err *err, const struct sl_bank *b, uint32_t expert,
                     const char *field, uint64_t got, uint64_t want)
{
    return sl_fail(err, SL_E_PACK, b->label, NULL, "expert %u: %s %llu, expected %llu", expert,
                   field, (unsigned long long)got, (unsigned long long)want);
}

/* Entry e against the layout of its own formats, at the place where the record before it ended. */
static int check_entry(const struct sl_bank *b, uint32_t expert, uint64_t at,
                       const struct sl_bank_shape *shape, struct sl_err *err)
{
    static const char *const mats[SL_N_MATS] = {"gate", "up", "down"};
    const struct sl_bank_entry *e = &b->entries[expert];
    struct sl_bank_entry want;
    enum sl_fmt fmt[SL_N_MATS];
    for (int m = 0; m < SL_N_MATS; m++) {
        fmt[m] = (enum sl_fmt)e->fmt[m];
        if (!sl_fmt_is_expert(fmt[m]))
            return sl_fail(err, SL_E_PACK, b->label, NULL,
                           "expert %u: %s format %u is not an expert format of this build", expert,
                           mats[m], e->fmt[m]);
    }
    struct sl_err why;
    if (sl_record_layout(&want, fmt, shape->latent, shape->width, &why))
        return sl_fail(err, SL_E_PACK, b->label, NULL, "expert %u: %s", expert, why.text);
    if (e->offset != at) return bad_entry(err, b, expert, "offset", e->offset, at);
    if (e->bytes != want.bytes) return bad_entry(err, b, expert, "bytes", e->bytes, want.bytes);
    if (e->bytes > shape->slot_bytes)
        return sl_fail(err, SL_E_PACK, b->label, NULL,
                       "expert %u: record of %u bytes, slot_bytes of the pack is %llu", expert,
                       e->bytes, (unsigned long long)shape->slot_bytes);
    if (e->bytes > b->file_bytes - at)
        return sl_fail(err, SL_E_PACK, b->label, NULL,
                       "expert %u: record ends at %llu, the file at %llu", expert,
                       (unsigned long long)at + e->bytes, (unsigned long long)b->file_bytes);
    if (e->n_planes != want.n_planes)
        return bad_entry(err, b, expert, "n_planes", e->n_planes, want.n_planes);
    if (e->base_bytes != want.base_bytes)
        return bad_entry(err, b, expert, "base_bytes", e->base_bytes, want.base_bytes);
    for (int m = 0; m < SL_N_MATS; m++)
        for (int set = 0; set < 2; set++) {
            const struct sl_plane_offsets *g = &e->planes[m][set];
            const struct sl_plane_offsets *w = &want.planes[m][set];
            const uint32_t got_want[4][2] = {{g->codes, w->codes},
                                             {g->scales, w->scales},
                                             {g->row_scales, w->row_scales},
                                             {g->table, w->table}};
            static const char *const planes[4] = {"codes", "scales", "row scales", "table"};
            for (int i = 0; i < 4; i++)
                if (got_want[i][0] != got_want[i][1])
                    return sl_fail(err, SL_E_PACK, b->label, NULL,
                                   "expert %u: %s %s%s at %u, expected %u", expert, mats[m],
                                   set ? "refinement " : "", planes[i], got_want[i][0],
                                   got_want[i][1]);
        }
    if (e->n_planes == 1 && e->base_crc32)
        return bad_entry(err, b, expert, "base_crc32", e->base_crc32, 0);
    if (e->reserved)
        return sl_fail(err, SL_E_PACK, b->label, NULL, "expert %u: reserved bytes are not zero",
                       expert);
    return 0;
}

static int check_index(struct sl_bank *b, uint32_t index_crc, const struct sl_bank_shape *shape,
                       struct sl_err *err)
{
    uint64_t used = (uint64_t)b->n_experts * sizeof *b->entries;
    const unsigned char *bytes = (const unsigned char *)b->entries;
    uint32_t crc = sl_crc32(0, bytes, (size_t)used);
    if (crc != index_crc)
        return sl_fail(err, SL_E_PACK, b->label, "index", "crc32 %08x, expected %08x", crc,
                       index_crc);
    if (!all_zero(bytes + used, (size_t)(sl_align_up(used, SL_PAGE) - used)))
        return sl_fail(err, SL_E_PACK, b->label, "index", "padding after the index is not zero");
    uint64_t at = sl_bank_first_record(b->n_experts);
    for (uint32_t x = 0; x < b->n_experts; x++) {
        int rc = check_entry(b, x, at, shape, err);
        if (rc) return rc;
        at += b->entries[x].bytes;
    }
    if (at != b->file_bytes)
        return sl_fail(err, SL_E_PACK, b->label, NULL,
                       "the file has %llu bytes, its last record ends at %llu",
                       (unsigned long long)b->file_bytes, (unsigned long long)at);
    return 0;
}

int sl_bank_open(struct sl_bank *b, const char *path, const char *label,
                 const struct sl_bank_shape *shape, struct sl_err *err)
{
    int rc = 0;
    memset(b, 0, sizeof *b);
    b->fd = -1;
    b->path = strdup(path);
    b->label = strdup(label);
    unsigned char *page = malloc(SL_PAGE);
    if (!b->path || !b->label || !page) {
        rc = sl_fail(err, SL_E_NOMEM, label, NULL, "out of memory");
        goto done;
    }
    /* NONBLOCK: a pipe under this name must not hang us before we have seen what it is. */
    b->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (b->fd < 0) {
        rc = sl_fail_errno(err, SL_E_PACK, errno, path, "open");
        goto done;
    }
    struct stat st;
    if (fstat(b->fd, &st)) {
        rc = sl_fail_errno(err, SL_E_PACK, errno, path, "size");
        goto done;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = sl_fail(err, SL_E_PACK, path, NULL, "not a regular file");
        goto done;
    }
    b->file_bytes = (uint64_t)st.st_size;
    b->n_experts = shape->n_experts;
    uint64_t first = sl_bank_first_record(b->n_experts);
    if (b->file_bytes < first) {
        rc = sl_fail(err, SL_E_PACK, b->label, NULL,
                     "the file has %llu bytes, header and index alone take %llu: it is cut",
                     (unsigned long long)b->file_bytes, (unsigned long long)first);
        goto done;
    }
    uint32_t index_crc = 0;
    rc = sl_pread_all(b->fd, page, SL_PAGE, 0, b->label, SL_E_PACK, err);
    if (!rc) rc = check_header(b, page, shape, &index_crc, err);
    if (rc) goto done;
    b->entries = malloc((size_t)(first - SL_PAGE));
    if (!b->entries) {
        rc = sl_fail(err, SL_E_NOMEM, b->label, "index", "out of memory");
        goto done;
    }
    rc = sl_pread_all(b->fd, b->entries, (size_t)(first - SL_PAGE), SL_PAGE, b->label, SL_E_PACK,
                      err);
    if (!rc) rc = check_index(b, index_crc, shape, err);
done:
    free(page);
    if (rc) sl_bank_close(b);
    return rc;
}

static bool read_head(int fd, unsigned char page[SL_PAGE])
{
    return pread(fd, page, SL_PAGE, 0) == SL_PAGE;
}

static bool is_same_file(int fd, const struct stat *st)
{
    struct stat own;
    return !fstat(fd, &own) && st->st_dev == own.st_dev && st->st_ino == own.st_ino;
}

int sl_bank_add_copy(struct sl_bank *b, const char *path, struct sl_err *err)
{
    unsigned char ours[SL_PAGE];
    unsigned char theirs[SL_PAGE];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return sl_fail_errno(err, SL_E_PACK, errno, path, "open");
    /* The header holds the crc of the index, and that the crc of every record. */
    bool same = !fstat(fd, &st) && (uint64_t)st.st_size == b->file_bytes &&
                read_head(b->fd, ours) && read_head(fd, theirs) && !memcmp(ours, theirs, SL_PAGE);
    bool known = same && is_same_file(b->fd, &st);
    for (int i = 0; i < b->n_copies && same; i++) known |= is_same_file(b->copies[i].fd, &st);
    if (!same || known) {
        close(fd);
        return 0;
    }
    struct sl_bank_copy *more = realloc(b->copies, ((size_t)b->n_copies + 1) * sizeof *more);
    char *name = more ? strdup(path) : NULL;
    if (more) b->copies = more;
    if (!name) {
        close(fd);
        return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    }
    b->copies[b->n_copies++] = (struct sl_bank_copy){fd, name};
    return 0;
}

void sl_bank_close(struct sl_bank *b)
{
    if (b->fd >= 0) close(b->fd);
    for (int i = 0; i < b->n_copies; i++) {
        close(b->copies[i].fd);
        free(b->copies[i].path);
    }
    free(b->copies);
    free(b->path);
    free(b->label);
    free(b->entries);
    memset(b, 0, sizeof *b);
    b->fd = -1;
}

uint32_t sl_bank_max_record(const struct sl_bank *b)
{
    uint32_t most = 0;
    for (uint32_t x = 0; x < b->n_experts; x++)
        if (b->entries[x].bytes > most) most = b->entries[x].bytes;
    return most;
}

void sl_record_views(const struct sl_bank_entry *e, const uint8_t *record, int latent, int width,
                     struct sl_mat out[SL_N_MATS])
{
    for (int m = 0; m < SL_N_MATS; m++) {
        const struct sl_plane_offsets *o = &e->planes[m][0];
        out[m] = (struct sl_mat){
            .fmt = (enum sl_fmt)e->fmt[m],
            .rows = m == SL_DOWN ? latent : width,
            .cols = m == SL_DOWN ? width : latent,
            .codes = record + o->codes,
            .scales = o->scales == SL_ABSENT ? NULL : record + o->scales,
            .row_scales = o->row_scales == SL_ABSENT ? NULL : record + o->row_scales,
            .table = o->table == SL_ABSENT ? NULL : record + o->table,
        };
        const struct sl_plane_offsets *fine = &e->planes[m][1];
        if (fine->codes == SL_ABSENT) continue;
        out[m].fine_codes = record + fine->codes;
        out[m].fine_table = record + fine->table;
    }
}
