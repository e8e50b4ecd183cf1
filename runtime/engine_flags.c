/* Engine flags to options, statistics to JSON (see engine_flags.h). */
#include "runtime/engine_flags.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/size.h"
#include "offload/evict.h"
#include "runtime/report.h"

void sl_engine_flags_init(struct sl_engine_flags *f, struct sl_arg_opt rows[SL_N_ENGINE_FLAGS])
{
    static const char *const devices[] = {"cpu", NULL};
    static const char *const checks[] = {"all", "first", "off", NULL};
    static const char *const methods[] = {"auto", "uring", "pread", "mmap", NULL};
    memset(f, 0, sizeof *f);
    f->device = "cpu";
    f->io = "auto";
    f->check = "all";
    const struct sl_arg_opt table[SL_N_ENGINE_FLAGS] = {
        {.name = "--ram",
         .kind = SL_ARG_SIZE,
         .out = &f->ram_bytes,
         .group = "Memory",
         .metavar = "SIZE",
         .help = "ceiling on host memory (8G, 8GiB, 8GB)",
         .def = "what the machine allows"},
        {.name = "--ctx",
         .kind = SL_ARG_INT,
         .out = &f->ctx,
         .group = "Memory",
         .metavar = "N",
         .help = "positions of context",
         .def = "4096, or the model's maximum",
         .min = 1,
         .max = 1 << 30},
        {.name = "--chunk",
         .kind = SL_ARG_INT,
         .out = &f->chunk,
         .group = "Memory",
         .metavar = "N",
         .help = "tokens computed at once in prefill",
         .def = "512, or what memory allows",
         .min = 1,
         .max = 1 << 20},
        {.name = "--threads",
         .kind = SL_ARG_INT,
         .out = &f->threads,
         .group = "Engine",
         .metavar = "N",
         .help = "threads that compute",
         .def = "one per core",
         .min = 1,
         .max = 1024},
        {.name = "--exact",
         .kind = SL_ARG_FLAG,
         .out = &f->exact,
         .group = "Engine",
         .help = "f32 throughout, a function of the tokens alone"},
        {.name = "--fast",
         .kind = SL_ARG_FLAG,
         .out = &f->fast,
         .group = "Engine",
         .help = "integer activations and tiles, the default: within 5e-4 nats of --exact"},
        {.name = "--device",
         .kind = SL_ARG_STRING,
         .out = &f->device,
         .group = "Engine",
         .metavar = "NAME",
         .help = "where to compute: cpu",
         .def = "cpu",
         .choices = devices},
        {.name = "--io",
         .kind = SL_ARG_STRING,
         .out = &f->io,
         .group = "Engine",
         .metavar = "NAME",
         .help = "how experts are read: auto, uring, pread, mmap",
         .def = "auto",
         .choices = methods},
        {.name = "--evict",
         .kind = SL_ARG_STRING,
         .out = &f->evict,
         .group = "Engine",
         .metavar = "NAME",
         .help = "which expert leaves the memory first: lrfu, lru",
         .def = sl_evict_names[0],
         .choices = sl_evict_names},
        {.name = "--lookahead",
         .kind = SL_ARG_STRING,
         .out = &f->lookahead,
         .group = "Engine",
         .metavar = "N",
         .help = "experts of the next layer to read ahead: on, off, 1 to 64",
         .def = "off"},
        {.name = "--check",
         .kind = SL_ARG_STRING,
         .out = &f->check,
         .group = "Engine",
         .metavar = "WHEN",
         .help = "checksums of trunk and records: records at every read, at the first one of each, "
                 "or none at all",
         .def = "all",
         .choices = checks},
        {.name = "--bits",
         .kind = SL_ARG_FLOAT,
         .out = &f->bits,
         .group = "Engine",
         .metavar = "X",
         .help = "bits a weight read of p36 experts, by the pack's plan of ranks",
         .def = "as the plan says",
         .min = 1,
         .max = 32},
        {.name = "--bank-dir",
         .kind = SL_ARG_REPEAT,
         .out = &f->bank_dirs,
         .group = "Engine",
         .metavar = "DIR",
         .help = "look for expert banks here too; may be repeated"},
        {.name = "--trace",
         .kind = SL_ARG_STRING,
         .out = &f->trace,
         .group = "Output",
         .metavar = "F",
         .help = "write which experts the router chose, for `replay`"},
        {.name = "--stats",
         .kind = SL_ARG_STRING,
         .out = &f->stats,
         .group = "Output",
         .metavar = "F.json",
         .help = "write planned and measured memory, reads, rates; - is a table on stderr"},
    };
    memcpy(rows, table, sizeof table);
}

