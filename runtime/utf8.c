/* UTF-8 by the Unicode standard's table 3-7, one character at a time.
 *
 * The second byte carries all the special cases (overlong forms, surrogates, the end at U+10FFFF):
 * each lead byte allows it one interval, the bytes after it are plain 80..BF. So the code keeps an
 * interval for "the next byte" and is done with special cases after one step. */
#include "runtime/utf8.h"

#include <string.h>

/* Length by lead byte, and the interval of the second byte; 0 for a byte that starts nothing. */
static unsigned lead_shape(unsigned char b, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (b < 0x80) return 1;
    if (b < 0xc2 || b > 0xf4) return 0; /* C0, C1: overlong; above F4: past U+10FFFF */
    if (b < 0xe0) return 2;
    if (b < 0xf0) {
        if (b == 0xe0) *lo = 0xa0; /* overlong below */
        if (b == 0xed) *hi = 0x9f; /* surrogates above */
        return 3;
    }
    if (b == 0xf0) *lo = 0x90;
    if (b == 0xf4) *hi = 0x8f;
    return 4;
}

size_t sl_utf8_char(const char *s, size_t n, uint32_t *cp, size_t *bad)
{
    const unsigned char *b = (const unsigned char *)s;
    unsigned char lo, hi;
    unsigned len = lead_shape(b[0], &lo, &hi);
    if (len == 0) {
        if (bad) *bad = 1;
        return 0;
    }
    uint32_t c = len == 1 ? b[0] : b[0] & (0x7fu >> len);
    for (unsigned i = 1; i < len; i++) {
        if (i >= n) {
            if (bad) *bad = 0;
            return 0;
        }
        if (b[i] < lo || b[i] > hi) {
            if (bad) *bad = i;
            return 0;
        }
        c = c << 6 | (b[i] & 0x3f);
        lo = 0x80;
        hi = 0xbf;
    }
    if (cp) *cp = c;
    return len;
}

size_t sl_utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t w;
        if (n - i >= sizeof w) { /* most text is ASCII: eight bytes at a step */
            memcpy(&w, s + i, sizeof w);
            if (!(w & 0x8080808080808080u)) {
                i += sizeof w;
                continue;
            }
        }
        size_t len = sl_utf8_char(s + i, n - i, NULL, NULL);
        if (!len) break;
        i += len;
    }
    return i;
}

size_t sl_utf8_complete(const char *s, size_t n)
{
    /* Only a lead byte among the last three can start a character that is still open. */
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char b = (unsigned char)s[n - back];
        if ((b & 0xc0) == 0x80) continue;
        size_t bad = 1;
        if (!sl_utf8_char(s + n - back, back, NULL, &bad) && bad == 0) return n - back;
        break;
    }
    return n;
}

size_t sl_utf8_put(char *out, uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)((0xf00u >> len & 0xf0u) | cp);
    return len;
}

size_t sl_utf8_feed(struct sl_utf8_stream *u, const char *in, size_t n, char *out)
{
    size_t w = 0;
    size_t i = 0;
    while (i < n || u->n_held > 0) {
        /* A window that starts with what was held; a character is at most 4 bytes. */
        char win[4];
        size_t held = u->n_held, k = held;
        memcpy(win, u->held, held);
        while (k < 4 && i + (k - held) < n) {
            win[k] = in[i + (k - held)];
            k++;
        }
        size_t bad = 0;
        size_t len = sl_utf8_char(win, k, NULL, &bad);
        if (!len && !bad) { /* open at the end of the input: hold it */
            memcpy(u->held, win, k);
            u->n_held = (unsigned)k;
            return w;
        }
        size_t eaten = len ? len : bad;
        if (len) {
            memcpy(out + w, win, len);
            w += len;
        } else {
            w += sl_utf8_put(out + w, 0xfffd);
        }
        /* Held bytes are the start of one character, so a subpart that ends inside them cannot
         * occur: it ends at the first byte that does not fit, which is new. */
        i += eaten - held;
        u->n_held = 0;
    }
    return w;
}

size_t sl_utf8_finish(struct sl_utf8_stream *u, char *out)
{
    if (!u->n_held) return 0;
    u->n_held = 0;
    return sl_utf8_put(out, 0xfffd);
}
