/* The engine behind sluice.h: opens packs and sessions, feeds tokens, keeps the counts.
 *
 * Everything a session will ever use is taken and touched at open, so a promise about memory is kept
 * or refused there and not at token 3,000. Weights are shared: the first session loads them, the last
 * one drops them. A feed that fails half way leaves a state between two tokens; such a session only
 * takes a reset. */
#include "runtime/engine_prefill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include "base/file.h"
#include "base/version.h"
#include "offload/budget.h"
#include "offload/trace.h"
#include "offload/numa_place.h"
#include "offload/pack_sums.h"

enum { TOUCH_BYTES = 32 << 20, PAGE_BYTES = 4096 };

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int sl_engine_give(sluice_error *out, const struct sl_err *err, int rc)
{
    if (out) {
        out->code = rc;
        out->exit_status = sl_exit_status(rc);
        _Static_assert(sizeof out->text == sizeof err->text, "one line each");
        memcpy(out->text, err->text, sizeof out->text);
    }
    return rc;
}

static char version_text[1024];

static void make_version(void)
{
    snprintf(version_text, sizeof version_text, "%s (%s, %s; %s)", SL_VERSION, sl_build_commit,
             sl_cpu_name(sl_cpu_detect()), sl_build_flags);
}

const char *sluice_version(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_version);
    return version_text;
}

void sluice_interrupt(void)
{
    sl_interrupt();
}
void sluice_interrupt_clear(void)
{
    sl_interrupt_clear();
}
void sluice_free(void *ptr)
{
    free(ptr);
}

/* ---------------------------------------------------------------- pack */

static void add_stop(struct sluice_pack *p, int32_t id)
{
    if (id < 0 || sluice_is_stop(p, id)) return;
    p->stop[p->n_stop++] = id;
}

static int open_tokenizer(struct sluice_pack *p, struct sl_err *err)
{
    char dir[SL_PATH_MAX];
    if (!sl_path_join(dir, p->pack->dir, "tokenizer"))
        return sl_fail(err, SL_E_PACK, p->pack->dir, NULL, "path is too long");
    uint64_t before = 0;
    uint64_t after = 0;
    uint64_t peak;
    sl_process_memory(&before, &peak);
    int rc = sl_tokenizer_open(&p->tokenizer, dir, p->pack->cfg.vocab_size, SL_E_PACK, err);
    if (rc) return rc;
    sl_process_memory(&after, &peak);
    p->tokenizer_bytes = after > before ? after - before : 0;
    add_stop(p, p->pack->cfg.eos_id);
    add_stop(p, sl_tokenizer_eos(p->tokenizer));
    add_stop(p, sl_tokenizer_control(p->tokenizer, "<|end_of_msg|>"));
    add_stop(p, sl_tokenizer_control(p->tokenizer, "[EOS]"));
    return 0;
}

int sluice_pack_open(sluice_pack **out, const char *path, const sluice_options *opts,
                     sluice_error *error)
{
    struct sl_err err = {0};
    *out = NULL;
    struct sluice_pack *p = calloc(1, sizeof *p);
    if (!p) return sl_engine_give(error, &err, sl_fail(&err, SL_E_NOMEM, path, NULL, "no memory"));
    pthread_mutex_init(&p->lock, NULL);
    int rc = sl_pack_open(&p->pack, path, opts ? opts->bank_dirs : NULL,
                          opts ? opts->n_bank_dirs : 0, &err);
    if (!rc) rc = sl_engine_options(&p->pack->cfg, opts, &p->opts, &err);
    if (!rc && p->opts.prefix_dir) {
        p->prefix_dir = strdup(p->opts.prefix_dir);
        p->opts.prefix_dir = p->prefix_dir;
        if (!p->prefix_dir) rc = sl_fail(&err, SL_E_NOMEM, path, NULL, "no memory");
    }
    if (!rc) rc = open_tokenizer(p, &err);
    /* last: what can be said in more words has been said */
    if (!rc) rc = sl_sums_check(p->pack->dir, NULL, NULL, NULL, &err);
    if (rc) {
        sluice_pack_close(p);
        return sl_engine_give(error, &err, rc);
    }
    *out = p;
    return 0;
}

