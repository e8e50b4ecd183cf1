/* Measuring this machine: what a board file holds, taken from the machine itself.
 *
 * Drives are read the way the store reads them: whole records at random places, around the page cache,
 * by several threads. The kernel's own account of bytes fetched from storage must agree, or the figure
 * is refused: a cached file has passed for a drive of 65 GB/s in another engine. Memory is read by all
 * threads from buffers larger than any cache; products are this build's kernels on such buffers. */
#ifndef SL_OFFLOAD_PROBE_H
#define SL_OFFLOAD_PROBE_H

#include "base/pool.h"
#include "offload/board.h"

/* Bytes a second of all threads of the pool together: a streaming read, and a copy (bytes read plus
 * bytes written). `bytes` of memory in all are used; the best of several passes within about `seconds`
 * each. SL_E_NOMEM. */
int sl_probe_memory(struct sl_pool *pool, uint64_t bytes, double seconds, double *read_bps,
                    double *copy_bps, struct sl_err *err);

/* Fills cpu.mul of b for formats fmts[n] with this process's kernels on all threads of the pool. About
 * `seconds` a format and direction, at least one pass. */
int sl_probe_products(struct sl_pool *pool, const enum sl_fmt *fmts, int n, uint64_t bytes,
                      double seconds, struct sl_board *b, struct sl_err *err);

struct sl_probe_drive {
    const char *path;      /* a folder, or a file to read (nothing is written then) */
    uint64_t record_bytes; /* size of one read, rounded up to 4096 */
    uint64_t temp_bytes;   /* of the file written when path is a folder; capped by 64 records
                              and a quarter of the free space; at least 8 records must fit */
    double seconds;        /* a depth */
    const int *depths;     /* ascending, [n_depths], at most SL_BOARD_DEPTHS */
    int n_depths;
};
struct sl_probe_drive_report {
    uint64_t bytes_read;    /* by us, all depths */
    uint64_t kernel_bytes;  /* fetched from storage in that time by the kernel's account */
    uint64_t written_bytes; /* of the temporary file */
    bool counted;           /* the kernel keeps such an account here */
    bool direct;            /* O_DIRECT was in effect */
};
/* SL_E_IO: the drive fails, or the kernel counted less than 95 % of what was read; SL_E_NOSPACE;
 * SL_E_ARG for a path that cannot be read; SL_E_INTR. The temporary file has no name while it is
 * measured and is gone afterwards, whatever happens. report may be NULL. */
int sl_probe_drive(const struct sl_probe_drive *o, struct sl_board_drive *d,
                   struct sl_probe_drive_report *report, struct sl_err *err);

/* Cores, ISA, memory size and NUMA nodes of the machine under root ("" for this one), into b. */
int sl_probe_machine(const char *root, struct sl_board *b, struct sl_err *err);
int sl_probe_numa_nodes(const char *root);

/* All of it: a measured board named "this-machine". A full probe takes about ten seconds and writes a
 * temporary file of 1 GiB; a quick one about two and 256 MiB. */
struct sl_probe_opts {
    const char *drive_path; /* as sl_probe_drive.path; NULL: no drive is measured, none is listed */
    uint64_t record_bytes;
    int threads; /* 0: one a core */
    bool quick;
};
int sl_probe_board(const struct sl_probe_opts *o, struct sl_board *b,
                   struct sl_probe_drive_report *report, struct sl_err *err);

/* First GPU that nvidia-smi names, or none. The link's figure is its generation and width as reported,
 * which is a limit, not a measurement. */
void sl_probe_gpu(struct sl_board *b);
/* A line "NAME, MiB, GEN, WIDTH" of nvidia-smi; false leaves b alone. */
bool sl_probe_gpu_line(const char *line, struct sl_board *b);

#endif