/* What is no answer becomes a number that the engine refuses. */
static int lookahead(const char *s)
{
    if (!s || strcmp(s, "off") == 0) return 0;
    if (strcmp(s, "on") == 0) return SLUICE_LOOKAHEAD_ON;
    char *end;
    const long n = strtol(s, &end, 10);
    return end == s || *end || n < 1 || n > INT_MAX ? INT_MAX : (int)n;
}

sluice_options sl_engine_flags_options(const struct sl_engine_flags *f)
{
    return (sluice_options){
        .device = f->device,
        .exact = f->exact  ? 1
                 : f->fast ? -1
                           : 0,
        .threads = (int)f->threads,
        .ram_bytes = f->ram_bytes,
        .ctx = (uint64_t)f->ctx,
        .chunk = (uint64_t)f->chunk,
        .io = f->io,
        .evict = f->evict,
        .check_crc = strcmp(f->check, "off") == 0     ? -1
                     : strcmp(f->check, "first") == 0 ? 2
                                                      : 1,
        .lookahead = lookahead(f->lookahead),
        .bits = f->bits,
        .trace = f->trace,
        .bank_dirs = f->bank_dirs.v,
        .n_bank_dirs = f->bank_dirs.n,
    };
}

double sl_rate(uint64_t tokens, double seconds)
{
    return seconds > 0 ? (double)tokens / seconds : 0;
}

static void put_stages(cJSON *obj, const char *key, const sluice_stages *t)
{
    cJSON *o = cJSON_AddObjectToObject(obj, key);
    sl_report_f64(o, "attention", t->attention);
    sl_report_f64(o, "experts", t->experts);
    sl_report_f64(o, "waiting", t->waiting);
    sl_report_f64(o, "head", t->head);
}

static double busy_share(double busy, double seconds)
{
    return seconds > 0 ? busy / seconds : 0;
}

