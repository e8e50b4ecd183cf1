/* Bytes that grow at the end: texts, JSON, file images built in memory. Start from {0}. */
#ifndef SL_BASE_BUF_H
#define SL_BASE_BUF_H

#include <stddef.h>
#include "base/err.h"

struct sl_buf {
    char *s; /* terminated by one NUL that is not counted; NULL while nothing was added */
    size_t n, cap;
};

/* SL_E_NOMEM leaves the bytes as they were. s may be NULL when n is 0. */
int sl_buf_add(struct sl_buf *b, const void *s, size_t n, struct sl_err *err);
int sl_buf_str(struct sl_buf *b, const char *s, struct sl_err *err);
int sl_buf_printf(struct sl_buf *b, struct sl_err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void sl_buf_free(struct sl_buf *b); /* {0} again */

#endif
