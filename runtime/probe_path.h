/* Where a drive is measured: --path of probe and plan. */
#ifndef SL_RUNTIME_PROBE_PATH_H
#define SL_RUNTIME_PROBE_PATH_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/file.h"

/* An m4 expert of K3: what a drive is asked for when nobody says otherwise. */
#define SL_PROBE_RECORD UINT64_C(17043456)

struct sl_probe_path {
    char path[SL_PATH_MAX]; /* the largest bank of a pack, the file, or the folder */
    uint64_t record_bytes;
    bool writes; /* a temporary file will be made in the folder */
};

/* record_bytes 0: the pack's largest record, or SL_PROBE_RECORD. A bank that holds too few records to
 * be read at random is passed over for a temporary file beside the pack. SL_E_ARG when path is neither folder
 * nor file, SL_E_PACK when it is a pack that cannot be opened. */
int sl_probe_path_find(struct sl_probe_path *out, const char *path, uint64_t record_bytes,
                       struct sl_err *err);

#endif
