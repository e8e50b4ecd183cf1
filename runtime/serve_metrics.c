/* One snapshot, two texts (see serve_metrics.h). */
#include "runtime/serve_metrics.h"

#include <string.h>
#include "base/version.h"

typedef unsigned long long ull;

static void name(struct sl_serve_text *t, const char *metric, const char *type, const char *help)
{
    sl_serve_text_fmt(t, "# HELP sluice_%s %s\n# TYPE sluice_%s %s\n", metric, help, metric, type);
}

/* A label's value: backslash, quote and newline are escaped, as the text format has it. */
static void label(struct sl_serve_text *t, const char *value)
{
    for (const char *c = value; *c; c++) {
        if (*c == '\\' || *c == '"') sl_serve_text_add(t, "\\", 1);
        if (*c == '\n')
            sl_serve_text_put(t, "\\n");
        else
            sl_serve_text_add(t, c, 1);
    }
}

static void whole(struct sl_serve_text *t, const char *metric, const char *type, const char *help,
                  uint64_t v)
{
    name(t, metric, type, help);
    sl_serve_text_fmt(t, "sluice_%s %llu\n", metric, (ull)v);
}

static void real(struct sl_serve_text *t, const char *metric, const char *help, double v)
{
    name(t, metric, "counter", help);
    sl_serve_text_fmt(t, "sluice_%s %.6f\n", metric, v);
}

static void histogram(struct sl_serve_text *t, const char *metric, const char *help,
                      const struct sl_sched_histogram *h)
{
    uint64_t n = 0;
    name(t, metric, "histogram", help);
    for (int i = 0; i < SL_SCHED_BINS; i++) {
        n += h->n[i];
        sl_serve_text_fmt(t, "sluice_%s_bucket{le=\"%g\"} %llu\n", metric, sl_sched_bounds[i],
                          (ull)n);
    }
    n += h->n[SL_SCHED_BINS];
    sl_serve_text_fmt(t,
                      "sluice_%s_bucket{le=\"+Inf\"} %llu\nsluice_%s_sum %.6f\nsluice_%s_count "
                      "%llu\n",
                      metric, (ull)n, metric, h->sum, metric, (ull)n);
}

static void requests(struct sl_serve_text *t, const struct sl_metrics *m)
{
    const struct sl_sched_info *s = &m->sched;
    name(t, "requests_total", "counter", "answers by how they ended");
    sl_serve_text_fmt(t,
                      "sluice_requests_total{result=\"finished\"} %llu\n"
                      "sluice_requests_total{result=\"failed\"} %llu\n"
                      "sluice_requests_total{result=\"cancelled\"} %llu\n"
                      "sluice_requests_total{result=\"refused\"} %llu\n",
                      (ull)s->finished, (ull)s->failed, (ull)s->cancelled, (ull)s->refused);
    whole(t, "http_requests_total", "counter", "HTTP requests of all kinds", m->http_requests);
    whole(t, "connections", "gauge", "open connections", (uint64_t)m->connections);
    whole(t, "queue_length", "gauge", "requests waiting", (uint64_t)s->queued);
    whole(t, "queue_limit", "gauge", "requests that may wait", (uint64_t)s->queue_max);
    whole(t, "requests_running", "gauge", "requests being answered", (uint64_t)s->running);
    whole(t, "prompt_tokens_total", "counter", "tokens of prompts, cached ones included",
          s->prompt_tokens);
    whole(t, "cached_tokens_total", "counter", "tokens of prompts that were not computed again",
          s->cached_tokens);
    whole(t, "completion_tokens_total", "counter", "tokens written", s->completion_tokens);
    histogram(t, "first_token_seconds", "from the request to its first token", &s->first_token);
    histogram(t, "request_seconds", "from the request to its last token", &s->whole);
}

/* Sequences a step: a histogram whose bins are whole numbers. */
static void steps(struct sl_serve_text *t, const struct sl_sched_info *s)
{
    uint64_t n = 0;
    uint64_t sum = 0;
    name(t, "step_sequences", "histogram", "sequences in a step of the engine");
    for (int i = 0; i < SL_SCHED_SEATS; i++) {
        n += s->steps[i];
        sum += s->steps[i] * (uint64_t)(i + 1);
        if (i < s->seats)
            sl_serve_text_fmt(t, "sluice_step_sequences_bucket{le=\"%d\"} %llu\n", i + 1, (ull)n);
    }
    sl_serve_text_fmt(t,
                      "sluice_step_sequences_bucket{le=\"+Inf\"} %llu\n"
                      "sluice_step_sequences_sum %llu\nsluice_step_sequences_count %llu\n",
                      (ull)n, (ull)sum, (ull)n);
    whole(t, "step_tokens_total", "counter", "tokens computed in these steps", s->step_tokens);
    uint64_t left = 0;
    for (int i = 0; i < s->n_prompts; i++) left += s->prompts[i].tokens - s->prompts[i].done;
    whole(t, "prompt_tokens_left", "gauge", "tokens of prompts that are being computed", left);
}

