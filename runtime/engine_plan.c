/* The planner: what a session takes, group by group, before anything is allocated (design section 5).
 *
 *   limit (machine, cgroups, --ram) - reserve
 *     = trunk + tables + state + activations + logits + threads + tokenizer + process    the floor
 *     + expert slots                                                                     the rest
 *
 * Sizes come from the code that will take them (sl_trunk_bytes, sl_state_price, sl_graph_bytes), never
 * from a second formula. What this process holds already (its code, the pack's tables, whatever a host
 * program brought along) is measured, not guessed. When the floor does not fit, expanded keys go first
 * (they only save time), then the panel shrinks, and with it the shortest chunk; what the user fixed
 * stays. Longer chunks take nothing more: the slots' memory is lent to them (engine_prefill.h). */
#include "offload/evict.h"
#include "runtime/engine_prefill.h"

#include <string.h>
#include "base/size.h"
#include "offload/trunk.h"

enum {
    CTX_DEFAULT = 4096,
    PANEL = 512, /* tokens; longer ones gain nothing */
    PANEL_MIN = 16,
    LOGIT_ROWS_DEFAULT = 16,
    THREAD_BYTES = 128 << 10, /* touched stack and heap of one thread */
    PROCESS_SLACK = 4 << 20,  /* heap that comes and goes: reports, prompts, error paths */
    ARENA_SLACK = 64 << 10    /* alignment between the parts of one arena */
};

static const char *const group_names[SL_N_ENGINE_GROUPS] = {
    [SL_EG_TRUNK] = "trunk",
    [SL_EG_RING] = "trunk ring",
    [SL_EG_TABLES] = "tables",
    [SL_EG_KDA] = "KDA state",
    [SL_EG_CONV] = "convolution state",
    [SL_EG_MLA] = "MLA cache",
    [SL_EG_KEYS] = "expanded keys",
    [SL_EG_ACTIVATIONS] = "activations",
    [SL_EG_DRAFT] = "draft states",
    [SL_EG_LOGITS] = "logits",
    [SL_EG_SLOTS] = "expert slots",
    [SL_EG_PREFIX] = "prefix cache",
    [SL_EG_THREADS] = "threads",
    [SL_EG_TOKENIZER] = "tokenizer",
    [SL_EG_PROCESS] = "process",
};
_Static_assert(SL_N_ENGINE_GROUPS <= SLUICE_MAX_GROUPS, "the public table holds all groups");
_Static_assert(SL_N_ENGINE_GROUPS <= SL_BUDGET_GROUPS, "the budget holds all groups");

static int check_name(const char *option, const char *value, const char *const *known, int n,
                      struct sl_err *err)
{
    for (int i = 0; i < n; i++)
        if (strcmp(value, known[i]) == 0) return i;
    return sl_fail(err, SL_E_ARG, NULL, option, "'%s' is not available in this build", value);
}

