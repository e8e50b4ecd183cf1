/* Full verification: every byte of a pack read once, every crc computed, padding held to zero.
 *
 *   item   a tensor, a gap between tensors, or an expert record: one crc (or "all zero") each
 *   piece  at most 32 MiB of an item: one read
 *
 * Pieces are read by all workers, a window of them at a time; after each window the calling thread
 * joins the crcs of finished items in file order. So faults come out in one order whatever the number
 * of threads, an item of gigabytes (lm_head) is shared by all of them, and memory is one piece a
 * worker. Reads go around the page cache: what is checked is the drive, not last hour's copy. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/pool.h"
#include "base/progress.h"
#include "base/size.h"
#include "offload/direct_file.h"
#include "offload/pack.h"

enum item_kind {
    ITEM_TENSOR,
    ITEM_GAP,
    ITEM_RECORD,
    ITEM_FINE /* refinement of the record before */
};

struct item {
    uint32_t file;  /* index into files */
    uint32_t index; /* tensor number in its table, or expert id */
    uint64_t offset, bytes;
    uint32_t crc32;
    uint8_t kind;
};

struct piece {
    uint32_t item;
    uint32_t bytes;
    uint64_t offset;
    uint32_t crc32;
    int status;     /* 0, or errno of a failed read */
    uint64_t found; /* bytes read; of a gap: bytes before the first that is not zero */
};

struct file {
    struct sl_direct_file reader;
    const char *label;
    const struct sl_tensor *tensors; /* NULL for a bank */
};

struct verify {
    const struct sl_pack *p;
    struct file *files;
    uint32_t n_files;
    struct item *items;
    size_t n_items, room;
    struct piece *window; /* [n_window] */
    int n_window;
    unsigned char **buffers; /* one piece a worker, 4 KiB-aligned */
    int n_workers;
    void (*on_fault)(void *ctx, const char *line);
    void *ctx;
    struct sl_verify_report *report;
    struct sl_err first; /* first fault */
    struct sl_progress *progress;
};

static int no_memory(struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, NULL, "verify", "out of memory");
}

/* ------------------------------------------------------------------ what there is to check */

static bool add_item(struct verify *v, struct item it)
{
    if (v->n_items == v->room) {
        size_t room = v->room ? v->room * 2 : 256;
        struct item *more = realloc(v->items, room * sizeof *more);
        if (!more) return false;
        v->items = more;
        v->room = room;
    }
    v->items[v->n_items++] = it;
    return true;
}

/* Tensors in file order and what lies between them; a range that two names share is read once. */
static bool add_tensors(struct verify *v, uint32_t file, const struct sl_tensor *t, int n,
                        uint64_t file_bytes)
{
    uint64_t at = 0;
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        if (t[i].offset < at) continue; /* an alias of the one before */
        if (t[i].offset > at)
            ok = add_item(
                v, (struct item){
                       .file = file, .kind = ITEM_GAP, .offset = at, .bytes = t[i].offset - at});
        ok = ok && add_item(v, (struct item){.file = file,
                                             .kind = ITEM_TENSOR,
                                             .index = (uint32_t)i,
                                             .offset = t[i].offset,
                                             .bytes = t[i].bytes,
                                             .crc32 = t[i].crc32});
        at = t[i].offset + t[i].bytes;
    }
    if (ok && at < file_bytes)
        ok = add_item(
            v,
            (struct item){.file = file, .kind = ITEM_GAP, .offset = at, .bytes = file_bytes - at});
    return ok;
}

static bool add_bank(struct verify *v, uint32_t file, const struct sl_bank *b)
{
    for (uint32_t x = 0; x < b->n_experts; x++) {
        const struct sl_bank_entry *e = &b->entries[x];
        if (!add_item(v, (struct item){.file = file,
                                       .kind = ITEM_RECORD,
                                       .index = x,
                                       .offset = e->offset,
                                       .bytes = e->base_bytes,
                                       .crc32 = e->n_planes == 2 ? e->base_crc32 : e->crc32}))
            return false;
        if (e->n_planes == 2 && !add_item(v, (struct item){.file = file,
                                                           .kind = ITEM_FINE,
                                                           .index = x,
                                                           .offset = e->offset + e->base_bytes,
                                                           .bytes = e->bytes - e->base_bytes,
                                                           .crc32 = sl_record_fine_crc32(e)}))
            return false;
    }
    return true;
}

static void add_file(struct verify *v, const char *path, const char *label, int fd,
                     const struct sl_tensor *tensors)
{
    struct file *f = &v->files[v->n_files++];
    sl_direct_open(&f->reader, path, fd, NULL);
    f->label = label;
    f->tensors = tensors;
}

