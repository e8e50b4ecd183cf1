/* A pack of one bank whose records are made up, so that the store can read any file. */
#define _GNU_SOURCE
#include "offload/store_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"

enum { DEPTH_MAX = 64, RECORDS_MAX = 1 << 20 };

struct bench {
    struct sl_pack pack;
    struct sl_bank bank;
    char path[SL_PATH_MAX];
    bool temp;
    int *order; /* [n_records], shuffled */
};

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

bool sl_kernel_read_bytes(uint64_t *bytes)
{
    char line[128];
    bool found = false;
    FILE *f = fopen("/proc/self/io", "re");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        unsigned long long n;
        found = sscanf(line, "read_bytes: %llu", &n) == 1;
        if (found) *bytes = n;
    }
    fclose(f);
    return found;
}

/* ------------------------------------------------------------------ the file */

static int fill(int fd, uint64_t bytes, const char *name, struct sl_err *err)
{
    const size_t piece = 8u << 20;
    uint64_t *buf = malloc(piece);
    uint64_t seed = 7;
    if (!buf) return sl_fail(err, SL_E_NOMEM, name, NULL, "out of memory");
    int rc = 0;
    for (uint64_t at = 0; at < bytes && !rc; at += piece) {
        size_t n = bytes - at < piece ? (size_t)(bytes - at) : piece;
        for (size_t i = 0; i < piece / sizeof *buf; i++) buf[i] = next_random(&seed);
        rc = sl_interrupted() ? sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted")
                              : sl_pwrite_all(fd, buf, n, at, name, err);
    }
    free(buf);
    if (!rc && fsync(fd)) rc = sl_fail_errno(err, SL_E_IO, errno, name, "fsync");
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return rc;
}

static int open_file(struct bench *b, const struct sl_bench_io_opts *o, uint64_t record,
                     uint64_t *bytes, struct sl_err *err)
{
    uint64_t space;
    struct stat st;
    if (!sl_is_dir(o->path)) {
        int n = snprintf(b->path, sizeof b->path, "%s", o->path);
        if (n < 0 || (size_t)n >= sizeof b->path)
            return sl_fail(err, SL_E_ARG, o->path, NULL, "path too long");
        b->bank.fd = open(b->path, O_RDONLY | O_CLOEXEC);
        if (b->bank.fd < 0 || fstat(b->bank.fd, &st))
            return sl_fail_errno(err, SL_E_ARG, errno, o->path, "open");
        *bytes = (uint64_t)st.st_size;
        return 0;
    }
    int rc = sl_free_space(o->path, &space, err);
    if (rc) return rc;
    *bytes = o->temp_bytes < space / 4 ? o->temp_bytes : space / 4;
    *bytes = *bytes / record * record;
    int n = snprintf(b->path, sizeof b->path, "%s/sluice-bench.XXXXXX", o->path);
    if (n < 0 || (size_t)n >= sizeof b->path)
        return sl_fail(err, SL_E_ARG, o->path, NULL, "path too long");
    b->bank.fd = mkostemp(b->path, O_CLOEXEC);
    if (b->bank.fd < 0) return sl_fail_errno(err, SL_E_ARG, errno, o->path, "temporary file");
    b->temp = true;
    return fill(b->bank.fd, *bytes, b->path, err);
}

static int make_pack(struct bench *b, const struct sl_bench_io_opts *o,
                     struct sl_bench_io_report *r, struct sl_err *err)
{
    uint64_t bytes = 0;
    uint64_t seed = 11;
    uint64_t record = sl_align_up(o->record_bytes ? o->record_bytes : SL_PAGE, SL_PAGE);
    if (record > UINT32_MAX)
        return sl_fail(err, SL_E_ARG, NULL, "record", "%llu bytes are more than 4 GiB",
                       (unsigned long long)record);
    int rc = open_file(b, o, record, &bytes, err);
    if (rc) return rc;
    uint64_t n = bytes / record < RECORDS_MAX ? bytes / record : RECORDS_MAX;
    if (n < 2 * (uint64_t)o->depth + 2)
        return sl_fail(err, SL_E_ARG, o->path, NULL,
                       "%llu bytes hold %llu records of %llu; depth %d needs %d",
                       (unsigned long long)bytes, (unsigned long long)n, (unsigned long long)record,
                       o->depth, 2 * o->depth + 2);
    b->bank.entries = calloc((size_t)n + 1, sizeof *b->bank.entries);
    b->order = calloc((size_t)n + 1, sizeof *b->order);
    if (!b->bank.entries || !b->order)
        return sl_fail(err, SL_E_NOMEM, o->path, NULL, "out of memory");
    for (uint64_t i = 0; i < n; i++) {
        b->bank.entries[i].offset = i * record;
        b->bank.entries[i].bytes = (uint32_t)record;
        uint64_t k = next_random(&seed) % (i + 1);
        b->order[i] = b->order[k];
        b->order[k] = (int)i;
    }
    b->bank.path = b->bank.label = b->path;
    b->bank.n_experts = (uint32_t)n;
    b->bank.file_bytes = bytes;
    b->pack.banks = &b->bank;
    b->pack.n_banks = 1;
    b->pack.slot_bytes = (uint32_t)record;
    b->pack.cfg.n_layers = 1;
    b->pack.cfg.n_experts = (int)n;
    b->pack.cfg.top_k = o->depth;
    b->pack.cfg.latent_size = b->pack.cfg.moe_intermediate_size = 32;
    r->record_bytes = record;
    r->n_records = n;
    return 0;
}