static void drop_weights(struct sluice_pack *p)
{
    sl_prefix_close(p->prefix);
    p->prefix = NULL;
    p->model = NULL; /* lies in the arena, and so do the maps */
    p->ahead_maps = NULL;
    sl_trunk_close(p->trunk);
    p->trunk = NULL;
    p->trunk_held_bytes = 0;
    sl_arena_free(&p->arena);
}

void sluice_pack_close(sluice_pack *p)
{
    if (!p) return;
    drop_weights(p);
    sl_tokenizer_close(p->tokenizer);
    sl_pack_close(p->pack);
    pthread_mutex_destroy(&p->lock);
    free(p->prefix_dir);
    free(p);
}

int sluice_vocab_size(const sluice_pack *p)
{
    return p->pack->cfg.vocab_size;
}

int sluice_is_stop(const sluice_pack *p, int32_t id)
{
    for (int i = 0; i < p->n_stop; i++)
        if (p->stop[i] == id) return 1;
    return 0;
}

int sluice_encode(const sluice_pack *p, const char *text, size_t len, int markup, int32_t **ids,
                  size_t *n, sluice_error *error)
{
    struct sl_err err = {0};
    struct sl_ids out = {0};
    int rc = markup ? sl_tokenizer_encode_markup(p->tokenizer, text, len, &out, &err)
                    : sl_tokenizer_encode_plain(p->tokenizer, text, len, &out, &err);
    *ids = NULL;
    *n = 0;
    if (rc) {
        sl_ids_free(&out);
        return sl_engine_give(error, &err, rc);
    }
    *ids = out.v; /* malloc'ed by the encoder, ours from here on */
    *n = out.n;
    return 0;
}

const char *sluice_token_bytes(const sluice_pack *p, int32_t id, size_t *len)
{
    return sl_tokenizer_bytes(p->tokenizer, id, len);
}

int32_t sluice_control_id(const sluice_pack *p, const char *name)
{
    return sl_tokenizer_control(p->tokenizer, name);
}

int sluice_plan(sluice_pack *p, const sluice_options *opts, sluice_plan_info *info,
                sluice_error *error)
{
    struct sl_err err = {0};
    struct sl_engine_opts o = p->opts;
    struct sl_engine_plan plan = {0};
    int rc = opts ? sl_engine_options(&p->pack->cfg, opts, &o, &err) : 0;
    if (!rc) {
        rc = sl_engine_plan(p, &o, &plan, &err);
        *info = plan.info;
    }
    return rc ? sl_engine_give(error, &err, rc) : 0;
}

/* ---------------------------------------------------------------- session */

/* Called with the lock held. */
static int load_weights(struct sluice_pack *p, const struct sl_engine_plan *plan,
                        const struct sl_engine_opts *o, struct sl_err *err)
{
    const struct sl_trunk_opts to = {.budget = plan->trunk_resident_bytes,
                                     .check_crc = o->check_crc};
    int rc = sl_arena_init(&p->arena, plan->weights_bytes, "trunk", err);
    if (!rc) sl_numa_interleave(sl_numa_system(), p->arena.base, p->arena.bytes);
    if (!rc) rc = sl_trunk_open(&p->trunk, p->pack, &p->arena, &to, err);
    p->trunk_bytes = p->arena.used;
    p->trunk_held_bytes = plan->trunk_resident_bytes;
    if (!rc) rc = sl_model_open(&p->model, p->pack, p->trunk, &p->arena, err);
    if (!rc && o->lookahead) rc = sl_ahead_maps_open(&p->ahead_maps, p->pack, &p->arena, err);
    if (!rc) rc = sl_engine_open_prefix(p, plan, o, err);
    if (rc) drop_weights(p);
    return rc;
}

static int take_weights(struct sluice_session *s, const struct sl_engine_opts *o,
                        struct sl_err *err)
{
    struct sluice_pack *p = s->p;
    pthread_mutex_lock(&p->lock);
    int rc = p->users ? 0 : load_weights(p, &s->plan, o, err);
    if (!rc) p->users++;
    pthread_mutex_unlock(&p->lock);
    return rc;
}

