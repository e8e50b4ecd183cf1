/* sluice replay: hit rate against cache size for a recorded trace, by every policy and by the optimum.
 *
 * A cache size is a number of slots, or bytes where --record says how large a slot is: a trace knows
 * routes, not formats. The table's last line holds every expert that was ever asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/size.h"
#include "offload/evict.h"
#include "offload/trace_replay.h"
#include "runtime/args.h"
#include "runtime/commands.h"
#include "runtime/replay_svg.h"
#include "runtime/report.h"

enum { AUTO_POINTS = 12 };

struct replay_flags {
    struct sl_arg_list cache;
    uint64_t record_bytes;
    const char *svg;
    bool json;
};

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* From what one step needs to all there is, each a little more than the last. */
static void choose_sizes(struct sl_replay_curves *c, uint64_t least, uint64_t most)
{
    for (int i = 0; i <= AUTO_POINTS; i++) {
        double part = (double)i / AUTO_POINTS;
        uint64_t slots = least + (uint64_t)((double)(most - least) * part * part + 0.5);
        if (c->n && c->slots[c->n - 1] == slots) continue;
        c->slots[c->n++] = (uint32_t)slots;
    }
}

static int read_sizes(struct sl_replay_curves *c, const struct replay_flags *f, struct sl_err *err)
{
    for (int i = 0; i < f->cache.n; i++) {
        const char *text = f->cache.v[i];
        uint64_t n;
        bool slots = text[0] && text[strspn(text, "0123456789")] == '\0';
        if (!sl_parse_size(text, &n))
            return sl_fail(err, SL_E_ARG, NULL, "--cache", "'%.40s' is neither slots nor a size",
                           text);
        if (!slots && !f->record_bytes)
            return sl_fail(err, SL_E_ARG, NULL, "--cache",
                           "%.40s in bytes needs --record, the size of one expert", text);
        if (!slots) n /= f->record_bytes;
        if (n < 1 || n > UINT32_MAX - 1)
            return sl_fail(err, SL_E_ARG, NULL, "--cache", "%.40s is %llu slots", text,
                           (unsigned long long)n);
        c->slots[c->n++] = (uint32_t)n;
    }
    qsort(c->slots, (size_t)c->n, sizeof *c->slots, ascending);
    return 0;
}

static int run_all(struct sl_replay_curves *c, const struct sl_replay *r, struct sl_err *err)
{
    while (sl_evict_names[c->n_policies] && c->n_policies + 1 < SL_REPLAY_POLICIES) {
        c->policies[c->n_policies] = sl_evict_names[c->n_policies];
        c->n_policies++;
    }
    c->policies[c->n_policies++] = SL_REPLAY_BEST;
    for (int p = 0; p < c->n_policies; p++)
        for (int i = 0; i < c->n; i++) {
            uint64_t hits;
            int rc = sl_replay_run(r, c->policies[p], c->slots[i], &hits, err);
            if (rc) return rc;
            c->rate[p][i] = c->requests ? (double)hits / (double)c->requests : 0;
        }
    return 0;
}

static int print_table(const struct sl_replay_curves *c, uint64_t record, struct sl_err *err)
{
    char size[32];
    printf("%llu experts asked for, %llu of %llu different ones\n%10s %8s",
           (unsigned long long)c->requests, (unsigned long long)c->distinct,
           (unsigned long long)c->all, "slots", "of all");
    if (record) printf(" %10s", "memory");
    for (int p = 0; p < c->n_policies; p++) printf(" %8s", c->policies[p]);
    for (int i = 0; i < c->n; i++) {
        printf("\n%10u %6.2f %%", c->slots[i], 100.0 * c->slots[i] / (double)c->all);
        if (record) printf(" %10s", sl_format_bytes(size, sizeof size, c->slots[i] * record));
        for (int p = 0; p < c->n_policies; p++) printf(" %6.2f %%", 100 * c->rate[p][i]);
    }
    printf("\n");
    return sl_cmd_flush(err);
}

static int print_json(const struct sl_replay_curves *c, uint64_t record, struct sl_err *err)
{
    cJSON *o = sl_report_open(1);
    cJSON *points = o ? cJSON_AddArrayToObject(o, "points") : NULL;
    if (o) {
        sl_report_u64(o, "requests", c->requests);
        sl_report_u64(o, "distinct", c->distinct);
        sl_report_u64(o, "experts", c->all);
    }
    for (int i = 0; points && i < c->n; i++) {
        cJSON *x = cJSON_CreateObject();
        cJSON_AddItemToArray(points, x);
        sl_report_u64(x, "slots", c->slots[i]);
        if (record) sl_report_u64(x, "bytes", c->slots[i] * record);
        for (int p = 0; p < c->n_policies; p++) {
            char key[40];
            snprintf(key, sizeof key, "%s_hit_rate", c->policies[p]);
            sl_report_f64(x, key, c->rate[p][i]);
        }
    }
    return sl_report_print(o, err);
}

static int replay(const struct replay_flags *f, const char *path, struct sl_err *err)
{
    struct sl_trace *t = NULL;
    struct sl_replay *r = NULL;
    struct sl_replay_curves *c = calloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "out of memory");
    int rc = read_sizes(c, f, err);
    if (!rc) rc = sl_trace_read(&t, path, err);
    if (!rc && !t->n_records) rc = sl_fail(err, SL_E_SOURCE, path, NULL, "the trace is empty");
    if (!rc) rc = sl_replay_open(&r, t, err);
    if (!rc) {
        c->requests = sl_replay_requests(r);
        c->distinct = sl_replay_distinct(r);
        c->all = sl_trace_experts(t);
        if (!c->n) choose_sizes(c, sl_replay_largest(r), c->distinct);
        rc = run_all(c, r, err);
    }
    if (!rc && f->svg) rc = sl_replay_svg(c, path, f->svg, err);
    if (!rc)
        rc = f->json ? print_json(c, f->record_bytes, err) : print_table(c, f->record_bytes, err);
    sl_replay_close(r);
    sl_trace_free(t);
    free(c);
    return rc;
}

int sl_cmd_replay(int argc, char **argv)
{
    struct replay_flags f = {.svg = NULL};
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--cache",
         .kind = SL_ARG_REPEAT,
         .out = &f.cache,
         .group = "Memory",
         .metavar = "SIZE",
         .help = "slots (512), or bytes with --record (8G); may be repeated",
         .def = "a row of sizes up to all experts used"},
        {.name = "--record",
         .kind = SL_ARG_SIZE,
         .out = &f.record_bytes,
         .group = "Memory",
         .metavar = "BYTES",
         .help = "size of one expert (`inspect PACK` tells), for sizes in bytes"},
        {.name = "--svg",
         .kind = SL_ARG_STRING,
         .out = &f.svg,
         .group = "Output",
         .metavar = "F",
         .help = "draw the curves"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &f.json,
         .group = "Output",
         .help = "one JSON object"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "replay",
        .about =
            "How many reads a cache saves: hit rate against size for a trace of `run --trace`, "
            "by policy and at best.",
        .example = "sluice replay routes.trace --cache 40G --cache 80G --record 17547264",
        .pos = {"TRACE"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .notes = "lrfu and lru are the policies of --evict, the same code. belady knows the whole "
                 "trace\nbeforehand: no policy can do better.\n",
    };
    struct sl_err err = {0};
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    return replay(&f, pos[0], &err) ? sl_cmd_fail(&err) : 0;
}
