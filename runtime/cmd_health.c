/* sluice health: where the router's load went after quantizing, from two statistics files.
 *
 * Both must come from the same text, one through the lossless pack and one through the other; what differs
 * is then the packs alone. Flips of single tokens are eval's to count (eval --ref). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "offload/config.h"
#include "quant/health.h"
#include "runtime/args.h"
#include "runtime/commands.h"
#include "runtime/report.h"

#define EXPERTS_MAX 16384
#define META_MAX    (1u << 20)

/* The section "totals" (docs/formats/stats.md). */
struct totals {
    uint64_t tokens, windows;
    uint32_t n_layers, latent, width, n_experts, top_k, per_expert;
};

struct side {
    const char *path;
    struct sl_stats_in *in;
    struct totals t;
    char ids[65]; /* sha256 of the text's tokens */
    uint64_t *counts;
    uint32_t *margins;
};

static int read_ids(struct side *s, struct sl_err *err)
{
    const uint64_t n = sl_stats_bytes(s->in, "meta");
    const char *ids = NULL;
    cJSON *tree = NULL;
    if (!n || n > META_MAX)
        return sl_fail(err, SL_E_SOURCE, s->path, "meta", "%llu bytes", (unsigned long long)n);
    char *text = malloc(n);
    if (!text) return sl_fail(err, SL_E_NOMEM, s->path, "meta", "out of memory");
    int rc = sl_stats_get(s->in, "meta", text, n, err);
    if (!rc) rc = sl_json_parse(&tree, text, n, s->path, SL_E_SOURCE, err);
    if (!rc) rc = sl_json_str(tree, "ids", &ids, s->path, SL_E_SOURCE, err);
    if (!rc) snprintf(s->ids, sizeof s->ids, "%s", ids);
    cJSON_Delete(tree);
    free(text);
    return rc;
}

static int open_side(struct side *s, const char *path, struct sl_err *err)
{
    s->path = path;
    int rc = sl_stats_open(&s->in, path, err);
    if (!rc) rc = sl_stats_get(s->in, "totals", &s->t, sizeof s->t, err);
    if (!rc && (s->t.n_layers < 1 || s->t.n_layers > SL_MAX_LAYERS || s->t.n_experts < 1 ||
                s->t.n_experts > EXPERTS_MAX))
        rc = sl_fail(err, SL_E_SOURCE, path, "totals", "%u layers of %u experts", s->t.n_layers,
                     s->t.n_experts);
    if (!rc) rc = read_ids(s, err);
    if (rc) return rc;
    s->counts = malloc(s->t.n_experts * sizeof *s->counts);
    s->margins = malloc((size_t)s->t.n_experts * SL_MARGIN_BINS * sizeof *s->margins);
    if (s->counts && s->margins) return 0;
    return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
}

static void close_side(struct side *s)
{
    sl_stats_close(s->in);
    free(s->counts);
    free(s->margins);
}

/* False: the layer has no routed experts. */
static int read_layer(struct side *s, uint32_t layer, bool *has, struct sl_err *err)
{
    char name[SL_STATS_NAME];
    const size_t n = s->t.n_experts;
    snprintf(name, sizeof name, "L%03u.counts", layer);
    *has = sl_stats_has(s->in, name);
    if (!*has) return 0;
    int rc = sl_stats_get(s->in, name, s->counts, n * sizeof *s->counts, err);
    snprintf(name, sizeof name, "L%03u.margins", layer);
    if (!rc)
        rc = sl_stats_get(s->in, name, s->margins, n * SL_MARGIN_BINS * sizeof *s->margins, err);
    return rc;
}

static void print_layer(uint32_t layer, const struct sl_health_layer *h)
{
    printf("%-6u %8.4f %8.2f %8.2f %9.5f %9.5f  expert %d: %.4f -> %.4f\n", layer, h->moved,
           h->most_before, h->most_after, h->bias_rms, h->bias_most, h->most_moved,
           h->most_moved_before, h->most_moved_after);
}