static void give_weights(struct sluice_pack *p)
{
    pthread_mutex_lock(&p->lock);
    if (--p->users == 0) drop_weights(p);
    pthread_mutex_unlock(&p->lock);
}

static void touch_task(void *ctx, int task, int worker)
{
    (void)worker;
    struct sl_arena *a = ctx;
    size_t from = (size_t)task * TOUCH_BYTES;
    size_t to = from + TOUCH_BYTES < a->bytes ? from + TOUCH_BYTES : a->bytes;
    for (size_t i = from; i < to; i += PAGE_BYTES) ((volatile unsigned char *)a->base)[i] = 0;
}

/* Makes every page of the arena ours now: the kernel hands out memory at first write only. */
static void touch(struct sl_arena *a, struct sl_pool *pool)
{
    sl_pool_run(pool, (int)((a->bytes + TOUCH_BYTES - 1) / TOUCH_BYTES), touch_task, a);
}

/* Where the arena stands before and after a step is what the step took. */
static void measured(struct sluice_session *s, enum sl_engine_group g, uint64_t bytes)
{
    s->plan.info.groups[g].measured_bytes = bytes;
}

static void close_engine(struct sl_engine *e)
{
    if (!e) return;
    sl_graph_close(e->graph);
    sl_store_close(e->store);
    sl_pool_close(e->pool);
    sl_arena_free(&e->arena);
    free(e);
}

static void take_seat(struct sluice_session *s, struct sl_engine *e, struct sl_seat *seat)
{
    s->e = e;
    s->seat = seat;
    s->pool = e->pool;
    s->store = e->store;
    s->graph = e->graph;
    s->state = seat->state;
    s->ids = seat->ids;
    s->rows = e->rows;
    seat->taken = true;
    e->users++;
}

static int open_seats(struct sluice_session *s, struct sl_engine *e, const struct sl_engine_opts *o,
                      struct sl_err *err)
{
    const struct sl_config *c = &s->p->pack->cfg;
    const struct sl_engine_plan *plan = &s->plan;
    e->n_seats = plan->seats;
    e->draft.automatic = o->draft_auto;
    for (int i = 0; i < e->n_seats; i++) {
        struct sl_seat *t = &e->seat[i];
        t->ids = sl_arena_alloc(&e->arena, plan->info.ctx * sizeof *t->ids, 64);
        if (!t->ids) return sl_fail(err, SL_E_BUDGET, NULL, NULL, "session arena is too small");
        int rc = sl_state_open(&t->state, c, plan->info.ctx, plan->form, &e->arena, err);
        if (rc) return rc;
    }
    e->step_ids = sl_arena_alloc(&e->arena, plan->panel * sizeof *e->step_ids, 64);
    return e->step_ids ? 0 : sl_fail(err, SL_E_BUDGET, NULL, NULL, "session arena is too small");
}

static int open_rows(struct sluice_session *s, struct sl_engine *e, struct sl_err *err)
{
    const size_t vocab = (size_t)s->p->pack->cfg.vocab_size;
    const uint64_t before = sl_state_recurrent_bytes(&s->p->pack->cfg, e->seat[0].state->form);
    size_t mark = e->arena.used;
    bool ok = true;
    const bool copies = s->plan.draft && !(s->plan.form & SL_STATE_REWIND);
    for (int i = 0; i < e->n_seats && copies; i++)
        ok &= (e->seat[i].before = sl_arena_alloc(&e->arena, before, 64)) != NULL;
    measured(s, SL_EG_DRAFT, e->arena.used - mark);
    mark = e->arena.used;
    e->rows = sl_arena_alloc(&e->arena, s->plan.logit_rows * vocab * sizeof(float), 64);
    e->sampler.n = (int)vocab;
    e->sampler.weight = sl_arena_alloc(&e->arena, vocab * sizeof(float), 64);
    e->sampler.order = sl_arena_alloc(&e->arena, vocab * sizeof(int32_t), 64);
    for (int i = 0; i < e->n_seats; i++) {
        float *own = e->rows;
        if (e->n_seats > 1) own = sl_arena_alloc(&e->arena, vocab * sizeof(float), 64);
        e->seat[i].own = own;
        ok &= own != NULL;
    }
    if (!ok || !e->rows || !e->sampler.weight || !e->sampler.order)
        return sl_fail(err, SL_E_BUDGET, NULL, NULL, "session arena of %zu bytes is too small",
                       e->arena.bytes);
    measured(s, SL_EG_LOGITS, e->arena.used - mark);
    return 0;
}

