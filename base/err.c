/* One line for a person, and the number a script sees.
 *
 * Parts of a line come from files we do not trust (tensor names, paths, keys), so what ends up on a
 * terminal is well-formed UTF-8 without control characters: an escape sequence in a tensor name must
 * not recolour a screen, and a newline must not fake a second message. */
#define _GNU_SOURCE
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#undef sl_fail /* the analyzer's view is for callers */
#undef sl_fail_errno

static atomic_int interrupted;

/* Bytes of the UTF-8 character at s (n available), 0 when it is malformed or a control character.
 * Overlong forms, surrogates and values past U+10FFFF are malformed. */
static size_t printable_char(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80) return s[0] >= 0x20 && s[0] != 0x7f;
    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xc2 && s[1] < 0xa0)
        return 0; /* C1 controls: 0x9b alone opens an escape sequence */
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
    if (s[0] == 0xed && s[1] > 0x9f) return 0;
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
    return len;
}

static void make_printable(char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        size_t len = printable_char((const unsigned char *)text + i, n - i);
        if (!len) text[i] = '?';
        i += len ? len : 1;
    }
}

/* Appends at *at; a full buffer keeps what fits. */
static void append(struct sl_err *err, size_t *at, const char *fmt, va_list args)
{
    size_t room = sizeof err->text - *at;
    int n = vsnprintf(err->text + *at, room, fmt, args);
    if (n > 0) *at += (size_t)n < room ? (size_t)n : room - 1;
}

__attribute__((format(printf, 3, 4))) static void appendf(struct sl_err *err, size_t *at,
                                                          const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    append(err, at, fmt, args);
    va_end(args);
}

int sl_fail(struct sl_err *err, int code, const char *file, const char *field, const char *fmt, ...)
{
    if (!err) return code;
    /* Callers may pass the old text as an argument, so the line is built beside it. */
    struct sl_err line = {.code = code};
    size_t at = 0;
    if (file) appendf(&line, &at, "%s: ", file);
    if (field) appendf(&line, &at, "%s: ", field);
    va_list args;
    va_start(args, fmt);
    append(&line, &at, fmt, args);
    va_end(args);
    make_printable(line.text);
    *err = line;
    return code;
}

int sl_fail_errno(struct sl_err *err, int code, int sys_errno, const char *file, const char *what)
{
    if (sys_errno == ENOSPC || sys_errno == EDQUOT) code = SL_E_NOSPACE;
    if (sys_errno == ENOMEM) code = SL_E_NOMEM;
    if (sys_errno == EINTR && sl_interrupted()) code = SL_E_INTR;
    char buf[128];
    return sl_fail(err, code, file, what, "%s", strerror_r(sys_errno, buf, sizeof buf));
}

int sl_exit_status(int code)
{
    switch (code) {
    case SL_OK:
        return 0;
    case SL_E_ARG:
        return 2;
    case SL_E_SOURCE:
        return 3;
    case SL_E_PACK:
    case SL_E_IO:
        return 4;
    case SL_E_NOMEM:
    case SL_E_BUDGET:
    case SL_E_NOSPACE:
    case SL_E_CTX:
        return 5;
    case SL_E_DEVICE:
        return 6;
    case SL_E_INTR:
        return 130;
    default:
        return 1; /* not a code of ours: still a failure */
    }
}

int sl_interrupted(void)
{
    return atomic_load_explicit(&interrupted, memory_order_relaxed);
}

void sl_interrupt(void)
{
    atomic_store_explicit(&interrupted, 1, memory_order_relaxed);
}

void sl_interrupt_clear(void)
{
    atomic_store_explicit(&interrupted, 0, memory_order_relaxed);
}
