/* Hit-rate curves as a picture that any browser shows. */
#ifndef SL_RUNTIME_REPLAY_SVG_H
#define SL_RUNTIME_REPLAY_SVG_H

#include <stdint.h>
#include "base/err.h"
#include "runtime/args.h"

#define SL_REPLAY_POLICIES 8
struct sl_replay_curves {
    uint64_t requests, distinct;
    uint64_t all; /* experts of the model's layers that were routed */
    int n, n_policies;
    uint32_t slots[SL_ARG_LIST_MAX]; /* ascending */
    const char *policies[SL_REPLAY_POLICIES];
    double rate[SL_REPLAY_POLICIES][SL_ARG_LIST_MAX]; /* 0 to 1 */
};

/* title: the trace's name. SL_E_IO. */
int sl_replay_svg(const struct sl_replay_curves *c, const char *title, const char *path,
                  struct sl_err *err);

#endif