static int open_parts(struct sluice_session *s, struct sl_engine *e, const struct sl_engine_opts *o,
                      struct sl_err *err)
{
    const struct sl_config *c = &s->p->pack->cfg;
    const struct sl_engine_plan *plan = &s->plan;
    int rc = sl_pool_open(&e->pool, plan->threads, err);
    if (rc) return rc;
    rc = sl_arena_init(&e->arena, plan->session_bytes, "session", err);
    if (rc) return rc;
    sl_numa_pin_workers(sl_numa_system(), e->pool);
    sl_numa_interleave(sl_numa_system(), e->arena.base, e->arena.bytes);
    touch(&e->arena, e->pool);
    struct sl_stream_opts ring = {.parts = s->p->model->parts, .n_parts = s->p->model->n_parts};
    sl_trunk_ring(s->p->pack, &ring.piece_bytes, &ring.n_pieces);
    const struct sl_store_opts so = {.stream = ring.n_parts ? &ring : NULL,
                                     .slot_budget_bytes = plan->slot_budget,
                                     .io = o->io,
                                     .evict = o->evict,
                                     .check_crc = o->check_crc,
                                     .check_first = o->check_first};
    rc = sl_store_open(&e->store, s->p->pack, &so, err);
    if (rc) return rc;

    size_t mark = e->arena.used;
    rc = open_seats(s, e, o, err);
    if (rc) return rc;
    uint64_t state_bytes = e->arena.used - mark;
    mark = e->arena.used;
    struct sl_graph_opts go = {(int)plan->panel, plan->info.ctx, o->fast};
    rc = sl_graph_open(&e->graph, s->p->model, &s->kernels, e->pool, e->store, &e->arena, &go, err);
    if (rc) return rc;
    e->ranks = s->plan.ranks; /* the first session may be closed before the others */
    sl_graph_set_ranks(e->graph, e->ranks.ranks);
    if (o->lookahead)
        rc = sl_lookahead_open(&e->ahead, s->p->model, s->p->ahead_maps, o->lookahead, &e->arena,
                               err);
    if (rc) return rc;
    measured(s, SL_EG_ACTIVATIONS, e->arena.used - mark);
    rc = open_rows(s, e, err);
    if (rc) return rc;

    /* The state's parts have the sizes they were priced at, or opening would have failed. */
    struct sl_state_bytes sb;
    sl_state_price(c, plan->info.ctx, plan->form, &sb);
    const uint64_t seats = (uint64_t)e->n_seats;
    measured(s, SL_EG_KDA, seats * sb.kda);
    measured(s, SL_EG_CONV, seats * sb.conv);
    measured(s, SL_EG_MLA, seats * sb.mla_rows);
    measured(s, SL_EG_KEYS, seats * sb.mla_expanded);
    uint64_t parts = seats * (sb.kda + sb.conv + sb.mla_rows + sb.mla_expanded);
    measured(s, SL_EG_TABLES,
             (state_bytes > parts ? state_bytes - parts : 0) +
                 (s->p->arena.used - s->p->trunk_bytes));
    return 0;
}

static void page_faults(uint64_t *minor, uint64_t *major)
{
    struct rusage u = {0};
    (void)getrusage(RUSAGE_SELF, &u);
    *minor = (uint64_t)u.ru_minflt;
    *major = (uint64_t)u.ru_majflt;
}