void sl_engine_stats_json(cJSON *obj, const sluice_session *s)
{
    sluice_stats st;
    sluice_plan_info plan;
    sluice_get_stats(s, &st);
    sluice_session_plan(s, &plan);
    if (st.synthetic) sl_report_bool(obj, "synthetic", 1);
    sl_report_u64(obj, "planned_peak_bytes", st.planned_peak_bytes);
    sl_report_u64(obj, "measured_peak_bytes", st.measured_peak_bytes);
    sl_report_u64(obj, "limit_bytes", plan.limit_bytes);
    sl_report_u64(obj, "expert_bytes_read", st.expert_bytes_read);
    sl_report_u64(obj, "expert_refill_bytes", st.expert_refill_bytes);
    sl_report_u64(obj, "expert_hits", st.expert_hits);
    sl_report_u64(obj, "expert_misses", st.expert_misses);
    sl_report_u64(obj, "expert_slots", plan.n_slots);
    sl_report_u64(obj, "slot_bytes", plan.slot_bytes);
    sl_report_u64(obj, "ctx_tokens", plan.ctx);
    sl_report_u64(obj, "chunk_tokens", plan.chunk);
    sl_report_bool(obj, "expanded_keys", plan.expanded_keys);
    sl_report_u64(obj, "lent_peak_bytes", st.lent_peak_bytes);
    sl_report_u64(obj, "prefill_tokens", st.prefill_tokens);
    sl_report_u64(obj, "prefill_chunks", st.prefill_chunks);
    sl_report_u64(obj, "decode_tokens", st.decode_tokens);
    sl_report_u64(obj, "decode_steps", st.decode_steps);
    sl_report_u64(obj, "guessed_tokens", st.guessed_tokens);
    sl_report_u64(obj, "accepted_tokens", st.accepted_tokens);
    sl_report_f64(obj, "prefill_seconds", st.prefill_seconds);
    sl_report_f64(obj, "decode_seconds", st.decode_seconds);
    sl_report_f64(obj, "prefill_tok_per_s", sl_rate(st.prefill_tokens, st.prefill_seconds));
    sl_report_f64(obj, "decode_tok_per_s", sl_rate(st.decode_tokens, st.decode_seconds));
    sl_report_f64(obj, "stall_seconds", st.stall_seconds);
    sl_report_u64(obj, "minor_page_faults", st.minor_faults);
    sl_report_u64(obj, "major_page_faults", st.major_faults);
    sl_report_u64(obj, "trunk_bytes_streamed", st.trunk_bytes_streamed);
    sl_report_u64(obj, "trunk_bytes_per_pass", plan.trunk_streamed_bytes);
    sl_report_bool(obj, "direct_io", st.direct_io);
    sl_report_str(obj, "io", st.io);
    if (st.io_note[0]) sl_report_str(obj, "io_note", st.io_note);
    sl_report_str(obj, "evict", st.evict);
    cJSON *ahead = cJSON_AddObjectToObject(obj, "lookahead");
    sl_report_u64(ahead, "named", st.ahead_named);
    sl_report_u64(ahead, "right", st.ahead_right);
    sl_report_u64(ahead, "reads_queued", st.ahead_queued);
    sl_report_u64(ahead, "reads_used", st.ahead_used);
    sl_report_u64(ahead, "reads_wasted", st.ahead_wasted);
    sl_report_u64(ahead, "reads_dropped", st.ahead_dropped);
    sl_report_u64(ahead, "wasted_bytes", st.ahead_wasted_bytes);
    put_stages(obj, "prefill_stage_seconds", &st.prefill_stages);
    put_stages(obj, "decode_stage_seconds", &st.decode_stages);
    sl_report_f64(obj, "prefill_drive_busy_share",
                  busy_share(st.prefill_drive_busy_seconds, st.prefill_seconds));
    sl_report_f64(obj, "decode_drive_busy_share",
                  busy_share(st.decode_drive_busy_seconds, st.decode_seconds));
    cJSON *drives = cJSON_AddArrayToObject(obj, "drives");
    for (int i = 0; drives && i < st.n_drives; i++) {
        cJSON *d = cJSON_CreateObject();
        sl_report_str(d, "dir", st.drives[i].dir);
        sl_report_u64(d, "reads", st.drives[i].reads);
        sl_report_u64(d, "bytes", st.drives[i].bytes);
        sl_report_u64(d, "errors", st.drives[i].errors);
        sl_report_f64(d, "busy_seconds", st.drives[i].busy_seconds);
        cJSON_AddItemToArray(drives, d);
    }
    cJSON *tiers = cJSON_AddObjectToObject(obj, "tier_bytes");
    sl_report_u64(tiers, "drive_trunk", st.trunk_bytes_read);
    sl_report_u64(tiers, "drive_experts", st.expert_bytes_read);
    /* What a refill read has not been used by then; what look-ahead read in vain never is. */
    const uint64_t asked = st.expert_bytes_used + st.expert_refill_bytes;
    sl_report_u64(tiers, "ram_experts",
                  asked > st.expert_bytes_read ? asked - st.expert_bytes_read : 0);
    sl_report_f64(obj, "expert_bits", plan.expert_bits);
    if (plan.expert_kl >= 0) sl_report_f64(obj, "expert_kl", plan.expert_kl);
    cJSON *groups = cJSON_AddArrayToObject(obj, "groups");
    for (int i = 0; groups && i < plan.n_groups; i++) {
        if (!plan.groups[i].planned_bytes) continue;
        cJSON *g = cJSON_CreateObject();
        sl_report_str(g, "name", plan.groups[i].name);
        sl_report_u64(g, "planned_bytes", plan.groups[i].planned_bytes);
        sl_report_u64(g, "measured_bytes", plan.groups[i].measured_bytes);
        cJSON_AddItemToArray(groups, g);
    }
}

static void print_row(const char *name, uint64_t planned, uint64_t measured)
{
    char a[32];
    char b[32];
    fprintf(stderr, "%-20s %12s %12s\n", name, sl_format_bytes(a, sizeof a, planned),
            measured ? sl_format_bytes(b, sizeof b, measured) : "-");
}

