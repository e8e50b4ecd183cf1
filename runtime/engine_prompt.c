/* A prompt as a whole sequence: where to go on from, what to feed, where to stop and store.
 *
 * The caller says which ids the sequence shall be; what of it is there already, in the session or in the
 * store of earlier states (prefix_cache.h), is this file's business. */
#include "runtime/engine.h"

#include <string.h>

const int32_t *sluice_ids(const sluice_session *s)
{
    return s->ids;
}

/* Does the session stand at a start of ids? At all of them only if their logits are there. */
static bool goes_on(const struct sluice_session *s, const int32_t *ids, size_t n)
{
    const uint64_t at = s->state->position;
    if (s->spoiled || at > n || (at == n && !s->last)) return false;
    return at == 0 || memcmp(s->ids, ids, (size_t)at * sizeof *ids) == 0;
}

int sluice_prompt(sluice_session *s, const int32_t *ids, size_t n, const size_t *marks,
                  size_t n_marks, size_t *cached, sluice_error *error)
{
    struct sl_err err = {0};
    (void)marks;
    (void)n_marks;
    if (cached) *cached = 0;
    if (!n)
        return sl_engine_give(error, &err, sl_fail(&err, SL_E_ARG, NULL, NULL, "prompt: no ids"));
    if (n > s->plan.info.ctx)
        return sl_engine_give(error, &err,
                              sl_fail(&err, SL_E_CTX, NULL, NULL,
                                      "prompt: %zu tokens, --ctx is %llu", n,
                                      (unsigned long long)s->plan.info.ctx));
    if (!goes_on(s, ids, n)) sluice_session_reset(s);
    const size_t at = (size_t)s->state->position;
    if (cached) *cached = at;
    return at == n ? 0 : sluice_feed(s, ids + at, n - at, error);
}

int sluice_prefix_keep(sluice_session *s, sluice_error *error)
{
    struct sl_err err = {0};
    if (!s->spoiled) return 0;
    return sl_engine_give(
        error, &err,
        sl_fail(&err, SL_E_ARG, NULL, NULL, "a feed failed: there is no state to keep"));
}

void sluice_get_prefix_stats(const sluice_session *s, sluice_prefix_stats *out)
{
    (void)s;
    memset(out, 0, sizeof *out);
}