int sluice_session_open(sluice_session **out, sluice_pack *p, const sluice_options *opts,
                        sluice_error *error)
{
    struct sl_err err = {0};
    struct sl_engine_opts o = p->opts;
    *out = NULL;
    int rc = opts ? sl_engine_options(&p->pack->cfg, opts, &o, &err) : 0;
    if (rc) return sl_engine_give(error, &err, rc);
    struct sluice_session *s = calloc(1, sizeof *s);
    if (!s) return sl_engine_give(error, &err, sl_fail(&err, SL_E_NOMEM, NULL, NULL, "no memory"));
    rc = sl_engine_plan(p, &o, &s->plan, &err);
    if (rc) goto fail;
    sl_kernels_init(&s->kernels, sl_cpu_detect());
    s->p = p;
    rc = take_weights(s, &o, &err);
    if (rc) {
        s->p = NULL;
        goto fail;
    }
    struct sl_engine *e = calloc(1, sizeof *e);
    rc = e ? open_parts(s, e, &o, &err) : sl_fail(&err, SL_E_NOMEM, NULL, NULL, "no memory");
    if (rc) {
        close_engine(e);
        goto fail;
    }
    take_seat(s, e, &e->seat[0]);
    s->evict = o.evict;
    page_faults(&s->minor_faults, &s->major_faults);
    if (opts && opts->trace && sluice_trace(s, opts->trace, error)) {
        rc = error ? error->code : SL_E_IO;
        sluice_session_close(s);
        return rc;
    }
    *out = s;
    return 0;
fail:
    sluice_session_close(s);
    return sl_engine_give(error, &err, rc);
}

int sluice_session_join(sluice_session **out, sluice_session *beside, sluice_error *error)
{
    struct sl_err err = {0};
    struct sl_engine *e = beside->e;
    int i = 0;
    *out = NULL;
    while (i < e->n_seats && e->seat[i].taken) i++;
    if (i == e->n_seats)
        return sl_engine_give(
            error, &err,
            sl_fail(&err, SL_E_ARG, NULL, "seats", "all %d of this engine are taken", e->n_seats));
    struct sluice_session *s = calloc(1, sizeof *s);
    if (!s) return sl_engine_give(error, &err, sl_fail(&err, SL_E_NOMEM, NULL, NULL, "no memory"));
    s->p = beside->p;
    s->plan = beside->plan;
    s->kernels = beside->kernels;
    s->evict = beside->evict;
    s->minor_faults = beside->minor_faults;
    s->major_faults = beside->major_faults;
    pthread_mutex_lock(&s->p->lock);
    s->p->users++;
    pthread_mutex_unlock(&s->p->lock);
    take_seat(s, e, &e->seat[i]);
    sl_state_reset(s->state);
    *out = s;
    return 0;
}

void sluice_session_close(sluice_session *s)
{
    if (!s) return;
    if (s->trace) sl_trace_finish(s->trace, false, NULL);
    if (s->e) {
        if (s->trace || s->routes) sl_graph_observe(s->graph, NULL);
        s->seat->taken = false;
        if (--s->e->users == 0) close_engine(s->e);
    }
    free(s->routes);
    if (s->p) give_weights(s->p);
    free(s);
}

void sluice_session_reset(sluice_session *s)
{
    sl_state_reset(s->state);
    s->last = NULL;
    s->spoiled = false;
}

uint64_t sluice_position(const sluice_session *s)
{
    return s->state->position;
}
const float *sluice_logits(const sluice_session *s)
{
    return s->last;
}

/* ---------------------------------------------------------------- feeding and picking */

int sl_engine_check_feed(const struct sluice_session *s, const int32_t *ids, size_t n,
                         struct sl_err *err)
{
    uint64_t ctx = s->plan.info.ctx;
    uint64_t at = s->state->position;
    int vocab = s->p->pack->cfg.vocab_size;
    if (s->spoiled)
        return sl_fail(err, SL_E_ARG, NULL, NULL, "a feed failed: the session must be reset first");
    if (n > ctx - at)
        return sl_fail(err, SL_E_CTX, NULL, NULL,
                       "context: %zu tokens at position %llu do not fit into %llu (--ctx)", n,
                       (unsigned long long)at, (unsigned long long)ctx);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return sl_fail(err, SL_E_ARG, NULL, NULL,
                           "token %zu: id %d is outside the vocabulary of %d", i, ids[i], vocab);
    return 0;
}

