/* The container of calibration statistics (stats_file.h). */
#include "quant/stats_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/file.h"
#include "base/size.h"

#define MAGIC "SLSTATS"

struct head {
    char magic[8];
    uint32_t version, n_sections;
    uint64_t index_offset, file_bytes;
    uint32_t index_crc32;
    uint32_t reserved[6];
    uint32_t head_crc32; /* of the 60 bytes before it */
};
_Static_assert(sizeof(struct head) == 64, "on disk");

struct section {
    char name[SL_STATS_NAME];
    uint64_t offset, stored_bytes, raw_bytes;
    uint32_t crc32; /* of the stored bytes */
    uint32_t reserved;
};
_Static_assert(sizeof(struct section) == 72, "on disk");

enum { VERSION = 1, MAX_SECTIONS = 1 << 20 };

/* ---- writing */

struct sl_stats_out {
    int fd;
    char path[SL_PATH_MAX];
    uint64_t at;
    struct section *sections;
    uint32_t n, cap;
};

int sl_stats_create(struct sl_stats_out **out, const char *path, struct sl_err *err)
{
    struct sl_stats_out *o = calloc(1, sizeof *o);
    if (!o) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    o->fd = -1;
    int rc = 0;
    if (strlen(path) >= sizeof o->path)
        rc = sl_fail(err, SL_E_ARG, path, NULL, "the path is too long");
    if (!rc) memcpy(o->path, path, strlen(path) + 1);
    if (!rc) rc = sl_tmp_open(&o->fd, path, false, err);
    if (rc) {
        free(o);
        return rc;
    }
    o->at = sizeof(struct head);
    *out = o;
    return 0;
}

static void release(struct sl_stats_out *o)
{
    free(o->sections);
    free(o);
}

void sl_stats_discard(struct sl_stats_out *o)
{
    if (!o) return;
    sl_tmp_discard(o->fd, o->path);
    release(o);
}

int sl_stats_put(struct sl_stats_out *o, const char *name, const void *data, size_t bytes,
                 struct sl_err *err)
{
    if (o->n == o->cap) {
        uint32_t cap = o->cap ? 2 * o->cap : 64;
        struct section *p = realloc(o->sections, cap * sizeof *p);
        if (!p) return sl_fail(err, SL_E_NOMEM, o->path, name, "out of memory");
        o->sections = p;
        o->cap = cap;
    }
    uLongf stored = compressBound((uLong)bytes);
    unsigned char *z = malloc(stored ? stored : 1);
    if (!z) return sl_fail(err, SL_E_NOMEM, o->path, name, "out of memory");
    /* Level 1: sums of products hardly shrink further. */
    int rc = compress2(z, &stored, data, (uLong)bytes, 1) == Z_OK
                 ? sl_pwrite_all(o->fd, z, stored, o->at, o->path, err)
                 : sl_fail(err, SL_E_NOMEM, o->path, name, "zlib has no memory");
    if (!rc) {
        struct section *s = &o->sections[o->n++];
        memset(s, 0, sizeof *s);
        strncpy(s->name, name, sizeof s->name - 1);
        s->offset = o->at;
        s->stored_bytes = stored;
        s->raw_bytes = bytes;
        s->crc32 = sl_crc32(0, z, stored);
        o->at += stored;
    }
    free(z);
    return rc;
}

int sl_stats_publish(struct sl_stats_out *o, struct sl_err *err)
{
    size_t index_bytes = (size_t)o->n * sizeof *o->sections;
    struct head h = {.version = VERSION,
                     .n_sections = o->n,
                     .index_offset = o->at,
                     .file_bytes = o->at + index_bytes,
                     .index_crc32 = sl_crc32(0, o->sections, index_bytes)};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.head_crc32 = sl_crc32(0, &h, sizeof h - sizeof h.head_crc32);
    int rc = index_bytes ? sl_pwrite_all(o->fd, o->sections, index_bytes, o->at, o->path, err) : 0;
    if (!rc) rc = sl_pwrite_all(o->fd, &h, sizeof h, 0, o->path, err);
    if (rc) {
        sl_stats_discard(o);
        return rc;
    }
    rc = sl_tmp_publish(o->fd, o->path, err);
    release(o);
    return rc;
}

/* ---- reading */

struct sl_stats_in {
    int fd;
    char path[SL_PATH_MAX];
    struct section *sections;
    uint32_t n;
};

static int not_stats(const struct sl_stats_in *in, const char *what, struct sl_err *err)
{
    return sl_fail(err, SL_E_SOURCE, in->path, NULL, "not a statistics file of this version: %s",
                   what);
}

