/* Choosing ranks, and the plan in pack.json (rank_plan.h). */
#define _GNU_SOURCE
#include "offload/rank_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "offload/pack.h"
#include "offload/pack_sums.h"

#define MANIFEST_MAX ((uint64_t)64 << 20)
#define BITS_MAX     32.0
#define KL_MAX       1e6

int sl_rank_plan_new(struct sl_rank_plan **out, const struct sl_config *c, struct sl_err *err)
{
    struct sl_rank_plan *r = calloc(1, sizeof *r);
    *out = NULL;
    if (r) {
        r->n_layers = c->n_layers;
        r->top_k = c->top_k;
        r->drop = calloc((size_t)c->n_layers, sizeof *r->drop);
        r->share = calloc((size_t)c->n_layers * (size_t)c->top_k, sizeof *r->share);
    }
    if (!r || !r->drop || !r->share) {
        sl_rank_plan_close(r);
        return sl_fail(err, SL_E_NOMEM, NULL, "ranks", "out of memory");
    }
    *out = r;
    return 0;
}

void sl_rank_plan_close(struct sl_rank_plan *r)
{
    if (!r) return;
    free(r->drop);
    free(r->share);
    free(r);
}

/* ------------------------------------------------------------------ choosing */

void sl_rank_bits(const struct sl_pack *p, int layer, double *base, double *whole)
{
    const struct sl_bank *b = &p->banks[p->bank_of[layer]];
    double sum[2] = {0, 0};
    for (uint32_t x = 0; x < b->n_experts; x++)
        for (int m = 0; m < SL_N_MATS; m++) { /* three matrices of as many weights each */
            const enum sl_fmt fmt = (enum sl_fmt)b->entries[x].fmt[m];
            sum[0] += sl_fmt_base_bits(fmt);
            sum[1] += sl_fmt_bits(fmt);
        }
    *base = sum[0] / (SL_N_MATS * (double)b->n_experts);
    *whole = sum[1] / (SL_N_MATS * (double)b->n_experts);
}

/* Mean bytes of a layer's records, by base planes and whole. */
static void mean_bytes(const struct sl_pack *p, int layer, double *base, double *whole)
{
    const struct sl_bank *b = &p->banks[p->bank_of[layer]];
    double sum[2] = {0, 0};
    for (uint32_t x = 0; x < b->n_experts; x++) {
        sum[0] += b->entries[x].base_bytes;
        sum[1] += b->entries[x].bytes;
    }
    *base = sum[0] / b->n_experts;
    *whole = sum[1] / b->n_experts;
}

/* Straight lines between what was measured. */
static double kl_at(const struct sl_rank_plan *r, double bits)
{
    if (!r || !r->n_points) return -1;
    int i = 0;
    while (i < r->n_points && r->points[i].bits < bits) i++;
    if (i == 0) return r->points[0].kl;
    if (i == r->n_points) return r->points[i - 1].kl;
    const struct sl_rank_point *a = &r->points[i - 1], *b = &r->points[i];
    return a->kl + (b->kl - a->kl) * (bits - a->bits) / (b->bits - a->bits);
}

struct layer_cost {
    double base, whole; /* bits */
    bool is_moe;
};

/* The layer whose next rank gains most for its bits; -1 when none is left that fits. */
static int best_layer(const struct sl_rank_plan *r, const struct layer_cost *cost, const int *ranks,
                      double room)
{
    int best = -1;
    double best_gain = 0;
    for (int l = 0; l < r->n_layers; l++) {
        if (!cost[l].is_moe || ranks[l] == r->top_k) continue;
        const double bits = (cost[l].whole - cost[l].base) / r->top_k;
        const double gain = r->drop[l] * r->share[(size_t)l * (size_t)r->top_k + (size_t)ranks[l]];
        if (bits > room || (best >= 0 && gain / bits <= best_gain)) continue;
        best = l;
        best_gain = gain / bits;
    }
    return best;
}

