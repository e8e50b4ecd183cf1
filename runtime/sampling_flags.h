/* Option rows of commands that draw tokens: run, chat and serve. */
#ifndef SL_RUNTIME_SAMPLING_FLAGS_H
#define SL_RUNTIME_SAMPLING_FLAGS_H

#include "runtime/args.h"
#include "runtime/sluice.h"

/* Group "Text". *out keeps what the command set it to unless the option is given; the help page says 1.0,
 * 0.95 and 0. */
struct sl_arg_opt sl_flag_temp(double *out);
struct sl_arg_opt sl_flag_top_p(double *out);
struct sl_arg_opt sl_flag_seed(int64_t *out);

/* --draft, group "Engine": a number, auto or off; to the options of the engine, which refuses what is none
 * of them. */
struct sl_arg_opt sl_flag_draft(const char **out);
void sl_flag_draft_set(const char *value, sluice_options *o);

#endif