static void put_layer(cJSON *list, uint32_t layer, const struct sl_health_layer *h)
{
    cJSON *v = cJSON_CreateObject();
    sl_report_u64(v, "layer", layer);
    sl_report_f64(v, "moved", h->moved);
    sl_report_f64(v, "busiest_before", h->most_before);
    sl_report_f64(v, "busiest_after", h->most_after);
    sl_report_f64(v, "bias_rms", h->bias_rms);
    sl_report_f64(v, "bias_most", h->bias_most);
    sl_report_u64(v, "most_moved_expert", (uint64_t)h->most_moved);
    sl_report_f64(v, "most_moved_before", h->most_moved_before);
    sl_report_f64(v, "most_moved_after", h->most_moved_after);
    cJSON_AddItemToArray(list, v);
}

static int report(struct side *a, struct side *b, bool json, struct sl_err *err)
{
    cJSON *o = json ? sl_report_open(1) : NULL;
    cJSON *list = NULL;
    int rc = 0;
    if (json && !o) return sl_report_print(o, err);
    if (a->t.n_layers != b->t.n_layers || a->t.n_experts != b->t.n_experts ||
        a->t.top_k != b->t.top_k)
        rc = sl_fail(err, SL_E_SOURCE, b->path, "totals", "another model than %s", a->path);
    else if (strcmp(a->ids, b->ids) != 0 || a->t.tokens != b->t.tokens)
        rc = sl_fail(err, SL_E_SOURCE, b->path, "meta", "taken from another text than %s", a->path);
    if (!rc && json) {
        sl_report_u64(o, "tokens", a->t.tokens);
        list = cJSON_AddArrayToObject(o, "layers");
    } else if (!rc) {
        printf("%-6s %8s %8s %8s %9s %9s  %s\n", "layer", "moved", "busiest", "after", "bias rms",
               "most", "moved most");
    }
    for (uint32_t l = 0; l < a->t.n_layers && !rc; l++) {
        bool in_a, in_b = false;
        struct sl_health_layer h;
        rc = read_layer(a, l, &in_a, err);
        if (!rc) rc = read_layer(b, l, &in_b, err);
        if (!rc && in_a != in_b)
            rc = sl_fail(err, SL_E_SOURCE, b->path, "layer", "%u: another model than %s", l,
                         a->path);
        if (rc || !in_a) continue;
        sl_health_layer(&h, a->counts, b->counts, b->margins, (int)a->t.n_experts);
        if (json)
            put_layer(list, l, &h);
        else
            print_layer(l, &h);
    }
    if (rc) {
        cJSON_Delete(o);
        return rc;
    }
    if (json) return sl_report_print(o, err);
    printf("moved: share of the choices that went to other experts; busiest: load of the busiest "
           "over the "
           "mean;\nbias: what would restore the loads, as added to the selection score\n");
    return sl_cmd_flush(err);
}

int sl_cmd_health(int argc, char **argv)
{
    bool json = false;
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {{.name = "--json",
                                       .kind = SL_ARG_FLAG,
                                       .out = &json,
                                       .group = "Output",
                                       .help = "one JSON object"}};
    const struct sl_arg_cmd cmd = {
        .name = "health",
        .about = "Says how the router's load moved between two packs, from `calibrate` statistics "
                 "of the "
                 "same text.",
        .example = "sluice health k3-m4.stats k3-w26.stats",
        .pos = {"BEFORE", "AFTER"},
        .min_pos = 2,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    struct side a = {.in = NULL}, b = {.in = NULL};
    struct sl_err err = {0};
    int rc = open_side(&a, pos[0], &err);
    if (!rc) rc = open_side(&b, pos[1], &err);
    if (!rc) rc = report(&a, &b, json, &err);
    close_side(&a);
    close_side(&b);
    return rc ? sl_cmd_fail(&err) : 0;
}