int sl_engine_options(const struct sl_config *c, const sluice_options *o,
                      struct sl_engine_opts *out, struct sl_err *err)
{
    static const char *const devices[] = {"cpu"};
    static const char *const methods[] = {"auto", "uring", "pread", "mmap"};
    static const enum sl_io method_ids[] = {SL_IO_AUTO, SL_IO_URING, SL_IO_PREAD, SL_IO_MMAP};
    static const sluice_options none = {0};
    if (!o) o = &none;
    memset(out, 0, sizeof *out);
    if (o->device && check_name("--device", o->device, devices, 1, err) < 0) return SL_E_ARG;
    int io = o->io ? check_name("--io", o->io, methods, 4, err) : 0;
    if (io < 0) return SL_E_ARG;
    if (o->threads < 0 || o->threads > 1024)
        return sl_fail(err, SL_E_ARG, NULL, "--threads", "%d is not from 1 to 1024", o->threads);
    uint64_t ctx_max = (uint64_t)c->max_position;
    if (o->ctx > ctx_max)
        return sl_fail(err, SL_E_ARG, NULL, "--ctx", "%llu is more than the model's %llu",
                       (unsigned long long)o->ctx, (unsigned long long)ctx_max);
    int evict = 0;
    while (o->evict && sl_evict_names[evict] && strcmp(o->evict, sl_evict_names[evict]) != 0)
        evict++;
    if (!sl_evict_names[evict])
        return sl_fail(err, SL_E_ARG, NULL, "--evict", "'%.32s' is not available in this build",
                       o->evict);
    out->lookahead = o->lookahead == SLUICE_LOOKAHEAD_ON ? (3 * c->top_k + 7) / 8 : o->lookahead;
    if (out->lookahead > SL_LOOKAHEAD_MAX && o->lookahead == SLUICE_LOOKAHEAD_ON)
        out->lookahead = SL_LOOKAHEAD_MAX;
    if (out->lookahead < 0 || out->lookahead > SL_LOOKAHEAD_MAX)
        return sl_fail(err, SL_E_ARG, NULL, "--lookahead", "is neither on, off nor from 1 to %d",
                       SL_LOOKAHEAD_MAX);
    if (!(o->bits >= 0 && o->bits <= 32)) /* NaN too */
        return sl_fail(err, SL_E_ARG, NULL, "--bits", "%g is not from 0 to 32", o->bits);
    out->bits = o->bits;
    out->fast = o->exact <= 0;
    out->io = method_ids[io];
    out->evict = sl_evict_names[evict];
    out->threads = o->threads ? o->threads : sl_cpu_count();
    out->ctx = o->ctx ? o->ctx : ctx_max < CTX_DEFAULT ? ctx_max : CTX_DEFAULT;
    out->ram_bytes = o->ram_bytes;
    out->chunk = o->chunk < out->ctx ? o->chunk : out->ctx;
    out->logit_rows = o->logit_rows ? o->logit_rows : LOGIT_ROWS_DEFAULT;
    if (o->seats < 0 || o->seats > SL_ENGINE_SEATS)
        return sl_fail(err, SL_E_ARG, NULL, "--seats", "%d is not from 1 to %d", o->seats,
                       SL_ENGINE_SEATS);
    if (o->draft < 0 || o->draft > SLUICE_MAX_GUESSES)
        return sl_fail(err, SL_E_ARG, NULL, "--draft", "is neither off, auto nor from 1 to %d",
                       SLUICE_MAX_GUESSES);
    out->seats = o->seats ? o->seats : 1;
    out->draft = o->draft;
    out->draft_auto = o->draft_auto != 0;
    /* One row a sequence at least, and one a guess. */
    const uint64_t least = (uint64_t)out->seats * (uint64_t)(out->draft + 1);
    if (out->logit_rows < least) out->logit_rows = least;
    out->check_crc = o->check_crc >= 0;
    out->check_first = o->check_crc == 2;
    out->prefix_bytes = o->prefix_bytes;
    out->prefix_disk_bytes = o->prefix_disk_bytes;
    out->prefix_dir = o->prefix_dir;
    out->prefix_block = o->prefix_block;
    out->stream_trunk = true;
    return 0;
}

/* The store's own tables, priced for a slot a record: at most 0.1 % of the slots too much. */
static uint64_t store_tables(const struct sl_pack *p)
{
    uint64_t slot = sl_store_slot_bytes(p);
    return sl_store_table_bytes(p, slot ? sl_store_resident_bytes(p) / slot : 0);
}

/* The state of every seat; UINT64_MAX where that does not fit 64 bits. */
static void each_seat(struct sl_state_bytes *b, uint64_t seats)
{
    uint64_t *const all[] = {&b->kda, &b->conv, &b->mla_rows, &b->mla_expanded, &b->tables};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!sl_mul_u64(*all[i], seats, all[i])) *all[i] = UINT64_MAX;
}