static double drive_busy(const struct sl_engine *e)
{
    struct sl_store_stats st;
    double sum = 0;
    sl_store_get_stats(e->store, &st);
    for (int i = 0; i < st.n_drives; i++) sum += st.drives[i].busy_seconds;
    return st.n_drives ? sum / st.n_drives : 0;
}

static void copy_drives(const struct sl_store_stats *st, sluice_stats *out)
{
    _Static_assert(SL_STORE_DRIVES <= SLUICE_MAX_DRIVES, "the public table holds all drives");
    out->n_drives = st->n_drives;
    for (int i = 0; i < st->n_drives; i++) {
        const struct sl_store_drive *d = &st->drives[i];
        out->drives[i] = (sluice_drive){d->dir,    d->reads,        d->bytes,
                                        d->errors, d->busy_seconds, d->bytes_per_second};
    }
}

static void add_stages(sluice_stages *sum, const struct sl_stage_seconds *before,
                       const struct sl_stage_seconds *after, double share)
{
    sum->attention += share * (after->attention - before->attention);
    sum->experts += share * (after->experts - before->experts);
    sum->waiting += share * (after->waiting - before->waiting);
    sum->head += share * (after->head - before->head);
}

void sl_engine_clock_begin(const struct sl_engine *e, struct sl_feed_clock *c)
{
    sl_graph_get_stages(e->graph, &c->stages);
    c->busy = drive_busy(e);
    c->start = now_seconds();
}

double sl_engine_clock_end(struct sl_engine *e, const struct sl_feed_clock *c, double share)
{
    const double seconds = now_seconds() - c->start;
    const double busy = drive_busy(e) - c->busy;
    struct sl_stage_seconds after;
    sl_graph_get_stages(e->graph, &after);
    add_stages(&e->decode_stages, &c->stages, &after, share);
    add_stages(&e->prefill_stages, &c->stages, &after, 1 - share);
    e->decode_busy += share * busy;
    e->prefill_busy += (1 - share) * busy;
    e->decode_seconds += share * seconds;
    e->prefill_seconds += (1 - share) * seconds;
    return seconds;
}

int sluice_feed_logits(sluice_session *s, const int32_t *ids, size_t n, sluice_logits_fn on_logits,
                       void *ctx, sluice_error *error)
{
    struct sl_err err = {0};
    struct sl_engine *e = s->e;
    int rc = sl_engine_check_feed(s, ids, n, &err);
    if (rc) return sl_engine_give(error, &err, rc);
    bool decode = n == 1 && s->state->position > 0;
    struct sl_feed_clock clock;
    sl_engine_clock_begin(e, &clock);
    if (n) memcpy(s->ids + s->state->position, ids, n * sizeof *ids);
    sl_graph_look_ahead(s->graph, decode ? e->ahead : NULL);
    rc = sl_engine_feed(s, ids, n, on_logits, ctx, &err);
    if (rc) {
        s->spoiled = true;
        s->last = NULL;
        /* a callback's own value comes back as it is */
        return err.code ? sl_engine_give(error, &err, rc) : rc;
    }
    const double seconds = sl_engine_clock_end(e, &clock, decode);
    if (decode) {
        sl_draft_learn(&e->draft, seconds, 1, 0, 0);
        e->decode_tokens++;
        e->decode_steps++;
    } else {
        e->prefill_tokens += n;
    }
    return 0;
}

int sluice_feed(sluice_session *s, const int32_t *ids, size_t n, sluice_error *error)
{
    return sluice_feed_logits(s, ids, n, NULL, NULL, error);
}

