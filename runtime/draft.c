/* Look-up and balance (see draft.h). */
#include "runtime/draft.h"

#include <string.h>

enum { LONG = 3, SHORT = 2, FIRST_TRIES = 3, RETRY = 32 };
static const double SLOW = 0.2; /* share of the latest in a mean */

/* The end of the last earlier place where the `match` latest ids stand; 0: there is none. */
static size_t find(const int32_t *ids, size_t n, int32_t next, size_t match)
{
    const size_t before = match - 1; /* of ids; next is the last of the match */
    if (n < match) return 0;
    const int32_t *want = ids + n - before;
    for (size_t end = n; end >= match; end--)
        if (ids[end - 1] == next && memcmp(ids + end - match, want, before * sizeof *ids) == 0)
            return end;
    return 0;
}

size_t sl_draft_guess(const int32_t *ids, size_t n, int32_t next, size_t most, int32_t *out)
{
    size_t from = find(ids, n, next, LONG);
    if (!from) from = find(ids, n, next, SHORT);
    if (!from) return 0;
    size_t k = 0;
    for (; k < most && from + k <= n; k++) out[k] = from + k < n ? ids[from + k] : next;
    return k;
}

bool sl_draft_wants(struct sl_draft *d)
{
    if (!d->automatic) return true;
    if (d->plain <= 0) return false;
    if (d->tries < FIRST_TRIES || d->holds * d->plain > d->extra) return true;
    if (++d->passed < RETRY) return false;
    d->passed = 0;
    return true;
}

static double mean(double old, double value, bool first)
{
    return first ? value : (1 - SLOW) * old + SLOW * value;
}

void sl_draft_learn(struct sl_draft *d, double seconds, size_t n, size_t guessed, size_t held)
{
    if (!n) return;
    if (!guessed) {
        d->plain = mean(d->plain, seconds / (double)n, d->plain <= 0);
        return;
    }
    const bool first = d->tries++ == 0;
    d->extra = mean(d->extra, (seconds - d->plain * (double)n) / (double)guessed, first);
    d->holds = mean(d->holds, (double)held / (double)guessed, first);
    d->passed = 0;
}
