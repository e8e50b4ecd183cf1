/* The text being edited, and how it lies on the screen: line_input.c without the terminal. */
#ifndef SL_RUNTIME_LINE_EDIT_H
#define SL_RUNTIME_LINE_EDIT_H

#include "base/buf.h"

struct sl_edit {
    struct sl_buf text; /* well-formed UTF-8; newlines are text */
    size_t at;          /* cursor, a byte offset on a character border */
};

/* Inserts at the cursor: well-formed characters as they are, ill-formed bytes not at all; CR and CR LF
 * become a newline, other control characters but tab are dropped. */
int sl_edit_insert(struct sl_edit *e, const char *s, size_t n, struct sl_err *err);
void sl_edit_remove(struct sl_edit *e, size_t from,
                    size_t to); /* the cursor stays where it was in the text */
int sl_edit_set(struct sl_edit *e, const char *s, size_t n,
                struct sl_err *err); /* cursor at the end */

size_t sl_edit_left(const struct sl_edit *e,
                    size_t at); /* one character; at the border: at itself */
size_t sl_edit_right(const struct sl_edit *e, size_t at);
size_t sl_edit_word_left(const struct sl_edit *e, size_t at);
size_t sl_edit_word_right(const struct sl_edit *e, size_t at);
size_t sl_edit_line_start(const struct sl_edit *e, size_t at);
size_t sl_edit_line_end(const struct sl_edit *e, size_t at);

/* Appends what shows prompt and text on `columns` wide rows, and where cursor and end lie, from the first
 * row. Lines after the first are indented as wide as the prompt; a tab shows as one column. */
struct sl_edit_screen {
    size_t row, column; /* of the cursor */
    size_t rows;        /* of the end; 0: all is on the first */
};
int sl_edit_draw(const struct sl_edit *e, const char *prompt, size_t columns, struct sl_buf *out,
                 struct sl_edit_screen *screen, struct sl_err *err);

#endif