static int list_items(struct verify *v, struct sl_err *err)
{
    const struct sl_pack *p = v->p;
    char path[SL_PATH_MAX];
    v->files = calloc((size_t)p->n_banks + 2, sizeof *v->files);
    if (!v->files) return no_memory(err);
    /* The paths fitted when the pack was opened. */
    if (!sl_path_join(path, p->dir, "trunk.bin")) return no_memory(err);
    add_file(v, path, "trunk.bin", p->trunk_fd, p->tensors);
    bool ok = add_tensors(v, 0, p->tensors, p->n_tensors, p->trunk_bytes);
    if (p->vision_bytes) {
        if (!sl_path_join(path, p->dir, "vision.bin")) return no_memory(err);
        add_file(v, path, "vision.bin", p->vision_fd, p->vision);
        ok = ok && add_tensors(v, 1, p->vision, p->n_vision, p->vision_bytes);
    }
    for (int b = 0; b < p->n_banks; b++) {
        uint32_t file = v->n_files;
        add_file(v, p->banks[b].path, p->banks[b].label, p->banks[b].fd, NULL);
        ok = ok && add_bank(v, file, &p->banks[b]);
    }
    return ok ? 0 : no_memory(err);
}

/* ------------------------------------------------------------------ reading */

static uint64_t leading_zeros(const unsigned char *p, uint64_t n)
{
    uint64_t i = 0;
    while (i < n && !p[i]) i++;
    return i;
}

static void read_piece(void *ctx, int task, int worker)
{
    struct verify *v = ctx;
    struct piece *pc = &v->window[task];
    const struct item *it = &v->items[pc->item];
    unsigned char *buf = v->buffers[worker];
    if (sl_interrupted()) {
        pc->status = EINTR;
        return;
    }
    /* Gaps start where a tensor ends: reads begin at the page before. */
    uint64_t lead = pc->offset % SL_PAGE;
    int64_t got = sl_direct_read(&v->files[it->file].reader, buf, (size_t)(lead + pc->bytes),
                                 pc->offset - lead);
    if (got < 0) {
        pc->status = (int)-got;
        return;
    }
    pc->found = (uint64_t)got > lead ? (uint64_t)got - lead : 0;
    if (pc->found == pc->bytes) {
        if (it->kind == ITEM_GAP)
            pc->found = leading_zeros(buf + lead, pc->bytes);
        else
            pc->crc32 = sl_crc32(0, buf + lead, pc->bytes);
    }
    sl_progress_add(v->progress, 0, pc->bytes);
}

/* ------------------------------------------------------------------ judging */

__attribute__((format(printf, 4, 5))) static void fault(struct verify *v, const struct item *it,
                                                        int code, const char *fmt, ...)
{
    char what[128];
    char why[256];
    const struct file *f = &v->files[it->file];
    const char *field = what;
    if (it->kind == ITEM_RECORD)
        snprintf(what, sizeof what, "expert %u", it->index);
    else if (it->kind == ITEM_FINE)
        snprintf(what, sizeof what, "expert %u, refinement", it->index);
    else if (it->kind == ITEM_TENSOR)
        field = f->tensors[it->index].name;
    else
        snprintf(what, sizeof what, "padding");
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    struct sl_err line;
    sl_fail(&line, code, f->label, field, "%s", why);
    if (!v->report->faults++) v->first = line;
    if (v->on_fault) v->on_fault(v->ctx, line.text);
}

/* One finished item, from the pieces [n] that make it up. */
static void judge(struct verify *v, const struct item *it, const struct piece *pc, int n)
{
    uint32_t crc = 0;
    for (int i = 0; i < n; i++) {
        if (pc[i].status) {
            char buf[96];
            fault(v, it, SL_E_IO, "read at offset %llu: %s", (unsigned long long)pc[i].offset,
                  strerror_r(pc[i].status, buf, sizeof buf));
            return;
        }
        if (pc[i].found < pc[i].bytes) {
            unsigned long long at = pc[i].offset + pc[i].found;
            if (it->kind == ITEM_GAP)
                fault(v, it, SL_E_PACK, "the byte at offset %llu is not zero", at);
            else
                fault(v, it, SL_E_PACK, "the file ends at offset %llu", at);
            return;
        }
        crc = sl_crc32_combine(crc, pc[i].crc32, pc[i].bytes);
        v->report->bytes_read += pc[i].bytes;
    }
    if (it->kind == ITEM_GAP) return;
    if (it->kind == ITEM_RECORD)
        v->report->records++;
    else if (it->kind == ITEM_TENSOR)
        v->report->tensors++;
    if (crc != it->crc32) fault(v, it, SL_E_PACK, "crc32 %08x, expected %08x", crc, it->crc32);
}