/* ------------------------------------------------------------------ reading */

struct reading {
    struct sl_store *s;
    const struct bench *b;
    const struct sl_bench_io_opts *o;
    uint64_t n_records, asked, taken;
};

/* Takes until `until` records were taken, and as long as the time is not up. As in a layer's step more is
 * asked for than is in flight, so that the next read never waits for us. */
static int take_some(struct reading *r, uint64_t until, double end, struct sl_err *err)
{
    struct sl_mat mats[SL_N_MATS];
    uint64_t n = r->n_records ? r->n_records : 1;
    int rc = 0;
    while (!rc && (r->taken < until || now_seconds() < end)) {
        /* In one shuffled order over and over: what is asked for was last read a whole round ago. */
        while (!rc && r->asked - r->taken < 2 * (uint64_t)r->o->depth)
            rc = sl_store_request(r->s, 0, &r->b->order[r->asked++ % n], 1, err);
        int expert = 0;
        if (!rc) rc = sl_store_take_any(r->s, 0, &expert, mats, err);
        if (rc) break;
        sl_store_put(r->s, 0, expert);
        r->taken++;
        if (sl_interrupted()) rc = sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
    }
    return rc;
}

/* Waits for what is still under way, so that all counts are of whole reads. */
static int take_rest(struct reading *r, struct sl_err *err)
{
    struct sl_mat mats[SL_N_MATS];
    int rc = 0;
    for (; !rc && r->taken < r->asked; r->taken++) {
        int expert = 0;
        rc = sl_store_take_any(r->s, 0, &expert, mats, err);
        if (!rc) sl_store_put(r->s, 0, expert);
    }
    return rc;
}

static int read_for(struct reading *x, struct sl_bench_io_report *r, struct sl_err *err)
{
    uint64_t kernel[2] = {0, 0};
    struct sl_store_stats before;
    struct sl_store_stats after;
    /* Every slot once, untimed: memory is handed out at its first use. */
    int rc = take_some(x, 2 * (uint64_t)x->o->depth + 1, 0, err);
    if (!rc) rc = take_rest(x, err);
    if (rc) return rc;
    sl_store_get_stats(x->s, &before);
    r->counted = sl_kernel_read_bytes(&kernel[0]);
    double start = now_seconds();
    rc = take_some(x, x->taken + 1, start + x->o->seconds, err);
    if (!rc) rc = take_rest(x, err);
    r->seconds = now_seconds() - start;
    r->counted = r->counted && sl_kernel_read_bytes(&kernel[1]);
    sl_store_get_stats(x->s, &after);
    r->kernel_bytes = r->counted ? kernel[1] - kernel[0] : 0;
    r->bytes_read = after.bytes_read - before.bytes_read;
    r->reads = after.reads - before.reads;
    r->direct = after.direct_io;
    r->io = after.io;
    r->bytes_per_second = (double)r->bytes_read / (r->seconds > 1e-9 ? r->seconds : 1e-9);
    return rc;
}

int sl_bench_io(const struct sl_bench_io_opts *o, struct sl_bench_io_report *r, struct sl_err *err)
{
    memset(r, 0, sizeof *r);
    if (o->depth < 1 || o->depth > DEPTH_MAX)
        return sl_fail(err, SL_E_ARG, NULL, "depth", "%d, allowed are 1 to %d", o->depth,
                       DEPTH_MAX);
    struct sl_store *s = NULL;
    struct bench *b = calloc(1, sizeof *b);
    if (!b) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "out of memory");
    b->bank.fd = -1;
    int rc = make_pack(b, o, r, err);
    if (!rc) {
        const struct sl_store_opts so = {.slot_budget_bytes =
                                             (2 * (uint64_t)o->depth + 1) * r->record_bytes,
                                         .io = o->io,
                                         .n_readers = o->depth,
                                         .evict = "lru", /* finds nothing in such an order */
                                         .piece_bytes = o->piece_bytes};
        rc = sl_store_open(&s, &b->pack, &so, err);
    }
    if (b->temp) unlink(b->path);
    struct reading x = {.s = s, .b = b, .o = o, .n_records = r->n_records};
    if (!rc) rc = read_for(&x, r, err);
    if (s && rc) sl_store_cancel(s);
    sl_store_close(s);
    if (b->bank.fd >= 0) close(b->bank.fd);
    free(b->bank.entries);
    free(b->order);
    free(b);
    return rc;
}
