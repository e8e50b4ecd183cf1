/* Stop strings (see serve_stop.h). Quadratic in the length of a stop string, which is short. */
#include "runtime/serve_stop.h"

#include <string.h>

/* Where the match that is complete first begins in v[n] (of several, the longest); n: there is none. By
 * its end and not by its beginning, since a stream cannot wait whether a longer one comes. */
static size_t first_match(const struct sl_serve_stop *s, const char *v, size_t n)
{
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (int i = 0; i < s->n; i++) {
            size_t len = strlen(s->stop[i]);
            if (len > longest && len <= end && memcmp(v + end - len, s->stop[i], len) == 0)
                longest = len;
        }
        if (longest) return end - longest;
    }
    return n;
}

/* Bytes at the end of v[n] that may be the beginning of a stop string. */
static size_t open_end(const struct sl_serve_stop *s, const char *v, size_t n)
{
    size_t most = 0;
    for (int i = 0; i < s->n; i++) {
        size_t len = strlen(s->stop[i]) - 1;
        for (size_t k = len < n ? len : n; k > most; k--)
            if (memcmp(v + n - k, s->stop[i], k) == 0) {
                most = k;
                break;
            }
    }
    return most;
}

int sl_serve_stop_feed(struct sl_serve_stop *s, const char *text, size_t len,
                       struct sl_serve_text *out)
{
    if (s->hit) return 1;
    sl_serve_text_add(&s->held, text, len);
    if (s->held.failed || !s->held.n) return 0;
    size_t at = first_match(s, s->held.v, s->held.n);
    s->hit = at < s->held.n;
    if (!s->hit) at -= open_end(s, s->held.v, s->held.n);
    sl_serve_text_add(out, s->held.v, at);
    sl_serve_text_shift(&s->held, at);
    return s->hit;
}

void sl_serve_stop_end(struct sl_serve_stop *s, struct sl_serve_text *out)
{
    if (!s->hit && s->held.n) sl_serve_text_add(out, s->held.v, s->held.n);
    s->held.n = 0;
}

void sl_serve_stop_free(struct sl_serve_stop *s)
{
    sl_serve_text_free(&s->held);
}
