/* Lines from a person at a terminal, or from a pipe.
 *
 * At a terminal: editing within the line and across its rows, history of this run, several lines by
 * paste (bracketed: a pasted newline is text, it never submits), by Ctrl-J, or by a backslash before
 * Enter. Keys are those of readline's Emacs mode as far as there are any. From a pipe: one line is one
 * message, a backslash at its end joins the next.
 *
 * Why not a library: readline's licence is not this project's, and libedit knows no bracketed paste. */
#ifndef SL_RUNTIME_LINE_INPUT_H
#define SL_RUNTIME_LINE_INPUT_H

#include <stdbool.h>
#include "base/buf.h"

struct sl_lines;

/* in and out are descriptors; a terminal is edited when both are one. Nothing is written to out else. */
int sl_lines_open(struct sl_lines **out, int in, int out_fd, struct sl_err *err);
void sl_lines_close(struct sl_lines *l); /* NULL is fine */
bool sl_lines_is_terminal(const struct sl_lines *l);

enum sl_line { SL_LINE_END, SL_LINE_TEXT, SL_LINE_CANCELLED };
/* The next message, without its newline, in *text (owned by l, valid until the next call; well-formed
 * UTF-8 from a terminal, any bytes but NUL from a pipe). CANCELLED: Ctrl-C, and the line was dropped.
 * END: end of input, Ctrl-D on an empty line, or a signal that ends the program. SL_E_NOMEM, SL_E_IO,
 * SL_E_SOURCE for a line of more than 64 MiB: negative. prompt: printable, one row. */
int sl_lines_read(struct sl_lines *l, const char *prompt, struct sl_buf **text, struct sl_err *err);

#endif
