/* A step of several sequences, and guesses: what sluice_step() does.
 *
 *   parts   [ ids . . . id | guess guess ]   [ id ]   [ ids . . . . . . . id ]
 *            `--- may be fed in pieces --'`--- the tail: in one feed --'
 *
 * All parts go through the graph together, as many tokens at a time as it holds; what follows the last
 * certain token (the tail) comes in one piece, because all its logits are looked at. A guess that fails
 * leaves the state too far on. Inside an open tile it is rolled back. A state of the exact path, or a tail
 * across the end of a tile, cannot be: then the recurrent state before the tail is copied, put back, and
 * the tokens that hold are fed again, those of all such parts in one feed. What that costs is for who
 * guesses to weigh (draft.h).
 *
 * Few tokens are requests like those of decode to the store; more are a sweep, as prompts are. */
#include <string.h>

#include "runtime/engine.h"

enum { SWEEP_TOKENS = 32 };

/* Where a part stands. */
struct progress {
    size_t fed;        /* of its tokens, guesses counted */
    uint64_t tail_pos; /* position before its tail */
    const float *rows; /* of its tail, in the feed just done */
    bool rewinds;
    bool again; /* guesses failed, and there is no way back */
};

static size_t part_tokens(const sluice_part *p)
{
    return p->n + p->n_guesses;
}

static size_t tail_of(const sluice_part *p)
{
    return 1 + p->n_guesses;
}

static int32_t token_of(const sluice_part *p, size_t i)
{
    return i < p->n ? p->ids[i] : p->guesses[i - p->n];
}

static int check_part(const sluice_part *parts, size_t i, const struct sl_engine *e,
                      struct sl_err *err)
{
    const sluice_part *p = &parts[i];
    if (p->session->e != e)
        return sl_fail(err, SL_E_ARG, NULL, "step", "part %zu is of another engine", i);
    for (size_t j = 0; j < i; j++)
        if (parts[j].session == p->session)
            return sl_fail(err, SL_E_ARG, NULL, "step", "parts %zu and %zu are one session", j, i);
    if (!p->n) return sl_fail(err, SL_E_ARG, NULL, "step", "part %zu has no token", i);
    if (p->n_guesses > (size_t)p->session->plan.draft)
        return sl_fail(err, SL_E_ARG, NULL, "step", "part %zu has %zu guesses, %d are planned", i,
                       p->n_guesses, p->session->plan.draft);
    int rc = sl_engine_check_feed(p->session, p->ids, p->n, err);
    if (!rc && p->n_guesses) rc = sl_engine_check_feed(p->session, p->guesses, p->n_guesses, err);
    if (!rc && p->n + p->n_guesses > p->session->plan.info.ctx - p->session->state->position)
        rc = sl_fail(err, SL_E_CTX, NULL, NULL,
                     "context: %zu guesses behind %zu tokens do not fit (--ctx)", p->n_guesses,
                     p->n);
    return rc;
}

/* ---------------------------------------------------------------- the state before a guess */

struct copy {
    unsigned char *at;
    bool back;
};

static int copy_piece(void *ctx, void *data, uint64_t bytes)
{
    struct copy *c = ctx;
    memcpy(c->back ? data : c->at, c->back ? c->at : data, (size_t)bytes);
    c->at += bytes;
    return 0;
}

static void copy_state(const sluice_session *s, bool back)
{
    struct copy c = {s->seat->before, back};
    (void)sl_state_each_recurrent(s->state, copy_piece, &c);
}

/* Expanded keys before that position stay good. */
static void put_back(const sluice_session *s, uint64_t position)
{
    const uint64_t expanded = s->state->n_expanded;
    sl_state_place(s->state, position);
    copy_state(s, true);
    s->state->n_expanded = expanded < position ? expanded : position;
}

/* ---------------------------------------------------------------- one feed */

struct feed {
    struct sl_graph_seq seqs[SL_ENGINE_SEATS];
    size_t part[SL_ENGINE_SEATS];
    int n_seqs, n_ids, n_rows;
    int32_t *ids;
};

/* Tokens of a tail can be taken back where the state is made for it; else it is copied before them. */
static bool rewinds(const sluice_part *p)
{
    return sl_state_rewind_span(p->session->state) >= tail_of(p);
}

/* Up to `room` more tokens of a part; none of its tail unless all of it fits. */
static void add(struct feed *f, const sluice_part *parts, size_t i, struct progress *g, int room,
                int row_room)
{
    const sluice_part *p = &parts[i];
    const size_t left = part_tokens(p) - g->fed;
    size_t n = left < (size_t)room ? left : (size_t)room;
    const bool whole = n == left && tail_of(p) <= (size_t)row_room;
    if (!whole && n > left - tail_of(p)) n = left - tail_of(p);
    if (!n) return;
    if (whole && p->n_guesses) {
        if (n > tail_of(p)) /* what is certain first, so that the copy is taken between */
            n -= tail_of(p);
        else if (!(g->rewinds = rewinds(p)))
            copy_state(p->session, false);
    }
    const bool tail = n == left;
    const int rows = tail ? (int)tail_of(p) : 0;
    for (size_t k = 0; k < n; k++) f->ids[f->n_ids++] = token_of(p, g->fed + k);
    f->part[f->n_seqs] = i;
    f->seqs[f->n_seqs++] = (struct sl_graph_seq){p->session->state, (int)n, rows};
    f->n_rows += rows;
}