/* Everything but the slots for one choice of chunk and expanded keys. */
static void price(struct sluice_pack *p, const struct sl_engine_opts *o, uint64_t chunk,
                  bool expanded, uint64_t process_bytes, struct sl_engine_plan *out)
{
    const struct sl_config *c = &p->pack->cfg;
    const struct sl_graph_opts go = {(int)chunk, o->ctx, o->fast};
    struct sl_state_bytes sb;
    out->form = o->fast ? SL_STATE_FAST : expanded ? SL_STATE_EXPANDED : 0;
    if (o->fast && o->draft) out->form |= SL_STATE_REWIND;
    sl_state_price(c, o->ctx, out->form, &sb);
    const uint64_t seats = o->seats > 1 ? (uint64_t)o->seats : 1;
    uint64_t rows = o->logit_rows < chunk ? o->logit_rows : chunk;
    uint64_t vocab = (uint64_t)c->vocab_size;
    const uint64_t own = seats > 1 ? seats * vocab * sizeof(float) : 0; /* a row each, kept */
    each_seat(&sb, seats);
    const uint64_t ids = seats * sl_align_up(o->ctx * sizeof(int32_t), 64) + /* kept */
                         sl_align_up(chunk * sizeof(int32_t), 64);           /* of a step */
    uint64_t bytes[SL_N_ENGINE_GROUPS] = {
        [SL_EG_TRUNK] = sl_trunk_bytes(p->pack),
        [SL_EG_TABLES] = sl_model_bytes(p->pack) + sb.tables + ids + UINT64_C(2) * ARENA_SLACK +
                         store_tables(p->pack),
        [SL_EG_KDA] = sb.kda,
        [SL_EG_CONV] = sb.conv,
        [SL_EG_MLA] = sb.mla_rows,
        [SL_EG_KEYS] = sb.mla_expanded,
        [SL_EG_ACTIVATIONS] = sl_graph_bytes(c, &go, o->threads),
        [SL_EG_DRAFT] = o->draft && !o->fast
                            ? seats * sl_align_up(sl_state_recurrent_bytes(c, out->form), 64)
                            : 0,
        [SL_EG_LOGITS] = rows * vocab * sizeof(float) + own + sl_sampler_bytes(c->vocab_size),
        [SL_EG_PREFIX] = o->prefix_bytes,
        [SL_EG_THREADS] = (uint64_t)(o->threads - 1) * THREAD_BYTES,
        [SL_EG_TOKENIZER] = p->tokenizer_bytes,
        [SL_EG_PROCESS] = process_bytes,
    };
    if (o->lookahead) {
        bytes[SL_EG_ACTIVATIONS] += sl_lookahead_bytes(c);
        bytes[SL_EG_TABLES] += sl_ahead_maps_bytes(p->pack);
    }
    uint64_t session = ARENA_SLACK + sb.tables + ids;
    for (int g = SL_EG_KDA; g <= SL_EG_LOGITS; g++)
        if (!sl_add_u64(session, bytes[g], &session)) session = UINT64_MAX;
    out->session_bytes = session;
    out->weights_bytes = bytes[SL_EG_TRUNK] + sl_model_bytes(p->pack) + ARENA_SLACK;
    if (o->lookahead) out->weights_bytes += sl_ahead_maps_bytes(p->pack);
    out->logit_rows = rows;
    out->seats = (int)seats;
    out->draft = (uint64_t)o->draft < chunk ? o->draft : (int)chunk - 1;
    out->info.draft = out->draft;
    out->info.seats = (int)seats;
    out->expanded = expanded;
    out->info.expanded_keys = expanded;
    out->panel = chunk;
    out->info.panel = chunk;
    out->info.n_groups = SL_N_ENGINE_GROUPS;
    for (int g = 0; g < SL_N_ENGINE_GROUPS; g++)
        out->info.groups[g] = (sluice_group){group_names[g], bytes[g], 0};
}

/* Trunk first, slots second (offload/trunk_split.c weighs a byte of one against a byte of the other). What
 * other sessions have loaded already stays as it is. */
static int split_trunk(const struct sl_pack *p, const struct sl_engine_machine *m,
                       struct sl_engine_plan *out, struct sl_err *err)
{
    const struct sl_memory_limit *limit = &m->limit;
    sluice_group *g = out->info.groups;
    struct sl_trunk_split split;
    const uint64_t all = sl_trunk_bytes(p);
    uint32_t piece;
    uint32_t n_pieces;
    sl_trunk_ring(p, &piece, &n_pieces);
    const uint64_t ring = (uint64_t)piece * n_pieces;
    uint64_t taken = sl_store_floor_bytes(p) + ring + sl_stream_table_bytes(n_pieces);
    for (int i = 0; i < SL_N_ENGINE_GROUPS; i++)
        if (i != SL_EG_TRUNK && !sl_add_u64(taken, g[i].planned_bytes, &taken)) taken = UINT64_MAX;
    uint64_t left =
        limit->limit_bytes > limit->reserve_bytes ? limit->limit_bytes - limit->reserve_bytes : 0;
    left = left > taken ? left - taken : 1;
    int rc = sl_trunk_split(p, m->trunk_bytes ? m->trunk_bytes : left, &split, NULL, err);
    if (rc) return rc;
    g[SL_EG_TRUNK].planned_bytes = split.held_bytes;
    out->trunk_resident_bytes = split.held_bytes;
    out->trunk_streamed_bytes = out->info.trunk_streamed_bytes = split.streamed_bytes;
    out->weights_bytes = out->weights_bytes - all + split.held_bytes;
    if (!split.n_streamed) return 0;
    g[SL_EG_RING].planned_bytes = out->trunk_ring_bytes = ring;
    g[SL_EG_TABLES].planned_bytes += sl_stream_table_bytes(n_pieces);
    return 0;
}

