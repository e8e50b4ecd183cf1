/* Growing bytes (buf.h): doubled when full, so that n bytes cost O(n) in all. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int reserve(struct sl_buf *b, size_t more, struct sl_err *err)
{
    if (more >= SIZE_MAX / 2 - b->n) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "text too long");
    size_t want = b->n + more + 1;
    if (want <= b->cap) return 0;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < want) cap *= 2;
    char *s = realloc(b->s, cap);
    if (!s) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for %zu bytes of text", cap);
    b->s = s;
    b->cap = cap;
    return 0;
}

int sl_buf_add(struct sl_buf *b, const void *s, size_t n, struct sl_err *err)
{
    int rc = reserve(b, n, err);
    if (rc) return rc;
    if (n) memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = 0;
    return 0;
}

int sl_buf_str(struct sl_buf *b, const char *s, struct sl_err *err)
{
    return sl_buf_add(b, s, strlen(s), err);
}

int sl_buf_printf(struct sl_buf *b, struct sl_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) return sl_fail(err, SL_E_ARG, NULL, NULL, "text does not format");
    int rc = reserve(b, (size_t)n, err);
    if (rc) return rc;
    va_start(ap, fmt);
    vsnprintf(b->s + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
    return 0;
}

void sl_buf_free(struct sl_buf *b)
{
    free(b->s);
    *b = (struct sl_buf){0};
}