/* For people: the same figures as a table on stderr. */
static void print_stats(const sluice_session *s)
{
    sluice_stats st;
    sluice_plan_info plan;
    char read[32];
    char slot[32];
    sluice_get_stats(s, &st);
    sluice_session_plan(s, &plan);
    if (st.synthetic)
        fprintf(stderr, "synthetic pack: speed and memory are real, the text is not\n");
    if (plan.trunk_streamed_bytes)
        fprintf(stderr, "trunk streams: %s a token or chunk, %s so far\n",
                sl_format_bytes(read, sizeof read, plan.trunk_streamed_bytes),
                sl_format_bytes(slot, sizeof slot, st.trunk_bytes_streamed));
    fprintf(stderr, "%-20s %12s %12s\n", "memory", "planned", "measured");
    for (int i = 0; i < plan.n_groups; i++)
        if (plan.groups[i].planned_bytes)
            print_row(plan.groups[i].name, plan.groups[i].planned_bytes,
                      plan.groups[i].measured_bytes);
    print_row("peak", st.planned_peak_bytes, st.measured_peak_bytes);
    fprintf(
        stderr,
        "experts   %llu read (%s), %llu found in memory; %llu slots of %s; %s, direct %s\n"
        "prefill   %llu tokens, %.1f tok/s\n"
        "decode    %llu tokens, %.1f tok/s, %.2f s waiting for reads; %d threads, %s\n"
        "          attention %.2f s, experts %.2f, waiting %.2f, head %.2f; drive busy %.0f %%\n",
        (unsigned long long)st.expert_misses,
        sl_format_bytes(read, sizeof read, st.expert_bytes_read),
        (unsigned long long)st.expert_hits, (unsigned long long)plan.n_slots,
        sl_format_bytes(slot, sizeof slot, plan.slot_bytes), st.io, st.direct_io ? "yes" : "no",
        (unsigned long long)st.prefill_tokens, sl_rate(st.prefill_tokens, st.prefill_seconds),
        (unsigned long long)st.decode_tokens, sl_rate(st.decode_tokens, st.decode_seconds),
        st.stall_seconds, st.threads, st.isa, st.decode_stages.attention, st.decode_stages.experts,
        st.decode_stages.waiting, st.decode_stages.head,
        100 * busy_share(st.decode_drive_busy_seconds, st.decode_seconds));
}

/* Which plan of ranks was in force, when there is one. */
static void print_ranks(const sluice_session *s)
{
    sluice_plan_info plan;
    char bytes[32];
    sluice_session_plan(s, &plan);
    if (plan.expert_kl < 0) return;
    fprintf(stderr,
            "ranks     %.3f bits a weight read, KL %.4f where the plan was measured; %s a token\n",
            plan.expert_bits, plan.expert_kl,
            sl_format_bytes(bytes, sizeof bytes, plan.expert_token_bytes));
}

static void print_ahead(const sluice_session *s)
{
    sluice_stats st;
    char wasted[32];
    sluice_get_stats(s, &st);
    if (!st.ahead_named) return;
    fprintf(
        stderr,
        "ahead     %llu named, %llu right; %llu reads queued, %llu used, %llu wasted (%s), %llu "
        "dropped\n",
        (unsigned long long)st.ahead_named, (unsigned long long)st.ahead_right,
        (unsigned long long)st.ahead_queued, (unsigned long long)st.ahead_used,
        (unsigned long long)st.ahead_wasted,
        sl_format_bytes(wasted, sizeof wasted, st.ahead_wasted_bytes),
        (unsigned long long)st.ahead_dropped);
}

int sl_engine_stats_save(const struct sl_engine_flags *f, sluice_session *s, struct sl_err *err)
{
    sluice_error e = {0};
    if (f->trace && sluice_trace(s, NULL, &e)) {
        err->code = e.code;
        (void)snprintf(err->text, sizeof err->text, "%s", e.text);
        return e.code;
    }
    if (!f->stats) return 0;
    if (strcmp(f->stats, "-") == 0) {
        print_stats(s);
        print_ranks(s);
        print_ahead(s);
        return 0;
    }
    sluice_stats st;
    sluice_get_stats(s, &st);
    cJSON *obj = sl_report_open(st.threads);
    if (obj) sl_engine_stats_json(obj, s);
    return sl_report_save(obj, f->stats, err);
}

int sl_engine_fail(const sluice_error *e)
{
    fprintf(stderr, "sluice: %s\n", e->text);
    return e->exit_status;
}
