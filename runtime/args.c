/* The option parser and the help page of every command: see args.h.
 *
 * Why not getopt_long: it prints its own messages, knows no types and no groups, and cannot say which
 * option was meant. Tables are a few dozen rows, so everything is a linear walk. */
#include "runtime/args.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/size.h"

enum { HELP_COLUMN = 21, EDIT_MAX = 64 };

static const struct sl_arg_opt *row(const struct sl_arg_cmd *c, int i)
{
    return i < c->n_opts ? &c->opts[i] : &c->more[i - c->n_opts];
}

static int n_rows(const struct sl_arg_cmd *c)
{
    return c->n_opts + c->n_more;
}

int sl_args_usage(const struct sl_arg_cmd *cmd, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* what a user typed goes back to a terminal: no control bytes */
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    fprintf(stderr, "sluice %s: %s; see 'sluice %s --help'\n", cmd->name, text, cmd->name);
    return 2;
}

/* Levenshtein distance of short words; too long ones count as far. */
static int edit_distance(const char *a, const char *b)
{
    size_t na = strlen(a);
    size_t nb = strlen(b);
    if (na >= EDIT_MAX || nb >= EDIT_MAX) return EDIT_MAX;
    int d[EDIT_MAX + 1];
    for (size_t j = 0; j <= nb; j++) d[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = d[0];
        d[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (d[j] + 1 < best) best = d[j] + 1;
            if (d[j - 1] + 1 < best) best = d[j - 1] + 1;
            diagonal = d[j];
            d[j] = best;
        }
    }
    return d[nb];
}

const char *sl_args_nearest(const char *word, const char *const *list, int n)
{
    const char *best = NULL;
    int best_d = 3; /* three typos are another word */
    for (int i = 0; i < n; i++) {
        int d = edit_distance(word, list[i]);
        if (d < best_d && d < (int)strlen(list[i]) - 1) {
            best_d = d;
            best = list[i];
        }
    }
    return best;
}

static void print_option(const struct sl_arg_opt *o)
{
    char left[96];
    snprintf(left, sizeof left, "%s%s%s", o->name, o->metavar ? " " : "",
             o->metavar ? o->metavar : "");
    if (strlen(left) >= HELP_COLUMN - 2)
        printf("  %s\n%*s%s", left, HELP_COLUMN, "", o->help);
    else
        printf("  %-*s%s", HELP_COLUMN - 2, left, o->help);
    if (o->def) printf(" [default: %s]", o->def);
    printf("\n");
}

static void print_help(const struct sl_arg_cmd *c)
{
    printf("Example: %s\n\nUsage: sluice %s", c->example, c->name);
    for (int i = 0; c->pos[i]; i++) printf(i < c->min_pos ? " %s" : " [%s]", c->pos[i]);
    if (n_rows(c)) printf(" [options]");
    printf("\n%s\n", c->about);
    for (int i = 0; i < n_rows(c); i++) {
        const char *group = row(c, i)->group;
        bool seen = false;
        for (int j = 0; j < i && !seen; j++) seen = strcmp(row(c, j)->group, group) == 0;
        if (seen) continue;
        printf("\n%s\n", group);
        for (int j = i; j < n_rows(c); j++)
            if (strcmp(row(c, j)->group, group) == 0) print_option(row(c, j));
    }
    printf("\n  --help             this page\n");
    if (c->notes) printf("\n%s\n", c->notes);
}

static int set_int(const struct sl_arg_cmd *c, const struct sl_arg_opt *o, const char *value)
{
    bool bounded = o->min != 0 || o->max != 0;
    int64_t lo = bounded ? (int64_t)o->min : 0;
    int64_t hi = bounded ? (int64_t)o->max : INT64_MAX;
    if (sl_parse_i64(value, lo, hi, o->out)) return SL_ARGS_GO;
    if (!bounded)
        return sl_args_usage(c, "%s: '%s' is not a whole number of at least 0", o->name, value);
    return sl_args_usage(c, "%s: '%s' is not a whole number from %lld to %lld", o->name, value,
                         (long long)lo, (long long)hi);
}

static int set_string(const struct sl_arg_cmd *c, const struct sl_arg_opt *o, const char *value)
{
    const char **out = o->out;
    *out = value;
    if (!o->choices) return SL_ARGS_GO;
    char all[256] = "";
    size_t used = 0;
    for (int i = 0; o->choices[i]; i++) {
        if (strcmp(o->choices[i], value) == 0) return SL_ARGS_GO;
        int n = snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", o->choices[i]);
        if (n > 0 && (size_t)n < sizeof all - used) used += (size_t)n;
    }
    return sl_args_usage(c, "%s: '%s' is not available in this build (%s)", o->name, value, all);
}

