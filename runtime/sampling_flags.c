/* See sampling_flags.h: a row is written once, so that its range and its help are the same everywhere. */
#include "runtime/sampling_flags.h"

struct sl_arg_opt sl_flag_temp(double *out)
{
    return (struct sl_arg_opt){.name = "--temp",
                               .kind = SL_ARG_FLOAT,
                               .out = out,
                               .group = "Text",
                               .metavar = "T",
                               .help = "temperature; 0 picks the most likely token",
                               .def = "1.0",
                               .min = 0,
                               .max = 1000};
}

struct sl_arg_opt sl_flag_top_p(double *out)
{
    return (struct sl_arg_opt){.name = "--top-p",
                               .kind = SL_ARG_FLOAT,
                               .out = out,
                               .group = "Text",
                               .metavar = "P",
                               .help = "draw from the smallest set with this probability",
                               .def = "0.95",
                               .min = 1e-6,
                               .max = 1};
}

struct sl_arg_opt sl_flag_seed(int64_t *out)
{
    return (struct sl_arg_opt){.name = "--seed",
                               .kind = SL_ARG_INT,
                               .out = out,
                               .group = "Text",
                               .metavar = "N",
                               .help = "same seed, same text",
                               .def = "0"};
}
