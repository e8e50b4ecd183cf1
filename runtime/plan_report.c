/* Plan as a table and as JSON (see plan_report.h). */
#include "runtime/plan_report.h"

#include <stdio.h>
#include <string.h>
#include "base/size.h"
#include "runtime/commands.h"
#include "runtime/report.h"

void sl_plan_report_fill(struct sl_plan_report *r, double hits, uint64_t prompt)
{
    const sluice_plan_info *info = &r->plan->info;
    const uint64_t lengths[SL_PLAN_PROMPTS] = {100, 4000, 30000, prompt};
    r->in = (struct sl_cost_in){.work = r->work,
                                .board = r->board,
                                .threads = r->plan->threads,
                                .n_slots = info->n_slots,
                                .trunk_streamed_bytes = r->plan->trunk_streamed_bytes,
                                .expanded_keys = r->plan->expanded,
                                .latents = (r->plan->form & SL_STATE_FAST) != 0,
                                .chunk = info->chunk,
                                .sweep = r->plan->sweep,
                                .position = info->ctx / 2};
    if (hits >= 0)
        r->hits_low = r->hits_high = hits;
    else
        sl_cost_hits(r->work, info->n_slots, &r->hits_low, &r->hits_high);
    sl_cost_token(&r->in, r->hits_low, &r->low);
    sl_cost_token(&r->in, r->hits_high, &r->high);
    r->n_prompts = 0;
    for (int i = 0; i < SL_PLAN_PROMPTS; i++) {
        bool twice = false;
        for (int j = 0; j < i; j++) twice |= lengths[j] == lengths[i];
        if (!lengths[i] || lengths[i] > info->ctx || twice) continue;
        r->prompts[r->n_prompts].tokens = lengths[i];
        sl_cost_prompt(&r->in, lengths[i], &r->prompts[r->n_prompts++].cost);
    }
}

static double per_s(double seconds)
{
    return seconds > 0 ? 1 / seconds : 0;
}

/* Hours, terabytes and kilowatt hours of a million tokens at `seconds` and `bytes` each. */
struct million {
    double hours, tb, kwh; /* kwh < 0: the board states no power */
};

static struct million million_of(const struct sl_board *b, double seconds, double bytes)
{
    struct million m = {.hours = seconds * 1e6 / 3600, .tb = bytes * 1e6 / 1e12, .kwh = -1};
    if (b->power_w > 0) m.kwh = m.hours * b->power_w / 1000;
    return m;
}

/* The longest prompt that was priced: prefill gets cheaper with length. False without one. */
static bool prefill_million(const struct sl_plan_report *r, struct million *m, uint64_t *tokens)
{
    if (!r->n_prompts) return false;
    int best = 0;
    for (int i = 1; i < r->n_prompts; i++)
        if (r->prompts[i].tokens > r->prompts[best].tokens) best = i;
    double n = (double)r->prompts[best].tokens;
    const struct sl_prompt_cost *c = &r->prompts[best].cost;
    *tokens = r->prompts[best].tokens;
    *m = million_of(r->board, c->seconds / n, (double)c->drive_bytes / n);
    return true;
}

/* ---------------------------------------------------------------- JSON */

static void put_million(cJSON *o, const char *key, const struct million *m)
{
    cJSON *v = cJSON_AddObjectToObject(o, key);
    sl_report_f64(v, "hours", m->hours);
    sl_report_f64(v, "tb_read", m->tb);
    if (m->kwh >= 0)
        sl_report_f64(v, "kwh", m->kwh);
    else if (v)
        cJSON_AddNullToObject(v, "kwh");
}

static void put_memory(cJSON *o, const struct sl_plan_report *r)
{
    const sluice_plan_info *info = &r->plan->info;
    sl_report_u64(o, "limit_bytes", info->limit_bytes);
    sl_report_u64(o, "planned_peak_bytes", info->planned_peak_bytes);
    sl_report_u64(o, "expert_slots", info->n_slots);
    sl_report_u64(o, "slot_bytes", info->slot_bytes);
    sl_report_u64(o, "expert_records", r->work->expert_records);
    sl_report_u64(o, "ctx_tokens", info->ctx);
    sl_report_u64(o, "chunk_tokens", info->chunk);
    sl_report_u64(o, "panel_tokens", info->panel);
    sl_report_bool(o, "expanded_keys", info->expanded_keys);
    sl_report_u64(o, "trunk_streamed_bytes", r->plan->trunk_streamed_bytes);
    cJSON *groups = cJSON_AddArrayToObject(o, "groups");
    for (int i = 0; groups && i < info->n_groups; i++) {
        if (!info->groups[i].planned_bytes) continue;
        cJSON *g = cJSON_CreateObject();
        sl_report_str(g, "name", info->groups[i].name);
        sl_report_u64(g, "planned_bytes", info->groups[i].planned_bytes);
        cJSON_AddItemToArray(groups, g);
    }
}

