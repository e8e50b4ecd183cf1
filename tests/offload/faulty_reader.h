/* A pread that misbehaves on purpose, and io_uring reads that do: by place in the file, or at random with
 * a seed.
 *
 * Rules match the offset of the read, so use one bank (layers may share it), or match every read. */
#ifndef SL_TESTS_FAULTY_READER_H
#define SL_TESTS_FAULTY_READER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "offload/direct_file.h"

enum fr_kind {
    FR_NONE,
    FR_ERRNO, /* fails with `value` */
    FR_SHORT, /* returns at most `value` bytes */
    FR_END,   /* returns 0: the file ends here */
    FR_WRONG, /* flips a bit of the first byte */
    FR_GATE   /* waits until fr_open_gate() */
};

struct fr_rule {
    enum fr_kind kind;
    uint64_t from, to; /* reads that start in [from, to) */
    int64_t value;
    int times; /* how often; -1: always */
};

struct faulty_reader {
    struct sl_read_ops ops; /* hand this to the store; ops.ctx is the reader itself */
    struct fr_rule rules[8];
    bool gate_open;
    int arrived, reads; /* ever at the gate; calls so far */
    /* Random mode, on top of the rules. */
    uint64_t seed;
    int permille_errno, permille_short, permille_intr, max_delay_us;
    int errnos; /* injected so far */
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

void fr_init(struct faulty_reader *r);
void fr_free(struct faulty_reader *r);
void fr_add(struct faulty_reader *r, enum fr_kind kind, uint64_t from, uint64_t to, int64_t value,
            int times);
void fr_clear(struct faulty_reader *r); /* all rules gone, gate shut, none arrived */
void fr_open_gate(struct faulty_reader *r);
void fr_wait_at_gate(struct faulty_reader *r,
                     int n); /* until n reads have come to it since clear */
int fr_reads(struct faulty_reader *r);

#endif