int sl_engine_pick(struct sluice_session *s, const float *logits, uint64_t position,
                   const sluice_sampling *sampling, int32_t *id, struct sl_err *err)
{
    static const sluice_sampling greedy = {0, 1, 0, 0};
    const sluice_sampling *o = sampling ? sampling : &greedy;
    double top_p = o->top_p != 0 ? o->top_p : 1;
    /* written so that NaN fails too */
    if (!(o->temperature >= 0 && o->temperature < 1e6))
        return sl_fail(err, SL_E_ARG, NULL, "temperature", "%g is not from 0 to 1e6",
                       o->temperature);
    if (!(top_p > 0 && top_p <= 1))
        return sl_fail(err, SL_E_ARG, NULL, "top_p", "%g is not in (0, 1]", top_p);
    *id = sl_sample(&s->kernels, &s->e->sampler, logits, o->temperature, top_p, o->seed, position);
    return !o->ignore_eos && sluice_is_stop(s->p, *id);
}

int sluice_pick(sluice_session *s, const sluice_sampling *sampling, int32_t *id,
                sluice_error *error)
{
    struct sl_err err = {0};
    int rc = s->last ? sl_engine_pick(s, s->last, s->state->position, sampling, id, &err)
                     : sl_fail(&err, SL_E_ARG, NULL, NULL, "no token was fed yet");
    return rc < 0 ? sl_engine_give(error, &err, rc) : rc;
}

int sluice_next(sluice_session *s, const sluice_sampling *sampling, int32_t *id,
                sluice_error *error)
{
    int rc = sluice_pick(s, sampling, id, error);
    return rc ? rc : sluice_feed(s, id, 1, error);
}

/* ---------------------------------------------------------------- counts */

void sluice_get_stats(const sluice_session *s, sluice_stats *out)
{
    struct sl_store_stats st;
    uint64_t resident = 0;
    uint64_t peak = 0;
    sl_store_get_stats(s->store, &st);
    sl_process_memory(&resident, &peak);
    const uint64_t record = st.reads ? st.bytes_read / st.reads : st.slot_bytes; /* mean */
    *out = (sluice_stats){
        .planned_peak_bytes = s->plan.info.planned_peak_bytes,
        .measured_peak_bytes = peak,
        .expert_bytes_read = st.bytes_read,
        .expert_hits = st.hits,
        .expert_misses = st.misses,
        .prefill_tokens = s->e->prefill_tokens,
        .decode_tokens = s->e->decode_tokens,
        .prefill_seconds = s->e->prefill_seconds,
        .decode_seconds = s->e->decode_seconds,
        .stall_seconds = st.stall_seconds + st.stream_stall_seconds,
        .prefill_stages = s->e->prefill_stages,
        .decode_stages = s->e->decode_stages,
        .prefill_drive_busy_seconds = s->e->prefill_busy,
        .decode_drive_busy_seconds = s->e->decode_busy,
        .trunk_bytes_read = sl_trunk_bytes_read(s->p->trunk) + st.stream_bytes,
        .trunk_bytes_streamed = st.stream_bytes,
        .expert_bytes_used = st.bytes_used,
        .expert_refill_bytes = st.refill_bytes,
        .lent_peak_bytes = st.lent_peak_bytes,
        .decode_steps = s->e->decode_steps,
        .guessed_tokens = s->e->guessed,
        .accepted_tokens = s->e->accepted,
        .prefill_chunks = s->e->chunks,
        .ahead_queued = st.prefetch_issued,
        .ahead_used = st.prefetch_used,
        .ahead_wasted = st.prefetch_wasted,
        .ahead_dropped = st.prefetch_dropped,
        .ahead_wasted_bytes = st.prefetch_wasted * record,
        .direct_io = st.direct_io,
        .io = sl_io_name(st.io),
        .evict = s->evict,
        .threads = s->plan.threads,
        .synthetic = s->p->pack->synthetic,
        .isa = sl_cpu_name(s->kernels.cpu),
    };
    if (s->e->ahead) {
        out->ahead_named = s->e->ahead->stats.named;
        out->ahead_right = s->e->ahead->stats.right;
    }
    page_faults(&out->minor_faults, &out->major_faults);
    out->minor_faults -= s->minor_faults;
    out->major_faults -= s->major_faults;
    copy_drives(&st, out);
    memcpy(out->io_note, st.io_note, sizeof out->io_note);
}