/* Guesses that hold; the logits behind the last one become the session's. */
static int judge(sluice_part *p, struct progress *g, struct sl_err *err)
{
    sluice_session *s = p->session;
    const size_t vocab = (size_t)s->p->pack->cfg.vocab_size;
    uint64_t pos = g->tail_pos + 1;
    p->accepted = 0;
    while (p->accepted < p->n_guesses) {
        int32_t id;
        const int rc = sl_engine_pick(s, g->rows + p->accepted * vocab, pos, p->sampling, &id, err);
        if (rc < 0) return rc;
        if (rc == 1 || id != p->guesses[p->accepted]) break;
        p->accepted++;
        pos++;
    }
    if (p->accepted == p->n_guesses) return 0;
    g->again = !g->rewinds;
    return g->again ? 0 : sl_state_rollback(s->state, p->n_guesses - p->accepted, err);
}

/* Feeds once; judges the parts whose tail was in it. Their rows lie in s->rows, which a seat's own row may
 * be a part of: so the one to keep is moved after all were looked at. */
static int feed_once(sluice_part *parts, struct progress *g, struct feed *f, struct sl_engine *e,
                     struct sl_err *err)
{
    const size_t vocab = (size_t)parts[0].session->p->pack->cfg.vocab_size;
    int rc =
        sl_graph_feed_many(e->graph, f->seqs, f->n_seqs, f->ids, f->n_rows ? e->rows : NULL, err);
    const float *row = e->rows;
    for (int k = 0; k < f->n_seqs && !rc; k++) {
        sluice_part *p = &parts[f->part[k]];
        struct progress *at = &g[f->part[k]];
        at->fed += (size_t)f->seqs[k].n;
        if (!f->seqs[k].n_logits) continue;
        at->rows = row;
        at->tail_pos = p->session->state->position - tail_of(p);
        row += (size_t)f->seqs[k].n_logits * vocab;
        rc = judge(p, at, err);
    }
    for (int k = 0; k < f->n_seqs && !rc; k++) {
        sluice_part *p = &parts[f->part[k]];
        if (!f->seqs[k].n_logits) continue;
        sluice_session *s = p->session;
        memmove(s->seat->own, g[f->part[k]].rows + p->accepted * vocab, vocab * sizeof(float));
        s->last = s->seat->own;
    }
    return rc;
}

/* Puts back the states of parts whose guesses failed, and feeds again what holds. */
static int feed_again(sluice_part *parts, size_t n_parts, struct progress *g, struct feed *f,
                      struct sl_engine *e, struct sl_err *err)
{
    const int chunk = sl_graph_chunk(e->graph);
    int rc = 0;
    for (size_t i = 0; i < n_parts && !rc;) {
        f->n_seqs = f->n_ids = f->n_rows = 0;
        for (; i < n_parts; i++) {
            const sluice_part *p = &parts[i];
            if (!g[i].again) continue;
            const int n = (int)(1 + p->accepted);
            if (n > chunk - f->n_ids) break;
            put_back(p->session, g[i].tail_pos);
            for (int k = 0; k < n; k++) f->ids[f->n_ids++] = token_of(p, p->n - 1 + (size_t)k);
            f->seqs[f->n_seqs++] = (struct sl_graph_seq){p->session->state, n, 0};
        }
        if (!f->n_seqs) break;
        rc = sl_graph_feed_many(e->graph, f->seqs, f->n_seqs, f->ids, NULL, err);
    }
    return rc;
}

static int run(sluice_part *parts, size_t n_parts, struct progress *g, bool sweep,
               struct sl_engine *e, struct sl_err *err)
{
    const int chunk = sl_graph_chunk(e->graph);
    const int most_rows = (int)parts[0].session->plan.logit_rows;
    struct feed f = {.ids = e->step_ids};
    int rc = 0;
    for (;;) {
        f.n_seqs = f.n_ids = f.n_rows = 0;
        for (size_t i = 0; i < n_parts; i++)
            if (g[i].fed < part_tokens(&parts[i]))
                add(&f, parts, i, &g[i], chunk - f.n_ids, most_rows - f.n_rows);
        if (!f.n_seqs) break;
        rc = feed_once(parts, g, &f, e, err);
        if (rc) return rc;
        if (sweep) sl_store_sweep_routes(e->store, sl_graph_routes(e->graph), f.n_ids);
        e->chunks += f.n_ids > f.n_seqs;
    }
    return feed_again(parts, n_parts, g, &f, e, err);
}