/* Gives the slots what is left; SL_E_BUDGET when the floor does not fit. */
static int fit(const struct sl_pack *pack, const struct sl_memory_limit *limit,
               struct sl_engine_plan *out, struct sl_err *err)
{
    uint64_t slot = sl_store_slot_bytes(pack);
    uint64_t floor = slot ? sl_store_floor_bytes(pack) / slot : 0;
    uint64_t most = slot ? sl_store_resident_bytes(pack) / slot : 0;

    struct sl_budget b;
    sl_budget_init(&b, limit);
    for (int g = 0; g < SL_N_ENGINE_GROUPS; g++)
        if (out->info.groups[g].planned_bytes)
            sl_budget_add(&b, out->info.groups[g].name, out->info.groups[g].planned_bytes);
    int rc = sl_budget_take_rest(&b, group_names[SL_EG_SLOTS], slot, floor, most,
                                 &out->info.n_slots, err);
    out->slot_budget = out->info.n_slots * slot;
    out->info.slot_bytes = slot;
    out->info.groups[SL_EG_SLOTS].planned_bytes = out->slot_budget;
    out->info.planned_peak_bytes = sl_budget_total(&b);
    return rc;
}

int sl_engine_machine_here(struct sluice_pack *p, const char *root, uint64_t ram_bytes,
                           struct sl_engine_machine *out, struct sl_err *err)
{
    uint64_t resident = 0;
    memset(out, 0, sizeof *out);
    int rc = sl_budget_machine_limit(root, ram_bytes, &out->limit, err);
    if (rc) return rc;
    sl_process_memory(&resident, &out->peak_bytes);
    pthread_mutex_lock(&p->lock);
    sluice_prefix_stats prefix = {0};
    if (p->prefix) sl_prefix_get_stats(p->prefix, &prefix);
    uint64_t shared = p->arena.bytes + p->tokenizer_bytes + prefix.memory_used;
    out->trunk_bytes = p->trunk_held_bytes;
    pthread_mutex_unlock(&p->lock);
    out->process_bytes = (resident > shared ? resident - shared : 0) + PROCESS_SLACK;
    return 0;
}

/* One choice of chunk, expanded keys and trunk. */
static int try_fit(struct sluice_pack *p, const struct sl_engine_opts *o,
                   const struct sl_engine_machine *m, uint64_t chunk, bool expanded, bool stream,
                   struct sl_engine_plan *out, struct sl_err *err)
{
    out->threads = o->threads;
    out->info.ctx = o->ctx;
    price(p, o, chunk, expanded, m->process_bytes, out);
    out->trunk_resident_bytes = out->info.groups[SL_EG_TRUNK].planned_bytes;
    out->trunk_ring_bytes = out->trunk_streamed_bytes = out->info.trunk_streamed_bytes = 0;
    int rc = stream ? split_trunk(p->pack, m, out, err) : 0;
    return rc ? rc : fit(p->pack, &m->limit, out, err);
}

/* Whether expanded keys are worth their bytes when these could hold trunk instead. Half of the context is
 * expanded again for every token without them; a byte of trunk is read. At about these rates keys pay on
 * K3 for up to five threads. The fast path has none. */
static bool keys_pay(const struct sl_config *c, const struct sl_engine_opts *o)
{
    const double weights_per_s = 25e9; /* of a thread, plan_cost.c */
    const double drive_bytes_per_s = 3e9;
    struct sl_state_bytes sb;
    double expand = 0;
    sl_state_price(c, o->ctx, true, &sb);
    for (int l = 0; l < c->n_layers; l++)
        if (!c->is_kda[l])
            expand += (double)o->ctx / 2 * c->n_heads * (c->qk_nope_dim + c->v_head_dim) *
                      c->kv_lora_rank;
    return expand / (weights_per_s * o->threads) > (double)sb.mla_expanded / drive_bytes_per_s;
}

