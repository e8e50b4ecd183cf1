/* The growing buffer of replies (see serve_text.h). */
#include "runtime/serve_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/utf8.h"

enum { FIRST = 256 };

static bool room(struct sl_serve_text *t, size_t n)
{
    if (t->failed) return false;
    if (n < t->cap - t->n) return true; /* one more for the NUL */
    size_t cap = t->cap ? t->cap : FIRST;
    while (cap - t->n <= n) {
        if (cap > SIZE_MAX / 2) {
            t->failed = true;
            return false;
        }
        cap *= 2;
    }
    char *v = realloc(t->v, cap);
    if (!v) {
        t->failed = true;
        return false;
    }
    t->v = v;
    t->cap = cap;
    return true;
}

void sl_serve_text_add(struct sl_serve_text *t, const void *bytes, size_t n)
{
    if (!room(t, n)) return;
    if (n) memcpy(t->v + t->n, bytes, n);
    t->n += n;
    t->v[t->n] = 0;
}

void sl_serve_text_put(struct sl_serve_text *t, const char *s)
{
    sl_serve_text_add(t, s, strlen(s));
}

void sl_serve_text_fmt(struct sl_serve_text *t, const char *fmt, ...)
{
    char small[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) {
        t->failed = true;
    } else if ((size_t)n < sizeof small) {
        sl_serve_text_add(t, small, (size_t)n);
    } else if (room(t, (size_t)n)) {
        va_start(ap, fmt);
        (void)vsnprintf(t->v + t->n, (size_t)n + 1, fmt, ap);
        va_end(ap);
        t->n += (size_t)n;
    }
}

static void escaped(struct sl_serve_text *t, unsigned char c)
{
    switch (c) {
    case '"':
        sl_serve_text_add(t, "\\\"", 2);
        break;
    case '\\':
        sl_serve_text_add(t, "\\\\", 2);
        break;
    case '\n':
        sl_serve_text_add(t, "\\n", 2);
        break;
    case '\t':
        sl_serve_text_add(t, "\\t", 2);
        break;
    default:
        sl_serve_text_fmt(t, "\\u%04x", c);
    }
}

void sl_serve_text_quote(struct sl_serve_text *t, const char *bytes, size_t n)
{
    sl_serve_text_add(t, "\"", 1);
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)bytes[i];
        size_t plain = i;
        while (plain < n && (c = (unsigned char)bytes[plain]) >= 0x20 && c < 0x7f && c != '"' &&
               c != '\\')
            plain++;
        sl_serve_text_add(t, bytes + i, plain - i);
        i = plain;
        if (i == n) break;
        if (c < 0x80) {
            escaped(t, c);
            i++;
            continue;
        }
        size_t bad = 0;
        size_t len = sl_utf8_char(bytes + i, n - i, NULL, &bad);
        if (len) {
            sl_serve_text_add(t, bytes + i, len);
            i += len;
        } else {
            sl_serve_text_add(t, "\xef\xbf\xbd", 3);
            i += bad ? bad : n - i;
        }
    }
    sl_serve_text_add(t, "\"", 1);
}

void sl_serve_text_number(struct sl_serve_text *t, double v)
{
    if (isfinite(v))
        sl_serve_text_fmt(t, "%.17g", v);
    else
        sl_serve_text_put(t, "null");
}

void sl_serve_text_shift(struct sl_serve_text *t, size_t n)
{
    if (!n) return;
    memmove(t->v, t->v + n, t->n - n + 1);
    t->n -= n;
}

void sl_serve_text_free(struct sl_serve_text *t)
{
    free(t->v);
    *t = (struct sl_serve_text){0};
}