static void memory(struct sl_serve_text *t, const struct sl_metrics *m)
{
    const sluice_plan_info *p = &m->sched.plan;
    name(t, "memory_planned_bytes", "gauge", "memory by group, as planned");
    for (int i = 0; i < p->n_groups; i++)
        if (p->groups[i].planned_bytes) {
            sl_serve_text_put(t, "sluice_memory_planned_bytes{group=\"");
            label(t, p->groups[i].name);
            sl_serve_text_fmt(t, "\"} %llu\n", (ull)p->groups[i].planned_bytes);
        }
    name(t, "memory_bytes", "gauge", "memory by group, as measured");
    for (int i = 0; i < p->n_groups; i++)
        if (p->groups[i].planned_bytes) {
            sl_serve_text_put(t, "sluice_memory_bytes{group=\"");
            label(t, p->groups[i].name);
            sl_serve_text_fmt(t, "\"} %llu\n", (ull)p->groups[i].measured_bytes);
        }
    whole(t, "memory_limit_bytes", "gauge", "what the plan may take", p->limit_bytes);
    whole(t, "resident_bytes", "gauge", "resident memory of the process", m->resident_bytes);
    whole(t, "peak_bytes", "gauge", "its peak", m->sched.engine.measured_peak_bytes);
}

static void drives(struct sl_serve_text *t, const sluice_stats *e)
{
    static const struct {
        const char *metric, *help;
    } what[] = {{"drive_read_bytes_total", "expert bytes read, by folder"},
                {"drive_reads_total", "expert reads, by folder"},
                {"drive_errors_total", "reads that failed, by folder"},
                {"drive_busy_seconds_total", "seconds with a read in flight, by folder"}};
    for (int k = 0; k < 4; k++) {
        name(t, what[k].metric, "counter", what[k].help);
        for (int i = 0; i < e->n_drives; i++) {
            const sluice_drive *d = &e->drives[i];
            sl_serve_text_fmt(t, "sluice_%s{dir=\"", what[k].metric);
            label(t, d->dir ? d->dir : "");
            if (k == 3)
                sl_serve_text_fmt(t, "\"} %.6f\n", d->busy_seconds);
            else
                sl_serve_text_fmt(t, "\"} %llu\n",
                                  (ull)(k == 0   ? d->bytes
                                        : k == 1 ? d->reads
                                                 : d->errors));
        }
    }
}

static void engine(struct sl_serve_text *t, const struct sl_metrics *m)
{
    const sluice_stats *e = &m->sched.engine;
    const sluice_prefix_stats *p = &m->sched.prefix;
    whole(t, "expert_hits_total", "counter", "experts found in memory", e->expert_hits);
    whole(t, "expert_misses_total", "counter", "experts read for a token", e->expert_misses);
    whole(t, "expert_read_bytes_total", "counter", "bytes of experts read", e->expert_bytes_read);
    whole(t, "trunk_read_bytes_total", "counter", "bytes of the trunk read", e->trunk_bytes_read);
    whole(t, "prefill_tokens_total", "counter", "tokens computed in prefill", e->prefill_tokens);
    whole(t, "decode_tokens_total", "counter", "tokens computed one by one", e->decode_tokens);
    real(t, "prefill_seconds_total", "seconds spent in prefill", e->prefill_seconds);
    real(t, "decode_seconds_total", "seconds spent in decode", e->decode_seconds);
    real(t, "stall_seconds_total", "seconds of waiting for reads", e->stall_seconds);
    drives(t, e);
    whole(t, "prefix_memory_bytes", "gauge", "stored states, in memory", p->memory_used);
    whole(t, "prefix_disk_bytes", "gauge", "stored states, on disk", p->disk_used);
    whole(t, "prefix_snapshots", "gauge", "stored states", p->snapshots);
    whole(t, "prefix_lookups_total", "counter", "prompts looked up", p->lookups);
    whole(t, "prefix_hits_total", "counter", "prompts that went on from a stored state", p->hits);
    whole(t, "prefix_restored_tokens_total", "counter", "tokens that were not computed for it",
          p->restored_tokens);
}

void sl_metrics_prometheus(struct sl_serve_text *t, const struct sl_metrics *m)
{
    name(t, "info", "gauge", "version and model");
    sl_serve_text_put(t, "sluice_info{version=\"" SL_VERSION "\",model=\"");
    label(t, m->model);
    sl_serve_text_put(t, "\"} 1\n");
    name(t, "uptime_seconds", "gauge", "seconds since the start");
    sl_serve_text_fmt(t, "sluice_uptime_seconds %.3f\n", m->uptime_seconds);
    requests(t, m);
    steps(t, &m->sched);
    memory(t, m);
    engine(t, m);
}

