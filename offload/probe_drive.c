/* Drive bandwidth at record size by queue depth: `depth` threads, each reading whole records at random
 * places around the page cache, as the store's readers do. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"
#include "offload/direct_file.h"
#include "offload/pack_layout.h"
#include "offload/probe.h"

enum { MIN_RECORDS = 8, MAX_RECORDS = 64, MAX_DEPTH = 64, LARGE_PAGE = 2 << 20 };
#define MIN_COUNTED 0.95 /* of our bytes, that the kernel must have fetched too */

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* splitmix64: good enough that no drive compresses it, fast enough to keep one busy. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Bytes that this process had fetched from storage so far; false where the kernel does not say. */
static bool fetched_bytes(uint64_t *bytes)
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

struct job {
    const struct sl_direct_file *file;
    uint64_t record_bytes, n_records;
    uint8_t *memory; /* room a thread */
    size_t room;
    double end;
    _Atomic uint64_t bytes;
    _Atomic uint64_t ticket; /* so that even a short run reads one record a thread */
    atomic_int error;
};

static void *reader(void *arg)
{
    struct job *j = arg;
    const uint64_t ticket = atomic_fetch_add(&j->ticket, 1);
    uint64_t seed = ticket * 0x632be59bd9b4e019u + 1;
    uint8_t *buf = j->memory + ticket * j->room;
    do {
        uint64_t i = next_random(&seed) % j->n_records;
        int64_t got = sl_direct_read(j->file, buf, j->record_bytes, i * j->record_bytes);
        if (got < 0) atomic_store(&j->error, (int)-got);
        if (got > 0) atomic_fetch_add(&j->bytes, (uint64_t)got);
    } while (now_seconds() < j->end && !atomic_load(&j->error) && !sl_interrupted());
    return NULL;
}

/* Memory as the store's slots are: in large pages, and ours before the first read. Into 4 KiB pages one
 * drive gave a third of what the store then got from it (docs/results/streaming.md). */
static bool take_memory(struct job *j, int depth)
{
    j->room = (size_t)sl_align_up(j->record_bytes, LARGE_PAGE);
    const size_t bytes = j->room * (size_t)depth;
    j->memory = aligned_alloc(LARGE_PAGE, bytes);
    if (!j->memory) return false;
    (void)madvise(j->memory, bytes, MADV_HUGEPAGE);
    memset(j->memory, 0, bytes);
    return true;
}

static int measure_depth(const struct sl_direct_file *file, uint64_t record_bytes,
                         uint64_t n_records, int depth, double seconds, const char *name,
                         double *bps, uint64_t *bytes, struct sl_err *err)
{
    pthread_t threads[MAX_DEPTH];
    struct job j = {.file = file, .record_bytes = record_bytes, .n_records = n_records};
    if (!take_memory(&j, depth)) return sl_fail(err, SL_E_NOMEM, name, NULL, "out of memory");
    double start = now_seconds();
    int n = 0;
    j.end = start + seconds;
    while (n < depth && !pthread_create(&threads[n], NULL, reader, &j)) n++;
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    double took = now_seconds() - start;
    free(j.memory);
    int e = atomic_load(&j.error);
    if (e) return sl_fail_errno(err, SL_E_IO, e, name, "read");
    if (n < depth) return sl_fail(err, SL_E_NOMEM, name, NULL, "no threads for depth %d", depth);
    if (sl_interrupted()) return sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
    *bytes = atomic_load(&j.bytes);
    *bps = (double)*bytes / (took > 1e-9 ? took : 1e-9);
    return 0;
}

