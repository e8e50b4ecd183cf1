/* Errors with context: a code that fixes the exit status, and one line for a person.
 *
 * Fallible functions return 0 or a negative SL_E_*; the caller owns a struct sl_err that receives
 * file, field and value. Libraries return; only the CLI prints and exits. Codes are grouped by cause
 * and keep their numbers once released. */
#ifndef SL_BASE_ERR_H
#define SL_BASE_ERR_H

#include <stddef.h>

enum {
    SL_OK = 0,
    SL_E_SOURCE =
        -10, /* the given checkpoint, text, board, trace or state file is unusable: exit 3 */
    SL_E_PACK = -20,    /* a pack of ours is missing, cut or corrupt: exit 4 */
    SL_E_IO = -21,      /* the drive or file system fails: exit 4 */
    SL_E_NOMEM = -30,   /* an allocation failed: exit 5 */
    SL_E_BUDGET = -31,  /* does not fit the memory promised: exit 5 */
    SL_E_NOSPACE = -32, /* disk full: exit 5 */
    SL_E_CTX = -33,     /* longer than the context: exit 5 */
    SL_E_ARG = -40,     /* wrong usage: exit 2 */
    SL_E_DEVICE = -50,  /* the GPU failed: exit 6 */
    SL_E_INTR = -60     /* interrupted: exit 130 */
};

struct sl_err {
    int code;        /* SL_OK or SL_E_* */
    char text[1024]; /* one line, no newline, printable: "file: field: what, what next" */
};

/* Fills err (may be NULL) and returns code. file and field may be NULL. The line is
 * "FILE: FIELD: formatted text"; control bytes in any part become '?'. */
int sl_fail(struct sl_err *err, int code, const char *file, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* As sl_fail for a failed system call: appends strerror(sys_errno); ENOSPC and EDQUOT become
 * SL_E_NOSPACE, ENOMEM SL_E_NOMEM, EINTR after sl_interrupted() SL_E_INTR, everything else keeps `code`. */
int sl_fail_errno(struct sl_err *err, int code, int sys_errno, const char *file, const char *what);

#ifdef __clang_analyzer__
/* Told to the static analyzer alone: an error code is never 0, so that `rc = p ? 0 : sl_fail(...)`
 * proves p where rc is 0. */
static inline int sl_fail_is_not_zero(int code)
{
    if (!code) __builtin_unreachable();
    return code;
}
#define sl_fail(...)       sl_fail_is_not_zero((sl_fail)(__VA_ARGS__))
#define sl_fail_errno(...) sl_fail_is_not_zero((sl_fail_errno)(__VA_ARGS__))
#endif

/* Exit status of design section 8 for a code. */
int sl_exit_status(int code);

/* Set by the CLI's SIGINT/SIGTERM handler; long loops poll it and return SL_E_INTR. */
int sl_interrupted(void);
void sl_interrupt(void);       /* async-signal-safe */
void sl_interrupt_clear(void); /* for hosts that go on after a cancel */

#endif
