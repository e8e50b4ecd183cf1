/* What shim_faults.c records and tool_power_cut.c reads: one record a change of the disk. */
#ifndef SL_TESTS_POWER_CUT_H
#define SL_TESTS_POWER_CUT_H

#include <stdint.h>

enum {
    PC_WRITE = 1, /* n bytes at `at` of path, data follows */
    PC_SYNC,      /* the file's data and size */
    PC_SYNC_DIR,  /* the names in it */
    PC_RENAME,    /* path to path2 */
    PC_CREATE,
    PC_TRUNCATE, /* to `at` bytes */
    PC_EXTEND,   /* to at least `at` bytes */
    PC_MKDIR,
    PC_UNLINK
};

struct pc_record {
    uint32_t op, path_bytes, path2_bytes, reserved; /* paths with their NUL */
    uint64_t at, n, data_bytes;
};

#endif