static int fill_file(int fd, uint64_t bytes, const char *name, struct sl_err *err)
{
    const size_t piece = 8u << 20;
    uint64_t *buf = malloc(piece);
    uint64_t seed = 42;
    int rc = 0;
    if (!buf) return sl_fail(err, SL_E_NOMEM, name, NULL, "out of memory");
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

/* A file of random records in the folder, open and without a name when it returns. */
static int make_temp(const struct sl_probe_drive *o, uint64_t record, int *fd,
                     struct sl_direct_file *direct, uint64_t *bytes, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    uint64_t space;
    *fd = -1;
    int n = snprintf(path, sizeof path, "%s/sluice-probe.XXXXXX", o->path);
    if (n < 0 || (size_t)n >= sizeof path)
        return sl_fail(err, SL_E_ARG, o->path, NULL, "path too long");
    int rc = sl_free_space(o->path, &space, err);
    if (rc) return rc;
    uint64_t want = o->temp_bytes < space / 4 ? o->temp_bytes : space / 4;
    if (want > MAX_RECORDS * record) want = MAX_RECORDS * record;
    want = want / record * record;
    if (want < MIN_RECORDS * record)
        return sl_fail(err, SL_E_NOSPACE, o->path, NULL,
                       "%llu bytes are free; %d records of %llu bytes may take a quarter of that",
                       (unsigned long long)space, MIN_RECORDS, (unsigned long long)record);
    *fd = mkostemp(path, O_CLOEXEC);
    if (*fd < 0) return sl_fail_errno(err, SL_E_ARG, errno, o->path, "temporary file");
    rc = sl_pwrite_all(*fd, "", 1, want - 1, path, err);
    if (!rc) rc = fill_file(*fd, want, path, err);
    if (!rc) sl_direct_open(direct, path, *fd, NULL);
    unlink(path);
    *bytes = want;
    return rc;
}

static int open_target(const struct sl_probe_drive *o, uint64_t record, int *fd,
                       struct sl_direct_file *direct, uint64_t *bytes, bool *temp,
                       struct sl_err *err)
{
    struct stat st;
    *temp = sl_is_dir(o->path);
    if (*temp) return make_temp(o, record, fd, direct, bytes, err);
    *fd = open(o->path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0 || fstat(*fd, &st)) return sl_fail_errno(err, SL_E_ARG, errno, o->path, "open");
    sl_direct_open(direct, o->path, *fd, NULL);
    *bytes = (uint64_t)st.st_size / record * record;
    if (*bytes < MIN_RECORDS * record)
        return sl_fail(err, SL_E_ARG, o->path, NULL, "%lld bytes; %d records of %llu are needed",
                       (long long)st.st_size, MIN_RECORDS, (unsigned long long)record);
    return 0;
}

int sl_probe_drive(const struct sl_probe_drive *o, struct sl_board_drive *d,
                   struct sl_probe_drive_report *report, struct sl_err *err)
{
    struct sl_probe_drive_report r = {0};
    struct sl_direct_file direct = {.direct_fd = -1};
    uint64_t record = sl_align_up(o->record_bytes ? o->record_bytes : SL_PAGE, SL_PAGE);
    uint64_t bytes = 0;
    uint64_t before = 0;
    uint64_t after = 0;
    int fd = -1;
    bool temp = false;
    memset(d, 0, sizeof *d);
    int rc = open_target(o, record, &fd, &direct, &bytes, &temp, err);
    if (rc) goto done;
    r.written_bytes = temp ? bytes : 0;
    r.direct = sl_direct_in_effect(&direct);
    r.counted = fetched_bytes(&before);
    for (int i = 0; i < o->n_depths && i < SL_BOARD_DEPTHS; i++) {
        double bps = 0;
        uint64_t n = 0;
        int depth = o->depths[i] < MAX_DEPTH ? o->depths[i] : MAX_DEPTH;
        rc = measure_depth(&direct, record, bytes / record, depth, o->seconds, o->path, &bps, &n,
                           err);
        if (rc) goto done;
        d->read[d->n_depths].depth = depth;
        d->read[d->n_depths++].gbps = bps * 1e-9;
        r.bytes_read += n;
    }
    if (r.counted && fetched_bytes(&after)) r.kernel_bytes = after - before;
    if (r.counted && (double)r.kernel_bytes < MIN_COUNTED * (double)r.bytes_read)
        rc = sl_fail(err, SL_E_IO, o->path, NULL,
                     "%llu bytes were read, the kernel fetched only %llu of them from storage: the "
                     "page cache answers here, so this is not the drive's speed",
                     (unsigned long long)r.bytes_read, (unsigned long long)r.kernel_bytes);
    d->record_bytes = record;
    (void)snprintf(d->name, sizeof d->name, "drive of %.50s", o->path);
    (void)snprintf(d->path, sizeof d->path, "%s", o->path);
done:
    sl_direct_close(&direct);
    if (fd >= 0) close(fd);
    if (report) *report = r;
    return rc;
}
