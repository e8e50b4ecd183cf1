/* The cost model (see plan_cost.h). */
#include "offload/plan_cost.h"

#include <stdio.h>
#include <string.h>

#define GIGA 1e9

/* 10^9 weights a second of one core where the board does not say: what this build's kernels reach on a
 * server core with AVX2 (`sluice probe --threads 1`, median of three runs), and half of it where vectors
 * are half as wide. Wider vectors than AVX2 are not credited: nobody measured them for this table. In
 * prefill all formats reach about the same. */
#define CORE_PREFILL 25.0
static double core_decode(int fmt)
{
    switch (fmt) {
    case SL_FMT_F32:
        return 5; /* the bus: four bytes a weight */
    case SL_FMT_T6:
        return 6;
    case SL_FMT_T4:
        return 7.7;
    case SL_FMT_W16:
    case SL_FMT_W26:
    case SL_FMT_W36:
    case SL_FMT_P36:
        return 3; /* w26; the others were not measured */
    default:
        return 11; /* bf16, t8; mxfp4 and m4 a little more */
    }
}

/* Next-token reuse of experts at full size, a public figure (29.5 %, from K3 itself). */
#define PUBLIC_REUSE 0.295

/* Hit rate in decode of the default eviction policy by share of records that have a slot: the routes of
 * k3-mini's first 4,096 validation tokens (512 at a time), replayed in the order of decode. A small
 * model's skew, not K3's: an upper figure. */
static const struct {
    double share, hits;
} skew[] = {{0, 0},         {0.018, 0.032}, {0.03125, 0.078}, {0.0625, 0.156},
            {0.125, 0.270}, {0.25, 0.445},  {0.375, 0.587},   {0.5, 0.708},
            {0.625, 0.813}, {0.75, 0.901},  {0.875, 0.967},   {1, 1}};
enum { N_SKEW = sizeof skew / sizeof skew[0] };

static double skew_hits(double share)
{
    for (int i = 1; i < N_SKEW; i++) {
        if (share > skew[i].share) continue;
        double part = (share - skew[i - 1].share) / (skew[i].share - skew[i - 1].share);
        return skew[i - 1].hits + part * (skew[i].hits - skew[i - 1].hits);
    }
    return 1;
}

void sl_cost_hits(const struct sl_pack_work *w, uint64_t n_slots, double *low, double *high)
{
    *low = *high = 1;
    if (n_slots >= w->expert_records) return;
    double share = (double)n_slots / (double)w->expert_records;
    double best = skew_hits(share);
    if (n_slots >= (uint64_t)w->n_moe * (uint64_t)w->top_k && best < PUBLIC_REUSE)
        best = PUBLIC_REUSE;
    *low = share;
    *high = best > share ? best : share;
}

/* ---------------------------------------------------------------- rates */

struct rates {
    double decode[SL_WORK_FMTS], prefill[SL_WORK_FMTS]; /* weights a second */
    double bus, drive;                                  /* bytes a second */
};

static bool half_width(const struct sl_board *b)
{
    return strncmp(b->cpu.isa, "neon", 4) == 0;
}

