/* Engine flags shared by run, logits, eval and bench, and the statistics that --stats and --json carry.
 *
 * Only flags that do something in this build are listed; a device or I/O method of another build is
 * refused by name. */
#ifndef SL_RUNTIME_ENGINE_FLAGS_H
#define SL_RUNTIME_ENGINE_FLAGS_H

#include <cjson/cJSON.h>
#include "runtime/args.h"
#include "runtime/engine_error.h"
#include "runtime/sluice.h"

struct sl_engine_flags {
    const char *device, *io, *evict, *lookahead, *check, *trace, *stats;
    bool exact, fast; /* exact wins */
    int64_t threads, ctx, chunk;
    uint64_t ram_bytes;
    double bits;
    struct sl_arg_list bank_dirs;
};

#define SL_N_ENGINE_FLAGS 15
/* Zeroes f and fills rows, which point into f: both must outlive the parse. */
void sl_engine_flags_init(struct sl_engine_flags *f, struct sl_arg_opt rows[SL_N_ENGINE_FLAGS]);
/* The lists stay owned by f. */
sluice_options sl_engine_flags_options(const struct sl_engine_flags *f);

/* Adds the statistics of a session (keys of design section 8) and its groups to obj. */
void sl_engine_stats_json(cJSON *obj, const sluice_session *s);
/* What a session leaves behind at its end: the trace of --trace takes its name, and statistics go to
 * f->stats when --stats was given, as an object of their own; "-" is a table on stderr. */
struct sl_err;
int sl_engine_stats_save(const struct sl_engine_flags *f, sluice_session *s, struct sl_err *err);

/* tokens / seconds, 0 when nothing was timed */
double sl_rate(uint64_t tokens, double seconds);

#endif