static void put_stages(cJSON *o, const struct sl_token_cost *t)
{
    cJSON *v = cJSON_AddObjectToObject(o, "stage_seconds");
    sl_report_f64(v, "attention", t->attention_s);
    sl_report_f64(v, "experts", t->experts_s);
    sl_report_f64(v, "waiting", t->wait_s);
    sl_report_f64(v, "head", t->head_s);
    cJSON *c = cJSON_AddObjectToObject(o, "ceiling_seconds");
    sl_report_f64(c, "drive", t->drive_s);
    sl_report_f64(c, "memory_bus", t->bus_s);
    sl_report_f64(c, "arithmetic", t->compute_s);
    sl_report_str(o, "bound", sl_cost_bound(t));
}

/* By prompt length what ttft_s says in seconds alone. */
static void put_prompts(cJSON *o, const struct sl_plan_report *r)
{
    cJSON *list = cJSON_AddArrayToObject(o, "prompts");
    for (int i = 0; list && i < r->n_prompts; i++) {
        const struct sl_prompt_cost *c = &r->prompts[i].cost;
        cJSON *p = cJSON_CreateObject();
        sl_report_u64(p, "tokens", r->prompts[i].tokens);
        sl_report_f64(p, "seconds", c->seconds);
        sl_report_f64(p, "drive_seconds", c->drive_s);
        sl_report_f64(p, "arithmetic_seconds", c->compute_s);
        sl_report_u64(p, "drive_bytes", c->drive_bytes);
        sl_report_u64(p, "chunks", c->chunks);
        sl_report_u64(p, "chunk_tokens", c->chunk);
        sl_report_u64(p, "lent_bytes", c->lent_bytes);
        cJSON_AddItemToArray(list, p);
    }
}

int sl_plan_report_json(const struct sl_plan_report *r, struct sl_err *err)
{
    char words[640];
    struct million m;
    uint64_t tokens;
    cJSON *o = sl_report_open(r->plan->threads);
    if (!o) return sl_report_print(o, err);
    sl_report_str(o, "pack", r->pack);
    sl_report_str(o, "board", r->board->name);
    sl_report_bool(o, "measured", r->board->measured);
    sl_report_str(o, "board_source", r->board->source);
    sl_report_str(o, "experts", sl_fmt_name(r->shape->experts_fmt));
    sl_report_str(o, "trunk", sl_fmt_name(r->shape->trunk_fmt));
    if (r->shape->synthetic) sl_report_bool(o, "synthetic", 1);
    sl_report_u64(o, "pack_bytes", r->shape->trunk_bytes + sl_pack_bank_bytes(r->shape));
    put_memory(o, r);
    sl_report_f64(o, "expert_bits", r->plan->ranks.bits);
    if (r->plan->ranks.kl >= 0) sl_report_f64(o, "expert_kl", r->plan->ranks.kl);
    sl_report_u64(o, "active_weights_per_token", r->work->active_weights);
    sl_report_u64(o, "trunk_bytes_per_token", r->work->trunk_token_bytes);
    sl_report_u64(o, "expert_bytes_per_token", r->work->expert_token_bytes);
    sl_report_f64(o, "hit_rate_low", r->hits_low);
    sl_report_f64(o, "hit_rate_high", r->hits_high);
    /* Read from drives for a token, at the low hit rate. */
    sl_report_u64(o, "bytes_per_token", r->low.drive_bytes);
    sl_report_u64(o, "bytes_per_token_high_hits", r->high.drive_bytes);
    sl_report_u64(o, "bus_bytes_per_token", r->low.bus_bytes);
    sl_report_u64(o, "position", r->in.position);
    sl_report_f64(o, "tok_per_s", per_s(r->low.seconds));
    sl_report_f64(o, "tok_per_s_high_hits", per_s(r->high.seconds));
    put_stages(o, &r->low);
    cJSON *ttft = cJSON_AddObjectToObject(o, "ttft_s");
    for (int i = 0; i < r->n_prompts; i++) {
        char key[24];
        snprintf(key, sizeof key, "%llu", (unsigned long long)r->prompts[i].tokens);
        sl_report_f64(ttft, key, r->prompts[i].cost.seconds);
    }
    put_prompts(o, r);
    m = million_of(r->board, r->low.seconds, (double)r->low.drive_bytes);
    put_million(o, "decode_per_million", &m);
    if (prefill_million(r, &m, &tokens)) put_million(o, "prefill_per_million", &m);
    sl_cost_assumptions(&r->in, words, sizeof words);
    sl_report_str(o, "assumptions", words);
    return sl_report_print(o, err);
}

/* ---------------------------------------------------------------- text */

static void print_million(const char *name, const struct million *m)
{
    printf("%s %.1f hours, %.1f TB read", name, m->hours, m->tb);
    if (m->kwh >= 0) printf(", %.1f kWh", m->kwh);
    printf("\n");
}

