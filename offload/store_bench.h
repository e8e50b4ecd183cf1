/* What the store's own read path gets from a drive: whole records at random places, `depth` of them
 * wanted at any time, as a decode step wants its misses.
 *
 * The same code as in a run: slots, queues, io_uring or threads, direct reads. Nothing is resident when
 * it is asked for again, so every request is a read. The kernel's account of bytes fetched from storage
 * is taken beside ours: a cached file must not pass for a drive. */
#ifndef SL_OFFLOAD_STORE_BENCH_H
#define SL_OFFLOAD_STORE_BENCH_H

#include "offload/store.h"

struct sl_bench_io_opts {
    const char
        *path; /* a file to read (its first whole records), or a folder for a temporary one */
    uint64_t record_bytes; /* rounded up to 4096 */
    uint64_t temp_bytes;   /* of the temporary file; a quarter of the free space at most */
    int depth;             /* records in flight, 1 to 64 */
    double seconds;
    enum sl_io io;
    uint32_t piece_bytes; /* 0: the store's default */
};
struct sl_bench_io_report {
    uint64_t record_bytes, n_records; /* of the file, as used */
    uint64_t bytes_read, reads;       /* by the store */
    uint64_t kernel_bytes;            /* fetched from storage meanwhile, by the kernel's account */
    bool counted;                     /* the kernel keeps such an account here */
    bool direct;
    enum sl_io io; /* in use */
    double seconds, bytes_per_second;
};
/* At least one read, also in no time. SL_E_ARG: the file holds fewer than 2 * depth + 2 records, or is
 * not to be read; SL_E_NOSPACE; SL_E_IO; SL_E_INTR. The temporary file is gone afterwards. */
int sl_bench_io(const struct sl_bench_io_opts *o, struct sl_bench_io_report *r, struct sl_err *err);

/* Bytes that this process had fetched from storage so far; false where the kernel does not say. */
bool sl_kernel_read_bytes(uint64_t *bytes);

#endif