/* ---------------------------------------------------------------- guesses */

size_t sluice_guess(sluice_session *s, int32_t next, int32_t *out)
{
    const uint64_t at = s->state->position;
    const uint64_t room = s->plan.info.ctx - at;
    size_t most = (size_t)s->plan.draft;
    if (room < most + 1) most = room ? (size_t)room - 1 : 0;
    if (!most) return 0;
    const size_t n = sl_draft_guess(s->ids, (size_t)at, next, most, out);
    return n && sl_draft_wants(&s->e->draft) ? n : 0;
}

int sluice_feed_on(sluice_session *s, int32_t id, const sluice_sampling *sampling, size_t most,
                   int32_t *more, size_t *n_more, sluice_error *error)
{
    sluice_part part = {.session = s, .ids = &id, .n = 1, .guesses = more, .sampling = sampling};
    part.n_guesses = sluice_guess(s, id, more);
    if (part.n_guesses > most) part.n_guesses = most;
    const int rc = sluice_step(&part, 1, error);
    *n_more = rc ? 0 : part.accepted;
    return rc;
}

/* Where tokens are taken back inside the open tile, no guess may lie beyond it. */
static void trim(sluice_part *p)
{
    const struct sl_state *st = p->session->state;
    if (!(st->form & SL_STATE_REWIND)) return;
    const uint64_t room = SL_KDA_TILE - 1 - (st->position + p->n - 1) % SL_KDA_TILE;
    if (p->n_guesses > room) p->n_guesses = (size_t)room;
}

/* ---------------------------------------------------------------- the step */

static void count(struct sl_engine *e, const sluice_part *parts, size_t n_parts,
                  const struct sl_feed_clock *clock, const uint64_t *before)
{
    uint64_t decode = 0, prefill = 0;
    size_t guessed = 0, held = 0;
    for (size_t i = 0; i < n_parts; i++) {
        const uint64_t n = parts[i].n + parts[i].accepted;
        *(parts[i].n == 1 && before[i] ? &decode : &prefill) += n;
        guessed += parts[i].n_guesses;
        held += parts[i].accepted;
    }
    e->guessed += guessed;
    e->accepted += held;
    e->decode_tokens += decode;
    e->prefill_tokens += prefill;
    e->decode_steps += decode > 0;
    const double seconds =
        sl_engine_clock_end(e, clock, (double)decode / (double)(decode + prefill));
    if (!prefill) sl_draft_learn(&e->draft, seconds, n_parts, guessed, held);
}

int sluice_step(sluice_part *parts, size_t n_parts, sluice_error *error)
{
    struct sl_err err = {0};
    struct progress g[SL_ENGINE_SEATS] = {0};
    uint64_t before[SL_ENGINE_SEATS];
    int rc = 0;
    if (n_parts < 1 || n_parts > SL_ENGINE_SEATS)
        rc = sl_fail(&err, SL_E_ARG, NULL, "step", "%zu parts are outside 1 to %d", n_parts,
                     SL_ENGINE_SEATS);
    struct sl_engine *e = rc ? NULL : parts[0].session->e;
    uint64_t tokens = 0;
    for (size_t i = 0; i < n_parts && !rc; i++) {
        rc = check_part(parts, i, e, &err);
        if (!rc) trim(&parts[i]);
        tokens += part_tokens(&parts[i]);
    }
    if (rc) return sl_engine_give(error, &err, rc);
    if (n_parts == 1 && !parts[0].n_guesses) { /* with look-ahead, and long chunks */
        parts[0].accepted = 0;
        return sluice_feed(parts[0].session, parts[0].ids, parts[0].n, error);
    }
    for (size_t i = 0; i < n_parts; i++) {
        const sluice_part *p = &parts[i];
        before[i] = p->session->state->position;
        for (size_t k = 0; k < part_tokens(p); k++) p->session->ids[before[i] + k] = token_of(p, k);
    }
    struct sl_feed_clock clock;
    void *none;
    sl_engine_clock_begin(e, &clock);
    sl_graph_look_ahead(e->graph, NULL);
    const bool sweep = e->store && tokens > SWEEP_TOKENS;
    if (sweep) rc = sl_store_sweep_begin(e->store, 0, &none, &err);
    if (!rc) rc = run(parts, n_parts, g, sweep, e, &err);
    if (sweep) sl_store_sweep_end(e->store, !rc);
    if (rc) {
        for (size_t i = 0; i < n_parts; i++) {
            parts[i].session->spoiled = true;
            parts[i].session->last = NULL;
        }
        return sl_engine_give(error, &err, rc);
    }
    count(e, parts, n_parts, &clock, before);
    return 0;
}