int sl_rank_choose(const struct sl_pack *p, const struct sl_rank_plan *r, double bits,
                   struct sl_rank_choice *out, struct sl_err *err)
{
    const int n_layers = p->cfg.n_layers, k = p->cfg.top_k;
    struct layer_cost cost[SL_MAX_LAYERS] = {{0}};
    double base = 0, whole = 0;
    int n_moe = 0;
    if (!bits && r) bits = r->bits;
    for (int l = 0; l < n_layers; l++) {
        out->ranks[l] = k;
        if (p->bank_of[l] < 0) continue;
        sl_rank_bits(p, l, &cost[l].base, &cost[l].whole);
        cost[l].is_moe = cost[l].whole > cost[l].base;
        base += cost[l].base;
        whole += cost[l].whole;
        n_moe++;
    }
    /* Totals are over layers; a hair of rounding must not cost a rank. */
    const double room = bits * n_moe + 1e-9;
    double total = whole;
    if (bits && room < whole) {
        if (!r && room > base + 1e-6)
            return sl_fail(err, SL_E_ARG, NULL, "--bits",
                           "%g: the pack has no plan of ranks between %g and %g; 'sluice calibrate "
                           "PACK TEXT --ranks REF' measures one",
                           bits, base / n_moe, whole / n_moe);
        total = base;
        for (int l = 0; l < n_layers; l++)
            if (cost[l].is_moe) out->ranks[l] = 0;
        for (int l; r && (l = best_layer(r, cost, out->ranks, room - total)) >= 0;) {
            out->ranks[l]++;
            total += (cost[l].whole - cost[l].base) / k;
        }
    }
    out->bits = n_moe ? total / n_moe : 0;
    out->kl = kl_at(r, out->bits);
    double bytes = 0;
    for (int l = 0; l < n_layers; l++) {
        double b, w;
        if (p->bank_of[l] < 0) continue;
        mean_bytes(p, l, &b, &w);
        bytes += out->ranks[l] * w + (k - out->ranks[l]) * b;
    }
    out->token_bytes = (uint64_t)bytes;
    return 0;
}

/* ------------------------------------------------------------------ pack.json */

static int read_numbers(const cJSON *list, double *to, int n, double max, const char *file,
                        const char *what, struct sl_err *err)
{
    int i = 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n)
        return sl_fail(err, SL_E_PACK, file, what, "must be a list of %d numbers", n);
    for (const cJSON *v = list->child; v; v = v->next, i++) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble <= max))
            return sl_fail(err, SL_E_PACK, file, what, "entry %d is not a number from 0 to %g", i,
                           max);
        to[i] = v->valuedouble;
    }
    return 0;
}

static int read_points(struct sl_rank_plan *r, const cJSON *list, const char *file,
                       struct sl_err *err)
{
    for (const cJSON *v = list->child; v; v = v->next) {
        double two[2] = {0, 0};
        if (r->n_points == SL_RANK_POINTS)
            return sl_fail(err, SL_E_PACK, file, "ranks.points", "more than %d", SL_RANK_POINTS);
        int rc = read_numbers(v, two, 2, KL_MAX, file, "ranks.points", err);
        if (rc) return rc;
        if (r->n_points && two[0] <= r->points[r->n_points - 1].bits)
            return sl_fail(err, SL_E_PACK, file, "ranks.points", "bits must rise");
        r->points[r->n_points++] = (struct sl_rank_point){two[0], two[1]};
    }
    return 0;
}

static int read_layer(struct sl_rank_plan *r, int layer, const cJSON *v, bool moe, const char *file,
                      struct sl_err *err)
{
    char what[40];
    snprintf(what, sizeof what, "ranks.layers[%d]", layer);
    if (cJSON_IsNull(v) && !moe) return 0;
    if (!cJSON_IsObject(v) || !moe)
        return sl_fail(err, SL_E_PACK, file, what, "must be %s", moe ? "an object" : "null");
    int rc = sl_json_f64(v, "drop", 0, KL_MAX, &r->drop[layer], file, SL_E_PACK, err);
    if (rc) return rc;
    return read_numbers(cJSON_GetObjectItemCaseSensitive(v, "share"),
                        r->share + (size_t)layer * (size_t)r->top_k, r->top_k, 1, file, what, err);
}