static int set_value(const struct sl_arg_cmd *c, const struct sl_arg_opt *o, const char *value)
{
    struct sl_arg_list *list;
    bool bounded = o->min != 0 || o->max != 0;
    switch (o->kind) {
    case SL_ARG_FLAG:
        *(bool *)o->out = true;
        return SL_ARGS_GO;
    case SL_ARG_INT:
        return set_int(c, o, value);
    case SL_ARG_SIZE:
        if (sl_parse_size(value, o->out)) return SL_ARGS_GO;
        return sl_args_usage(c, "%s: '%s' is not a size such as 8G, 8GiB or 8GB", o->name, value);
    case SL_ARG_FLOAT:
        if (sl_parse_f64(value, bounded ? o->min : -1e300, bounded ? o->max : 1e300, o->out))
            return SL_ARGS_GO;
        if (!bounded) return sl_args_usage(c, "%s: '%s' is not a number", o->name, value);
        return sl_args_usage(c, "%s: '%s' is not a number from %g to %g", o->name, value, o->min,
                             o->max);
    case SL_ARG_STRING:
        return set_string(c, o, value);
    case SL_ARG_REPEAT:
        list = o->out;
        if (list->n == SL_ARG_LIST_MAX)
            return sl_args_usage(c, "%s: given more than %d times", o->name, SL_ARG_LIST_MAX);
        list->v[list->n++] = value;
        return SL_ARGS_GO;
    }
    assert(!"unknown kind of option");
    return 2;
}

/* The row that `arg` names and where a value attached to it begins (NULL: the next argument). */
static const struct sl_arg_opt *find(const struct sl_arg_cmd *c, const char *arg,
                                     const char **attached)
{
    const char *eq = strchr(arg, '=');
    size_t len = eq ? (size_t)(eq - arg) : strlen(arg);
    *attached = eq ? eq + 1 : NULL;
    for (int i = 0; i < n_rows(c); i++) {
        const char *name = row(c, i)->name;
        if (strlen(name) == len && memcmp(name, arg, len) == 0) return row(c, i);
    }
    if (arg[1] == '-' || !arg[2]) return NULL;
    for (int i = 0; i < n_rows(c); i++) { /* -n5 */
        const struct sl_arg_opt *o = row(c, i);
        if (o->name[1] != arg[1] || o->name[2] || o->kind == SL_ARG_FLAG) continue;
        *attached = arg + 2;
        return o;
    }
    return NULL;
}

static int unknown(const struct sl_arg_cmd *c, const char *arg)
{
    const char *names[128];
    int n = 0;
    for (int i = 0; i < n_rows(c) && n < SL_ARG_COUNT(names); i++) names[n++] = row(c, i)->name;
    char word[EDIT_MAX];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(arg, "="), arg);
    const char *near = sl_args_nearest(word, names, n);
    if (near) return sl_args_usage(c, "unknown option %s (did you mean %s?)", arg, near);
    return sl_args_usage(c, "unknown option %s", arg);
}

int sl_args_parse(const struct sl_arg_cmd *c, int argc, char **argv,
                  const char *pos[SL_ARG_POS_MAX])
{
    int n_pos = 0;
    int max_pos = 0;
    while (c->pos[max_pos]) max_pos++;
    for (int i = 0; i < SL_ARG_POS_MAX; i++) pos[i] = NULL;

    /* Asked-for help wins over everything, also over a mistake that stands before it. */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(c);
            return 0;
        }
    }
    bool options = true;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (options && strcmp(arg, "--") == 0) {
            options = false;
            continue;
        }
        if (!options || arg[0] != '-' || !arg[1]) {
            if (n_pos == max_pos) return sl_args_usage(c, "unexpected argument '%s'", arg);
            pos[n_pos++] = arg;
            continue;
        }
        const char *value;
        const struct sl_arg_opt *o = find(c, arg, &value);
        if (!o) return unknown(c, arg);
        if (o->kind == SL_ARG_FLAG && value)
            return sl_args_usage(c, "%s takes no value, got '%s'", o->name, value);
        if (o->kind != SL_ARG_FLAG && !value) {
            if (i + 1 == argc)
                return sl_args_usage(c, "%s needs a value (%s)", o->name,
                                     o->metavar ? o->metavar : "VALUE");
            value = argv[++i];
        }
        int rc = set_value(c, o, value);
        if (rc != SL_ARGS_GO) return rc;
        if (o->given) *o->given = true;
    }
    if (n_pos < c->min_pos) return sl_args_usage(c, "missing %s", c->pos[n_pos]);
    return SL_ARGS_GO;
}