static int read_index(struct sl_stats_in *in, uint64_t size, struct sl_err *err)
{
    struct head h;
    if (size < sizeof h) return not_stats(in, "too short", err);
    int rc = sl_pread_all(in->fd, &h, sizeof h, 0, in->path, SL_E_SOURCE, err);
    if (rc) return rc;
    if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0) return not_stats(in, "another magic", err);
    if (h.head_crc32 != sl_crc32(0, &h, sizeof h - sizeof h.head_crc32))
        return not_stats(in, "the header's crc32 is wrong", err);
    if (h.version != VERSION) return not_stats(in, "another version", err);
    uint64_t index_bytes = (uint64_t)h.n_sections * sizeof(struct section);
    if (h.n_sections > MAX_SECTIONS || h.file_bytes != size || h.index_offset > size ||
        size - h.index_offset != index_bytes)
        return not_stats(in, "cut, or with bytes in excess", err);
    in->sections = malloc(index_bytes ? index_bytes : 1);
    if (!in->sections) return sl_fail(err, SL_E_NOMEM, in->path, NULL, "out of memory");
    rc = h.n_sections ? sl_pread_all(in->fd, in->sections, index_bytes, h.index_offset, in->path,
                                     SL_E_SOURCE, err)
                      : 0;
    if (rc) return rc;
    if (h.index_crc32 != sl_crc32(0, in->sections, index_bytes))
        return not_stats(in, "the index's crc32 is wrong", err);
    for (uint32_t i = 0; i < h.n_sections; i++) {
        const struct section *s = &in->sections[i];
        if (s->name[SL_STATS_NAME - 1] || s->offset > h.index_offset ||
            s->stored_bytes > h.index_offset - s->offset)
            return not_stats(in, "a section lies outside the file", err);
    }
    in->n = h.n_sections;
    return 0;
}

int sl_stats_open(struct sl_stats_in **out, const char *path, struct sl_err *err)
{
    uint64_t size = 0;
    int rc = sl_file_size(path, &size, SL_E_SOURCE, err);
    if (rc) return rc;
    struct sl_stats_in *in = calloc(1, sizeof *in);
    if (!in) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    strncpy(in->path, path, sizeof in->path - 1);
    in->fd = open(path, O_RDONLY | O_CLOEXEC);
    rc = in->fd < 0 ? sl_fail(err, SL_E_SOURCE, path, NULL, "cannot be opened")
                    : read_index(in, size, err);
    if (rc) {
        sl_stats_close(in);
        return rc;
    }
    *out = in;
    return 0;
}

void sl_stats_close(struct sl_stats_in *in)
{
    if (!in) return;
    if (in->fd >= 0) close(in->fd);
    free(in->sections);
    free(in);
}

static const struct section *find(const struct sl_stats_in *in, const char *name)
{
    for (uint32_t i = 0; i < in->n; i++)
        if (strcmp(in->sections[i].name, name) == 0) return &in->sections[i];
    return NULL;
}

bool sl_stats_has(const struct sl_stats_in *in, const char *name)
{
    return find(in, name) != NULL;
}

uint64_t sl_stats_bytes(const struct sl_stats_in *in, const char *name)
{
    const struct section *s = find(in, name);
    return s ? s->raw_bytes : 0;
}

int sl_stats_get(const struct sl_stats_in *in, const char *name, void *data, size_t bytes,
                 struct sl_err *err)
{
    const struct section *s = find(in, name);
    if (!s) return sl_fail(err, SL_E_SOURCE, in->path, name, "the section is missing");
    if (s->raw_bytes != bytes)
        return sl_fail(err, SL_E_SOURCE, in->path, name, "%llu bytes, expected %llu",
                       (unsigned long long)s->raw_bytes, (unsigned long long)bytes);
    unsigned char *z = malloc(s->stored_bytes ? s->stored_bytes : 1);
    if (!z) return sl_fail(err, SL_E_NOMEM, in->path, name, "out of memory");
    int rc = sl_pread_all(in->fd, z, s->stored_bytes, s->offset, in->path, SL_E_SOURCE, err);
    uLongf n = (uLongf)bytes;
    if (!rc && sl_crc32(0, z, s->stored_bytes) != s->crc32)
        rc = sl_fail(err, SL_E_SOURCE, in->path, name, "the section's crc32 is wrong");
    if (!rc && (uncompress(data, &n, z, (uLong)s->stored_bytes) != Z_OK || n != bytes))
        rc = sl_fail(err, SL_E_SOURCE, in->path, name, "the section does not unpack");
    free(z);
    return rc;
}