int sl_rank_plan_read(struct sl_rank_plan **out, const cJSON *ranks, const struct sl_config *c,
                      const char *file, struct sl_err *err)
{
    int64_t version = 0;
    const cJSON *points = NULL;
    const cJSON *layers = NULL;
    struct sl_rank_plan *r = NULL;
    *out = NULL;
    if (!cJSON_IsObject(ranks)) return sl_fail(err, SL_E_PACK, file, "ranks", "must be an object");
    int rc = sl_json_int(ranks, "version", 1, INT32_MAX, &version, file, SL_E_PACK, err);
    if (!rc && version != SL_RANK_VERSION)
        rc = sl_fail(err, SL_E_PACK, file, "ranks.version",
                     "%lld, this build reads version %d: use a newer sluice", (long long)version,
                     SL_RANK_VERSION);
    if (!rc) rc = sl_rank_plan_new(&r, c, err);
    if (!rc) rc = sl_json_u64(ranks, "tokens", UINT64_C(1) << 53, &r->tokens, file, SL_E_PACK, err);
    if (!rc) rc = sl_json_f64(ranks, "bits", 0, BITS_MAX, &r->bits, file, SL_E_PACK, err);
    if (!rc) rc = sl_json_arr(ranks, "points", &points, file, SL_E_PACK, err);
    if (!rc) rc = read_points(r, points, file, err);
    if (!rc) rc = sl_json_arr(ranks, "layers", &layers, file, SL_E_PACK, err);
    if (!rc && cJSON_GetArraySize(layers) != c->n_layers)
        rc = sl_fail(err, SL_E_PACK, file, "ranks.layers", "%d entries for %d layers",
                     cJSON_GetArraySize(layers), c->n_layers);
    int l = 0;
    for (const cJSON *v = rc ? NULL : layers->child; v && !rc; v = v->next, l++)
        rc = read_layer(r, l, v, sl_config_is_moe(c, l), file, err);
    if (rc) {
        sl_rank_plan_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

static void put_plan(FILE *f, const struct sl_rank_plan *r)
{
    fprintf(f, "{\"version\":%d,\"tokens\":%llu,\"bits\":%.6g,\"points\":[", SL_RANK_VERSION,
            (unsigned long long)r->tokens, r->bits);
    for (int i = 0; i < r->n_points; i++)
        fprintf(f, "%s[%.6g,%.6g]", i ? "," : "", r->points[i].bits, r->points[i].kl);
    fputs("],\"layers\":[", f);
    for (int l = 0; l < r->n_layers; l++) {
        const double *share = r->share + (size_t)l * (size_t)r->top_k;
        double sum = 0;
        for (int j = 0; j < r->top_k; j++) sum += share[j];
        if (l) putc(',', f);
        if (!(sum > 0)) {
            fputs("null", f);
            continue;
        }
        fprintf(f, "{\"drop\":%.6g,\"share\":[", r->drop[l]);
        for (int j = 0; j < r->top_k; j++) fprintf(f, "%s%.5f", j ? "," : "", share[j]);
        fputs("]}", f);
    }
    fputs("]}", f);
}

/* A manifest of ours ends in "}" of its one object; a plan is always the last member, on a line of its
 * own, and no JSON string holds a raw line break. */
#define MEMBER ",\n\"ranks\":"

int sl_rank_plan_save(const struct sl_rank_plan *r, const char *dir, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    char *text = NULL, *made = NULL;
    size_t len = 0, made_len = 0;
    cJSON *tree = NULL;
    if (!sl_path_join(path, dir, "pack.json"))
        return sl_fail(err, SL_E_ARG, dir, NULL, "the path is too long");
    int rc = sl_read_file(&text, &len, path, MANIFEST_MAX, SL_E_PACK, err);
    if (rc) return rc;
    char *end = strstr(text, MEMBER);
    if (!end) end = strrchr(text, '}');
    FILE *f = end ? open_memstream(&made, &made_len) : NULL;
    bool bad = !f;
    if (f) {
        fwrite(text, 1, (size_t)(end - text), f);
        fputs(MEMBER, f);
        put_plan(f, r);
        fputs("}\n", f);
        bad = ferror(f);
        bad |= fclose(f) != 0;
    }
    if (!end)
        rc = sl_fail(err, SL_E_PACK, path, NULL, "not a JSON object");
    else if (bad)
        rc = sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    /* Never a manifest that would not open again. */
    if (!rc) rc = sl_json_parse(&tree, made, made_len, path, SL_E_PACK, err);
    if (!rc) rc = sl_sums_publish(dir, made, made_len, err);
    cJSON_Delete(tree);
    free(made);
    free(text);
    return rc;
}
