/* See sampling_flags.h: a row is written once, so that its range and its help are the same everywhere. */
#include "runtime/sampling_flags.h"

#include <stdlib.h>
#include <string.h>

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

enum { AUTO_GUESSES = 6 };

struct sl_arg_opt sl_flag_draft(const char **out)
{
    return (struct sl_arg_opt){.name = "--draft",
                               .kind = SL_ARG_STRING,
                               .out = out,
                               .group = "Engine",
                               .metavar = "N",
                               .help = "guess tokens from repetitions of the text, the same text "
                                       "sooner: off, auto (where it pays), 1 to 16",
                               .def = "off"};
}

void sl_flag_draft_set(const char *value, sluice_options *o)
{
    char *end;
    o->draft = 0;
    if (!value || strcmp(value, "off") == 0) return;
    o->draft_auto = strcmp(value, "auto") == 0;
    const long n = strtol(value, &end, 10);
    o->draft = o->draft_auto                                             ? AUTO_GUESSES
               : end == value || *end || n < 1 || n > SLUICE_MAX_GUESSES ? SLUICE_MAX_GUESSES + 1
                                                                         : (int)n;
}
