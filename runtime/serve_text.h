/* A byte buffer that grows, and JSON strings in it.
 *
 * Replies are written by hand instead of through a tree: one chunk a token is the server's inner loop.
 * A failed allocation sets `failed` and turns all later calls into nothing, so that a writer checks
 * once, at the end. Start from {0}. */
#ifndef SL_RUNTIME_SERVE_TEXT_H
#define SL_RUNTIME_SERVE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_serve_text {
    char *v; /* n bytes and a NUL that is not counted; NULL while empty */
    size_t n, cap;
    bool failed;
};

void sl_serve_text_add(struct sl_serve_text *t, const void *bytes, size_t n);
void sl_serve_text_put(struct sl_serve_text *t, const char *s);
void sl_serve_text_fmt(struct sl_serve_text *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* bytes[n] as a quoted JSON string; ill-formed UTF-8 becomes U+FFFD, so that the result always parses. */
void sl_serve_text_quote(struct sl_serve_text *t, const char *bytes, size_t n);
/* A finite number with all its digits; others become null. */
void sl_serve_text_number(struct sl_serve_text *t, double v);
/* Drops the first n bytes. */
void sl_serve_text_shift(struct sl_serve_text *t, size_t n);
void sl_serve_text_free(struct sl_serve_text *t);

#endif
