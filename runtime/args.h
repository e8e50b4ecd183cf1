/* Command lines as tables: one row an option, one parser, one help page layout.
 *
 * A command fills an array of rows that point at its own variables, hands it over, and reads the
 * variables. Help prints an example first, then options grouped by purpose, to stdout; wrong usage is
 * one line on stderr that names option and value, exit 2. Values: `--opt=value`, `--opt value`, `-n 5`,
 * `-n5`. `--` ends options; `-` alone is an argument. The last of two wins, except for lists. */
#ifndef SL_RUNTIME_ARGS_H
#define SL_RUNTIME_ARGS_H

#include <stdbool.h>
#include <stdint.h>

enum sl_arg_kind {
    SL_ARG_FLAG,   /* out: bool *, set to true */
    SL_ARG_INT,    /* out: int64_t *, within [min, max] */
    SL_ARG_SIZE,   /* out: uint64_t *, bytes: 8G, 8GiB, 8GB */
    SL_ARG_FLOAT,  /* out: double *, within [min, max] */
    SL_ARG_STRING, /* out: const char ** */
    SL_ARG_REPEAT  /* out: struct sl_arg_list *, every use adds one */
};

#define SL_ARG_LIST_MAX 64
struct sl_arg_list {
    const char *v[SL_ARG_LIST_MAX];
    int n;
};

struct sl_arg_opt {
    const char *name; /* "--threads", "-n" */
    enum sl_arg_kind kind;
    void *out;
    const char *group;   /* heading of the help page; rows of one group stand together */
    const char *metavar; /* "SIZE"; NULL for a flag */
    const char *help;    /* one line, with the unit */
    const char *def;     /* default as text, NULL for none */
    double min, max;     /* of INT and FLOAT; both 0: any (INT: not negative) */
    const char *const
        *choices; /* of STRING: NULL-terminated list of what is accepted; may be NULL */
    bool *given;  /* set when the option was used; may be NULL */
};

#define SL_ARG_POS_MAX 4
struct sl_arg_cmd {
    const char *name;                    /* "run" */
    const char *about;                   /* one sentence */
    const char *example;                 /* "sluice run k3.pack -p 'Once upon a time'" */
    const char *pos[SL_ARG_POS_MAX + 1]; /* names of arguments in order, NULL-terminated */
    int min_pos;                         /* how many of them must be given */
    const struct sl_arg_opt *opts;
    int n_opts;
    const struct sl_arg_opt *more; /* a second table (engine flags), may be NULL */
    int n_more;
    const char *notes; /* printed after the options, may be NULL */
};

/* Go on with the command; any other value is the exit status. */
#define SL_ARGS_GO (-1)

/* argv[0] is the command's name. Strings stay owned by argv. pos[i] is NULL where not given. */
int sl_args_parse(const struct sl_arg_cmd *cmd, int argc, char **argv,
                  const char *pos[SL_ARG_POS_MAX]);

/* One line "sluice run: ..." on stderr with a hint at --help; returns 2. */
int sl_args_usage(const struct sl_arg_cmd *cmd, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The word of list[n] nearest to `word`, NULL when none is near (for "did you mean"). */
const char *sl_args_nearest(const char *word, const char *const *list, int n);

#define SL_ARG_COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

#endif