/* ---------------------------------------------------------------- JSON */

static void text(struct sl_serve_text *t, const char *key, const char *value)
{
    sl_serve_text_fmt(t, "\"%s\":", key);
    sl_serve_text_quote(t, value ? value : "", value ? strlen(value) : 0);
    sl_serve_text_put(t, ",");
}

static void number(struct sl_serve_text *t, const char *key, uint64_t v)
{
    sl_serve_text_fmt(t, "\"%s\":%llu,", key, (ull)v);
}

static void seconds(struct sl_serve_text *t, const char *key, double v)
{
    sl_serve_text_fmt(t, "\"%s\":%.6f,", key, v);
}

void sl_metrics_json(struct sl_serve_text *t, const struct sl_metrics *m)
{
    const struct sl_sched_info *s = &m->sched;
    const sluice_stats *e = &s->engine;
    sl_serve_text_put(t, "{\"schema\":1,");
    text(t, "version", SL_VERSION);
    text(t, "commit", sl_build_commit);
    text(t, "model", m->model);
    text(t, "isa", e->isa);
    text(t, "io", e->io);
    number(t, "threads", (uint64_t)e->threads);
    seconds(t, "uptime_seconds", m->uptime_seconds);
    number(t, "seats", (uint64_t)s->seats);
    number(t, "running", (uint64_t)s->running);
    number(t, "queued", (uint64_t)s->queued);
    number(t, "queue_max", (uint64_t)s->queue_max);
    number(t, "finished", s->finished);
    number(t, "failed", s->failed);
    number(t, "cancelled", s->cancelled);
    number(t, "refused", s->refused);
    number(t, "prompt_tokens", s->prompt_tokens);
    number(t, "cached_tokens", s->cached_tokens);
    number(t, "completion_tokens", s->completion_tokens);
    number(t, "prefill_tokens", e->prefill_tokens);
    number(t, "decode_tokens", e->decode_tokens);
    seconds(t, "prefill_seconds", e->prefill_seconds);
    seconds(t, "decode_seconds", e->decode_seconds);
    seconds(t, "stall_seconds", e->stall_seconds);
    number(t, "step_tokens", s->step_tokens);
    sl_serve_text_put(t, "\"steps\":["); /* by sequences in them, from 1 */
    for (int i = 0; i < s->seats; i++)
        sl_serve_text_fmt(t, "%s%llu", i ? "," : "", (ull)s->steps[i]);
    sl_serve_text_put(t, "],\"prompts\":[");
    for (int i = 0; i < s->n_prompts; i++)
        sl_serve_text_fmt(t, "%s{\"tokens\":%llu,\"done\":%llu}", i ? "," : "",
                          (ull)s->prompts[i].tokens, (ull)s->prompts[i].done);
    sl_serve_text_put(t, "],");
    number(t, "decode_steps", e->decode_steps);
    number(t, "guessed_tokens", e->guessed_tokens);
    number(t, "accepted_tokens", e->accepted_tokens);
    number(t, "expert_hits", e->expert_hits);
    number(t, "expert_misses", e->expert_misses);
    number(t, "expert_bytes_read", e->expert_bytes_read);
    number(t, "prefix_memory_bytes", s->prefix.memory_used);
    number(t, "prefix_snapshots", s->prefix.snapshots);
    number(t, "ctx_tokens", s->plan.ctx);
    number(t, "expert_slots", s->plan.n_slots);
    number(t, "limit_bytes", s->plan.limit_bytes);
    number(t, "planned_peak_bytes", s->plan.planned_peak_bytes);
    number(t, "measured_peak_bytes", e->measured_peak_bytes);
    number(t, "resident_bytes", m->resident_bytes);
    if (e->synthetic) sl_serve_text_put(t, "\"synthetic\":true,");
    sl_serve_text_put(t, "\"drives\":[");
    for (int i = 0; i < e->n_drives; i++) {
        sl_serve_text_put(t, i ? ",{" : "{");
        text(t, "dir", e->drives[i].dir);
        number(t, "reads", e->drives[i].reads);
        number(t, "bytes", e->drives[i].bytes);
        number(t, "errors", e->drives[i].errors);
        sl_serve_text_fmt(t, "\"busy_seconds\":%.6f}", e->drives[i].busy_seconds);
    }
    sl_serve_text_put(t, "],\"groups\":[");
    const char *sep = "{";
    for (int i = 0; i < s->plan.n_groups; i++) {
        const sluice_group *g = &s->plan.groups[i];
        if (!g->planned_bytes && !g->measured_bytes) continue;
        sl_serve_text_put(t, sep);
        sep = ",{";
        text(t, "name", g->name);
        sl_serve_text_fmt(t, "\"planned_bytes\":%llu,\"measured_bytes\":%llu}",
                          (ull)g->planned_bytes, (ull)g->measured_bytes);
    }
    sl_serve_text_put(t, "]}");
}