static void make_rates(const struct sl_cost_in *in, struct rates *r)
{
    const struct sl_board *b = in->board;
    double share =
        in->threads && in->threads < b->cpu.cores ? (double)in->threads / b->cpu.cores : 1;
    const double cores = b->cpu.cores * (half_width(b) ? 0.5 : 1);
    double decode = 0;
    double prefill = CORE_PREFILL * cores;
    for (int i = 0; i < b->cpu.n_muls; i++) { /* a format that is not listed: the slowest listed */
        const struct sl_board_mul *m = &b->cpu.mul[i];
        if (!i || m->decode < decode) decode = m->decode;
        if (!i || m->prefill < prefill) prefill = m->prefill;
    }
    for (int f = 0; f < SL_WORK_FMTS; f++) {
        r->decode[f] = (b->cpu.n_muls ? decode : core_decode(f) * cores) * share * GIGA;
        r->prefill[f] = prefill * share * GIGA;
    }
    for (int i = 0; i < b->cpu.n_muls; i++) {
        const struct sl_board_mul *m = &b->cpu.mul[i];
        if ((unsigned)m->fmt >= SL_WORK_FMTS) continue;
        r->decode[m->fmt] = m->decode * share * GIGA;
        r->prefill[m->fmt] = m->prefill * share * GIGA;
    }
    r->bus = b->memory.read_gbps * GIGA;
    r->drive = sl_board_drives_gbps(b) * GIGA;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double compute_s(const struct sl_work *w, const double rate[SL_WORK_FMTS])
{
    double s = 0;
    for (int f = 0; f < SL_WORK_FMTS; f++)
        if (w->weights[f]) s += (double)w->weights[f] / rate[f];
    return s;
}

/* A stage whose weights come from memory: arithmetic or bus, whichever is slower. Adds to totals. */
static double stage_s(struct sl_token_cost *t, const struct rates *r, const struct sl_work *w,
                      double times)
{
    double c = times * compute_s(w, r->decode);
    double bytes = times * (double)w->bytes;
    t->compute_s += c;
    t->bus_bytes += (uint64_t)bytes;
    return larger(c, bytes / r->bus);
}

/* ---------------------------------------------------------------- decode */

enum { EXPANDED_FOR = 480 }; /* tokens that the fast path's expanded positions serve */

/* Multiplications by which n tokens behind `at` look back on the fast path, the cheaper of its two ways. */
static double latent_macs(const struct sl_layer_work *l, double at, double n)
{
    const double back = n * (at + n / 2);
    const double absorbed = back * (double)l->latent_weights + n * (double)l->expand_weights;
    const double passes = n / EXPANDED_FOR > 1 ? n / EXPANDED_FOR : 1;
    const double expanded =
        back * (double)l->position_weights + passes * (at + n) * (double)l->expand_weights;
    return absorbed < expanded ? absorbed : expanded;
}

/* Attention of one MLA layer over the positions before this token. */
static double look_back_s(const struct sl_cost_in *in, const struct rates *r,
                          const struct sl_layer_work *l, struct sl_token_cost *t)
{
    double n = (double)in->position;
    if (in->latents) { /* a product of many rows, as prompts have them; heads share a row */
        double macs = n * (double)l->latent_weights / r->prefill[SL_FMT_F32];
        double rows = n * (double)l->latent_bytes;
        t->compute_s += macs;
        t->bus_bytes += (uint64_t)rows;
        return larger(macs, rows / r->bus);
    }
    double c = n * (double)l->position_weights / r->decode[SL_FMT_F32];
    double bytes = in->expanded_keys ? n * (double)l->position_bytes : 0;
    if (!in->expanded_keys) c += n * (double)l->expand_weights / r->prefill[l->expand_fmt];
    t->compute_s += c;
    t->bus_bytes += (uint64_t)bytes;
    return larger(c, bytes / r->bus);
}

static uint64_t trunk_bytes_of(const struct sl_layer_work *l)
{
    uint64_t n = l->attn.bytes + l->before.bytes + l->ffn.bytes + l->after.bytes;
    return n;
}

static void add_layer(const struct sl_cost_in *in, const struct rates *r,
                      const struct sl_layer_work *l, double hits, double streamed,
                      struct sl_token_cost *t)
{
    double attention = stage_s(t, r, &l->attn, 1) + (double)l->state_bytes / r->bus;
    t->bus_bytes += l->state_bytes;
    if (!l->is_kda) attention += look_back_s(in, r, l, t);
    double before = stage_s(t, r, &l->before, 1);
    double ffn = stage_s(t, r, &l->ffn, 1);
    double after = stage_s(t, r, &l->after, 1);
    double k = l->is_moe ? in->work->top_k : 0;
    double misses = k * (1 - hits);
    double experts = stage_s(t, r, &l->expert, k);
    double miss_bytes = misses * (double)l->record_bytes;
    double stream_bytes = streamed * (double)trunk_bytes_of(l);
    /* What the drive brings is written into memory before it is read from there. */
    double dma = miss_bytes + stream_bytes;
    t->bus_bytes += (uint64_t)dma;
    t->drive_bytes += (uint64_t)dma;
    double work = ffn + larger(experts, (k * (double)l->record_bytes + miss_bytes) / r->bus);
    double reads = miss_bytes / r->drive;
    double wait = 0;
    if (reads > 0) {
        double last = experts / k; /* the last record to land is computed after it */
        wait = larger(reads + last - work, 0);
    }
    double chain = attention + before + work + wait + after;
    double floor = dma / r->drive; /* the drive brings the layer's trunk too */
    if (floor > chain) wait += floor - chain;
    t->attention_s += attention;
    t->experts_s += before + work + after;
    t->wait_s += wait;
}

void sl_cost_token(const struct sl_cost_in *in, double hits, struct sl_token_cost *out)
{
    const struct sl_pack_work *w = in->work;
    struct rates r;
    make_rates(in, &r);
    memset(out, 0, sizeof *out);
    double trunk = (double)w->trunk_token_bytes;
    double streamed = trunk > 0 ? (double)in->trunk_streamed_bytes / trunk : 0;
    for (int l = 0; l < w->n_layers; l++) add_layer(in, &r, &w->layers[l], hits, streamed, out);
    out->head_s = stage_s(out, &r, &w->head, 1);
    double head_bytes = streamed * (double)(w->head.bytes + w->row_bytes);
    out->drive_bytes += (uint64_t)head_bytes;
    out->bus_bytes += (uint64_t)head_bytes;
    if (head_bytes / r.drive > out->head_s) out->wait_s += head_bytes / r.drive - out->head_s;
    out->seconds = out->attention_s + out->experts_s + out->wait_s + out->head_s;
    out->drive_s = (double)out->drive_bytes / r.drive;
    out->bus_s = (double)out->bus_bytes / r.bus;
}

const char *sl_cost_bound(const struct sl_token_cost *t)
{
    if (t->drive_s >= t->bus_s && t->drive_s >= t->compute_s) return "drive";
    return t->bus_s >= t->compute_s ? "memory bus" : "arithmetic";
}

/* ---------------------------------------------------------------- prefill */

/* n tokens whose first one stands at position `at`. */
static void add_chunk(const struct sl_cost_in *in, const struct rates *r, double at, double n,
                      struct sl_prompt_cost *t)
{
    const struct sl_pack_work *w = in->work;
    double trunk = (double)w->trunk_token_bytes;
    double streamed = trunk > 0 ? (double)in->trunk_streamed_bytes / trunk : 0;
    bool all_resident = in->n_slots >= w->expert_records;
    double lent = in->sweep.slot_bytes ? (double)t->lent_bytes / (double)in->sweep.slot_bytes : 0;
    double kept = w->expert_records ? ((double)in->n_slots - lent) / (double)w->expert_records : 0;
    if (kept < 0) kept = 0;
    for (int i = 0; i < w->n_layers; i++) {
        const struct sl_layer_work *l = &w->layers[i];
        double back = l->is_kda ? 0 : n * (at + n / 2); /* pairs of query and position */
        double attention = n * compute_s(&l->attn, r->prefill);
        if (!l->is_kda && in->latents)
            attention += latent_macs(l, at, n) / r->prefill[SL_FMT_F32];
        else
            attention += back * (double)l->position_weights / r->prefill[SL_FMT_F32];
        if (!l->is_kda && !in->expanded_keys && !in->latents)
            attention += (at + n) * (double)l->expand_weights / r->prefill[l->expand_fmt];
        double rest = n * (compute_s(&l->before, r->prefill) + compute_s(&l->ffn, r->prefill) +
                           compute_s(&l->after, r->prefill));
        double stream_bytes = streamed * (double)trunk_bytes_of(l);
        /* A slot for every record: read once, when first asked for. Otherwise what lies ahead of the
         * sweep stays, so a chunk finds what the one before left. */
        double there = 0;
        if (at > 0)
            there = all_resident ? sl_distinct_experts(w->n_experts, w->top_k, at) /
                                       (w->n_experts > 0 ? w->n_experts : 1)
                                 : kept;
        double sweep_bytes = l->is_moe ? (1 - there) * sl_work_sweep_bytes(w, i, n) : 0;
        double experts = l->is_moe ? n * w->top_k * compute_s(&l->expert, r->prefill) : 0;
        double bus = (2 * sweep_bytes + stream_bytes + (double)trunk_bytes_of(l)) / r->bus;
        double arithmetic = attention + rest + experts;
        double reads = (sweep_bytes + stream_bytes) / r->drive;
        double seconds = attention + larger(rest + experts, sweep_bytes / r->drive);
        t->seconds += larger(larger(seconds, reads), bus);
        t->drive_s += reads;
        t->compute_s += arithmetic;
        t->drive_bytes += (uint64_t)(sweep_bytes + stream_bytes);
    }
}

void sl_cost_prompt(const struct sl_cost_in *in, uint64_t n_tokens, struct sl_prompt_cost *out)
{
    const struct sl_pack_work *w = in->work;
    struct rates r;
    make_rates(in, &r);
    memset(out, 0, sizeof *out);
    struct sl_sweep_choice c = {.chunk = in->chunk ? in->chunk : 1};
    if (in->sweep.n_slots && n_tokens) sl_sweep_choose(&in->sweep, n_tokens, &c);
    out->chunk = c.chunk;
    out->lent_bytes = c.lent_bytes;
    for (uint64_t at = 0; at < n_tokens; at += c.chunk) {
        uint64_t n = n_tokens - at < c.chunk ? n_tokens - at : c.chunk;
        add_chunk(in, &r, (double)at, (double)n, out);
        out->chunks++;
    }
    double head = larger(compute_s(&w->head, r.decode), (double)w->head.bytes / r.bus);
    out->seconds += head;
    out->compute_s += head;
}

/* ---------------------------------------------------------------- words */

void sl_cost_assumptions(const struct sl_cost_in *in, char *out, size_t size)
{
    const struct sl_board *b = in->board;
    const double width = half_width(b) ? 0.5 : 1;
    char rate[320] = "";
    char drives[120] = "";
    if (!b->cpu.n_muls)
        snprintf(
            rate, sizeof rate,
            "Arithmetic was not measured on this board: %.3g G weights/s a core in decode for m4 "
            "and t8 (%.3g for t6, %.3g for t4, %.3g for trellis formats) and %.3g in prefill are "
            "assumed, %s.",
            core_decode(SL_FMT_M4) * width, core_decode(SL_FMT_T6) * width,
            core_decode(SL_FMT_T4) * width, core_decode(SL_FMT_W26) * width, CORE_PREFILL * width,
            half_width(b) ? "half of what AVX2 reaches on a server core"
                          : "what AVX2 reaches on a server core");
    if (b->n_drives > 1)
        snprintf(drives, sizeof drives,
                 " %d drives count together: every drive holds a copy of the banks.", b->n_drives);
    snprintf(out, size, "%s%s%s%s", rate, drives,
             b->gpu.name[0] ? " The GPU is not used: all figures are of the CPU path." : "",
             b->measured ? "" : " Bandwidths are the vendors' figures, not measured.");
    if (out[0] == ' ') memmove(out, out + 1, strlen(out));
}