/* Cuts items from *next on into pieces until the window is full. Whole items only, unless one item
 * alone is larger than the window: then the window is grown to hold it. */
static int fill_window(struct verify *v, size_t *next, int *n, struct sl_err *err)
{
    *n = 0;
    while (*next < v->n_items) {
        const struct item *it = &v->items[*next];
        uint64_t pieces = (it->bytes + SL_PIECE_BYTES - 1) / SL_PIECE_BYTES;
        if (*n && (uint64_t)*n + pieces > (uint64_t)v->n_window) break;
        if (pieces > INT32_MAX / 2) return no_memory(err);
        if (pieces > (uint64_t)v->n_window) {
            struct piece *more = realloc(v->window, (size_t)pieces * sizeof *more);
            if (!more) return no_memory(err);
            v->window = more;
            v->n_window = (int)pieces;
        }
        for (uint64_t at = 0; at < it->bytes; at += SL_PIECE_BYTES) {
            uint64_t left = it->bytes - at;
            v->window[(*n)++] =
                (struct piece){.item = (uint32_t)*next,
                               .offset = it->offset + at,
                               .bytes = (uint32_t)(left < SL_PIECE_BYTES ? left : SL_PIECE_BYTES)};
        }
        (*next)++;
    }
    return 0;
}

static int check_all(struct verify *v, struct sl_pool *pool, struct sl_err *err)
{
    size_t next = 0;
    while (next < v->n_items) {
        int n;
        int rc = fill_window(v, &next, &n, err);
        if (rc) return rc;
        sl_pool_run(pool, n, read_piece, v);
        if (sl_interrupted())
            return sl_fail(err, SL_E_INTR, NULL, NULL,
                           "interrupted: not all of the pack was checked");
        for (int i = 0; i < n;) {
            int of_item = 1;
            while (i + of_item < n && v->window[i + of_item].item == v->window[i].item) of_item++;
            const struct item *it = &v->items[v->window[i].item];
            judge(v, it, &v->window[i], of_item);
            if (it->kind == ITEM_RECORD) sl_progress_add(v->progress, 1, 0);
            if (v->first.code && !v->on_fault) return 0;
            i += of_item;
        }
    }
    return 0;
}

static int make_buffers(struct verify *v, struct sl_pool *pool, struct sl_err *err)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < v->n_items; i++)
        if (v->items[i].bytes > largest) largest = v->items[i].bytes;
    if (largest > SL_PIECE_BYTES) largest = SL_PIECE_BYTES;
    v->n_workers = pool ? sl_pool_threads(pool) : 1;
    v->n_window = v->n_workers * 16;
    v->window = calloc((size_t)v->n_window, sizeof *v->window);
    v->buffers = calloc((size_t)v->n_workers, sizeof *v->buffers);
    if (!v->window || !v->buffers) return no_memory(err);
    for (int i = 0; i < v->n_workers; i++) {
        /* One page more: the piece of a gap may start inside a page. */
        v->buffers[i] = aligned_alloc(SL_PAGE, (size_t)sl_align_up(largest, SL_PAGE) + SL_PAGE);
        if (!v->buffers[i]) return no_memory(err);
    }
    return 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int sl_pack_verify(const struct sl_pack *p, struct sl_pool *pool,
                   void (*on_fault)(void *ctx, const char *line), void *ctx,
                   struct sl_verify_report *report, struct sl_err *err)
{
    struct sl_verify_report own = {0};
    struct verify v = {.p = p, .on_fault = on_fault, .ctx = ctx, .report = report ? report : &own};
    double start = now();
    memset(v.report, 0, sizeof *v.report);
    int rc = list_items(&v, err);
    if (!rc) rc = make_buffers(&v, pool, err);
    if (!rc) {
        uint64_t bytes = 0;
        uint64_t records = 0;
        for (size_t i = 0; i < v.n_items; i++) {
            bytes += v.items[i].bytes;
            records += v.items[i].kind == ITEM_RECORD;
        }
        v.progress = sl_progress_open("verify", "records", records, bytes);
        rc = check_all(&v, pool, err);
        sl_progress_close(v.progress);
    }
    if (!rc && v.first.code) {
        rc = v.first.code;
        if (err) *err = v.first;
    }
    for (uint32_t i = 0; i < v.n_files; i++) sl_direct_close(&v.files[i].reader);
    for (int i = 0; i < v.n_workers && v.buffers; i++) free(v.buffers[i]);
    free(v.buffers);
    free(v.window);
    free(v.items);
    free(v.files);
    v.report->seconds = now() - start;
    return rc;
}