int sl_engine_plan_on(struct sluice_pack *p, const struct sl_engine_opts *o,
                      const struct sl_engine_machine *m, struct sl_engine_plan *out,
                      struct sl_err *err)
{
    const struct sl_memory_limit *l = &m->limit;
    const uint64_t most = o->chunk ? o->chunk : o->ctx;
    const uint64_t panel = o->panel ? o->panel : PANEL;
    const uint64_t asked = most < panel ? most : panel;
    memset(out, 0, sizeof *out);
    int rc = sl_rank_choose(p->pack, p->pack->ranks, o->bits, &out->ranks, err);
    if (rc) return rc;
    out->info.expert_bits = out->ranks.bits;
    out->info.expert_kl = out->ranks.kl;
    out->info.expert_token_bytes = out->ranks.token_bytes;
    /* A short panel comes last: a prompt passes over the trunk once a panel, while one that streams in part
     * costs that part. */
    const bool loaded = m->trunk_bytes != 0;
    const bool in_part = loaded && m->trunk_bytes < sl_trunk_bytes(p->pack);
    const int last = loaded ? in_part : o->stream_trunk;
    rc = SL_E_BUDGET;
    uint64_t chunk = asked;
    for (int stream = in_part; stream <= last && rc == SL_E_BUDGET; stream++) {
        if (!o->fast && (!stream || in_part || keys_pay(&p->pack->cfg, o)))
            rc = try_fit(p, o, m, chunk, true, stream, out, err);
        if (rc == SL_E_BUDGET) rc = try_fit(p, o, m, chunk, false, stream, out, err);
    }
    while (rc == SL_E_BUDGET && (!o->chunk || o->chunk > panel) && chunk > PANEL_MIN) {
        chunk = chunk / 2 > PANEL_MIN ? chunk / 2 : PANEL_MIN;
        rc = try_fit(p, o, m, chunk, false, last, out, err);
    }
    sl_engine_plan_sweeps(p->pack, most, out);
    out->info.limit_bytes =
        l->limit_bytes > l->reserve_bytes ? l->limit_bytes - l->reserve_bytes : 0;
    if (!rc && err) memset(err, 0, sizeof *err); /* refusals on the way are no error */
    if (out->info.planned_peak_bytes < m->peak_bytes) out->info.planned_peak_bytes = m->peak_bytes;
    return rc;
}

int sl_engine_plan(struct sluice_pack *p, const struct sl_engine_opts *o,
                   struct sl_engine_plan *out, struct sl_err *err)
{
    struct sl_engine_machine here;
    int rc = sl_engine_machine_here(p, "", o->ram_bytes, &here, err);
    if (!rc) return sl_engine_plan_on(p, o, &here, out, err);
    memset(out, 0, sizeof *out);
    return rc;
}

/* The last group, the process, is what its peak has beside the groups measured one by one. */
void sluice_session_plan(const sluice_session *s, sluice_plan_info *info)
{
    *info = s->plan.info;
    sluice_group *g = info->groups;
    struct sl_store_stats st;
    sl_store_get_stats(s->store, &st);
    g[SL_EG_TRUNK].measured_bytes = s->p->trunk_bytes;
    g[SL_EG_RING].measured_bytes = s->plan.trunk_ring_bytes;
    /* A slot takes memory when its first record arrives, or it is lent. */
    g[SL_EG_SLOTS].measured_bytes = st.slots_touched * st.slot_bytes;
    g[SL_EG_TOKENIZER].measured_bytes = s->p->tokenizer_bytes;
    sluice_prefix_stats prefix;
    sluice_get_prefix_stats(s, &prefix);
    g[SL_EG_PREFIX].measured_bytes = prefix.memory_used;
    uint64_t resident = 0;
    uint64_t peak = 0;
    sl_process_memory(&resident, &peak);
    uint64_t known = 0;
    for (int i = 0; i < info->n_groups; i++)
        if (i != SL_EG_PROCESS) known += g[i].measured_bytes;
    g[SL_EG_PROCESS].measured_bytes = peak > known ? peak - known : 0;
}
