/* A prompt as a whole sequence: where to go on from, what to feed, where to stop and store.
 *
 *   ids  |---- session or store has it ----|---- fed ----|mark|---- fed ----|block end|-- fed --|
 *
 * The caller says which ids the sequence shall be; what of it is there already, in the session or in the
 * store of earlier states (prefix_cache.h), is this file's business. Stops cost a sweep of the experts
 * each, so that they are few: the caller's marks, thinned out, and in long texts every eighth block. */
#include "runtime/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"

enum { SPARSE_BLOCKS = 8, SUGGESTED_STATES = 8, SUGGESTED_SHARE = 8 };

/* ---------------------------------------------------------------- the store */

/* Whatever a state depends on: the source, every tensor and every record of the pack, the path that computes
 * it, and which ranks of p36 experts are read whole. */
static int identity(const struct sl_pack *pack, const struct sl_engine_plan *plan, bool fast,
                    unsigned char out[32], struct sl_err *err)
{
    struct sl_sha256 *h = sl_sha256_open();
    char hex[65];
    if (!h) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory");
    sl_sha256_add(h, pack->source_sha256, strlen(pack->source_sha256));
    if (fast) sl_sha256_add(h, "fast", sizeof "fast");
    for (int i = 0; i < pack->n_tensors; i++) {
        const struct sl_tensor *t = &pack->tensors[i];
        sl_sha256_add(h, t->name, strlen(t->name) + 1);
        sl_sha256_add(h, &t->fmt, sizeof t->fmt);
        sl_sha256_add(h, &t->crc32, sizeof t->crc32);
    }
    for (int b = 0; b < pack->n_banks; b++)
        for (uint32_t e = 0; e < pack->banks[b].n_experts; e++)
            sl_sha256_add(h, &pack->banks[b].entries[e].crc32,
                          sizeof pack->banks[b].entries[e].crc32);
    for (int l = 0; l < pack->cfg.n_layers; l++)
        sl_sha256_add(h, &plan->ranks.ranks[l], sizeof plan->ranks.ranks[l]);
    sl_sha256_close(h, hex);
    for (int i = 0; i < 32; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (unsigned char)byte;
    }
    return 0;
}

int sl_engine_open_prefix(struct sluice_pack *p, const struct sl_engine_plan *plan,
                          const struct sl_engine_opts *o, struct sl_err *err)
{
    struct sl_prefix_opts po = {.memory_bytes = o->prefix_bytes,
                                .dir = o->prefix_dir,
                                .disk_bytes = o->prefix_disk_bytes,
                                .block = o->prefix_block,
                                .form = o->fast ? SL_STATE_FAST : 0};
    if (!o->prefix_bytes) return 0;
    int rc = identity(p->pack, plan, o->fast, po.identity, err);
    return rc ? rc : sl_prefix_open(&p->prefix, &p->pack->cfg, &po, err);
}

uint64_t sluice_prefix_suggest(sluice_pack *p, const sluice_options *opts)
{
    sluice_plan_info plan;
    sluice_options o = opts ? *opts : (sluice_options){0};
    const struct sl_config *c = &p->pack->cfg;
    const unsigned form = o.exact < 0 ? SL_STATE_FAST : 0;
    o.prefix_bytes = 0;
    if (sluice_plan(p, &o, &plan, NULL)) return 0;
    const uint64_t most = plan.n_slots * plan.slot_bytes / SUGGESTED_SHARE;
    const uint64_t want = sl_prefix_bytes(c, form, o.prefix_block, plan.ctx, SUGGESTED_STATES);
    if (want <= most) return want;
    return most >= sl_prefix_bytes(c, form, o.prefix_block, 0, 1) ? most : 0;
}

int sluice_prefix_keep(sluice_session *s, sluice_error *error)
{
    struct sl_err err = {0};
    int rc = 0;
    if (s->spoiled)
        rc = sl_fail(&err, SL_E_ARG, NULL, NULL, "a feed failed: there is no state to keep");
    else if (s->p->prefix)
        rc = sl_prefix_insert(s->p->prefix, s->ids, s->state, &err);
    return rc ? sl_engine_give(error, &err, rc) : 0;
}