static void print_memory(const struct sl_plan_report *r)
{
    const sluice_plan_info *info = &r->plan->info;
    char a[32];
    char b[32];
    printf("%-20s %12s\n", "memory", "planned");
    for (int i = 0; i < info->n_groups; i++)
        if (info->groups[i].planned_bytes)
            printf("%-20s %12s\n", info->groups[i].name,
                   sl_format_bytes(a, sizeof a, info->groups[i].planned_bytes));
    printf("%-20s %12s of %s\n", "peak", sl_format_bytes(a, sizeof a, info->planned_peak_bytes),
           sl_format_bytes(b, sizeof b, info->limit_bytes));
    printf("%llu slots of %s: %.1f %% of %llu expert records; context %llu, chunks up to %llu%s\n",
           (unsigned long long)info->n_slots, sl_format_bytes(a, sizeof a, info->slot_bytes),
           r->work->expert_records ? 100 * (double)info->n_slots / (double)r->work->expert_records
                                   : 0.0,
           (unsigned long long)r->work->expert_records, (unsigned long long)info->ctx,
           (unsigned long long)info->chunk,
           r->plan->form & SL_STATE_FAST ? ""
           : info->expanded_keys         ? ""
                                         : "; keys are expanded again for every token");
    if (r->plan->trunk_streamed_bytes)
        printf("trunk streams: %s of it come from the drive for every token\n",
               sl_format_bytes(a, sizeof a, r->plan->trunk_streamed_bytes));
}

static void print_token(const struct sl_plan_report *r)
{
    char a[32];
    char b[32];
    printf(
        "a token uses %s of trunk and %s of experts; %.0f to %.0f %% of the experts are found in "
        "memory\n",
        sl_format_bytes(a, sizeof a, r->work->trunk_token_bytes),
        sl_format_bytes(b, sizeof b, r->work->expert_token_bytes), 100 * r->hits_low,
        100 * r->hits_high);
    if (r->plan->ranks.kl >= 0)
        printf(
            "experts are read at %.3f bits a weight by the pack's plan of ranks: KL %.4f where it "
            "was measured\n",
            r->plan->ranks.bits, r->plan->ranks.kl);
    printf("decode at position %llu: %.3g to %.3g tok/s, %s to %s from the drive a token\n",
           (unsigned long long)r->in.position, per_s(r->low.seconds), per_s(r->high.seconds),
           sl_format_bytes(a, sizeof a, r->low.drive_bytes),
           sl_format_bytes(b, sizeof b, r->high.drive_bytes));
    printf("a slow token: attention %.3f s, experts %.3f, waiting %.3f, head %.3f; bound by %s "
           "(drive %.3f s, memory bus %.3f, arithmetic %.3f)\n",
           r->low.attention_s, r->low.experts_s, r->low.wait_s, r->low.head_s,
           sl_cost_bound(&r->low), r->low.drive_s, r->low.bus_s, r->low.compute_s);
}

int sl_plan_report_text(const struct sl_plan_report *r, struct sl_err *err)
{
    const struct sl_board *b = r->board;
    char a[32];
    char words[640];
    struct million m;
    uint64_t tokens;
    printf("%s%s, experts %s, trunk %s: %s on disk\n", r->pack,
           r->shape->synthetic ? " (synthetic)" : "", sl_fmt_name(r->shape->experts_fmt),
           sl_fmt_name(r->shape->trunk_fmt),
           sl_format_bytes(a, sizeof a, r->shape->trunk_bytes + sl_pack_bank_bytes(r->shape)));
    printf("%s (%s)\n\n", b->title, b->measured ? "measured" : "public specifications");
    print_memory(r);
    printf("\n");
    print_token(r);
    for (int i = 0; i < r->n_prompts; i++) {
        const struct sl_prompt_cost *c = &r->prompts[i].cost;
        printf("first token after %llu new ones: %s, %s read in %llu sweep%s",
               (unsigned long long)r->prompts[i].tokens, sl_format_seconds(words, 32, c->seconds),
               sl_format_bytes(a, sizeof a, c->drive_bytes), (unsigned long long)c->chunks,
               c->chunks == 1 ? "" : "s");
        if (c->lent_bytes)
            printf("; %s of the slots are lent to %llu tokens at a time",
                   sl_format_bytes(a, sizeof a, c->lent_bytes), (unsigned long long)c->chunk);
        printf("\n");
    }
    m = million_of(b, r->low.seconds, (double)r->low.drive_bytes);
    print_million("a million tokens of decode:", &m);
    if (prefill_million(r, &m, &tokens)) {
        snprintf(words, sizeof words,
                 "a million tokens of prefill, %llu at a time:", (unsigned long long)tokens);
        print_million(words, &m);
    }
    sl_cost_assumptions(&r->in, words, sizeof words);
    if (words[0]) printf("%s\n", words);
    return sl_cmd_flush(err);
}