void sluice_get_prefix_stats(const sluice_session *s, sluice_prefix_stats *out)
{
    memset(out, 0, sizeof *out);
    if (s->p->prefix) sl_prefix_get_stats(s->p->prefix, out);
}

const int32_t *sluice_ids(const sluice_session *s)
{
    return s->ids;
}

/* ---------------------------------------------------------------- prompts */

/* Does the session stand at a start of ids? At all of them only if their logits are there. */
static bool goes_on(const struct sluice_session *s, const int32_t *ids, size_t n)
{
    const uint64_t at = s->state->position;
    if (s->spoiled || at > n || (at == n && !s->last)) return false;
    return at == 0 || memcmp(s->ids, ids, (size_t)at * sizeof *ids) == 0;
}

/* Brings the session to the longest start of ids that can be had without computing. */
static int find_start(struct sluice_session *s, const int32_t *ids, size_t n, struct sl_err *err)
{
    const bool here = goes_on(s, ids, n);
    const uint64_t above = here ? s->state->position : 0;
    uint64_t position = 0;
    int rc = 0;
    if (s->p->prefix && above < n) {
        const uint64_t before = s->state->position;
        rc = sl_prefix_restore(s->p->prefix, ids, n, above, s->state, &position, err);
        /* A damaged file may have cost the state that the session had. */
        if (rc || (!position && s->state->position != before)) {
            sluice_session_reset(s);
            return rc;
        }
    }
    if (position) {
        memcpy(s->ids, ids, (size_t)position * sizeof *ids);
        s->last = NULL;
        s->spoiled = false;
    } else if (!here) {
        sluice_session_reset(s);
    }
    return 0;
}

/* The next place to stop and store behind `at`; n: none. */
static size_t next_stop(const struct sluice_session *s, size_t at, size_t n, const size_t *marks,
                        size_t n_marks, size_t stopped)
{
    if (!s->p->prefix) return n;
    const size_t block = sl_prefix_block_ids(s->p->prefix);
    size_t step = SPARSE_BLOCKS * block;
    size_t stop = n;
    if (step < s->plan.info.chunk) step = (size_t)(s->plan.info.chunk + block - 1) / block * block;
    for (size_t i = n_marks; i > 0; i--) {
        const size_t m = marks[i - 1];
        if (m <= at || m >= stop) continue;
        if (i == 1 || i == n_marks || m >= stopped + block) stop = m;
    }
    const size_t sparse = (at / step + 1) * step;
    return sparse < stop ? sparse : stop;
}

size_t sluice_prompt_stop(const sluice_session *s, size_t n, const size_t *marks, size_t n_marks,
                          size_t stopped)
{
    return next_stop(s, (size_t)s->state->position, n, marks, n_marks, stopped);
}

int sluice_prompt_begin(sluice_session *s, const int32_t *ids, size_t n, size_t *at,
                        sluice_error *error)
{
    struct sl_err err = {0};
    int rc = 0;
    *at = 0;
    if (!n) rc = sl_fail(&err, SL_E_ARG, NULL, NULL, "prompt: no ids");
    if (n > s->plan.info.ctx)
        rc = sl_fail(&err, SL_E_CTX, NULL, NULL, "prompt: %zu tokens, --ctx is %llu", n,
                     (unsigned long long)s->plan.info.ctx);
    if (!rc) rc = find_start(s, ids, n, &err);
    if (rc) return sl_engine_give(error, &err, rc);
    *at = (size_t)s->state->position;
    return 0;
}

int sluice_prompt(sluice_session *s, const int32_t *ids, size_t n, const size_t *marks,
                  size_t n_marks, size_t *cached, sluice_error *error)
{
    size_t at;
    int rc = sluice_prompt_begin(s, ids, n, &at, error);
    if (cached) *cached = at;
    if (rc) return rc;
    for (size_t stopped = at; at < n; stopped = at) {
        const size_t to = next_stop(s, at, n, marks, n_marks, stopped);
        rc = sluice_feed(s, ids + at, to - at, error);
        if (!rc && to < n) rc = sluice_prefix_keep(s, error);
        if (rc) return rc;
        at = to;
    }
    return 0;
}
