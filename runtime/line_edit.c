/* Editing and layout (line_edit.h). Rows are broken here and never by the terminal, so that this file
 * and the screen cannot disagree about where a row ends. Widths are wcwidth's, in a UTF-8 locale. */
#define _GNU_SOURCE /* wcwidth */
#include "runtime/line_edit.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <wchar.h>
#include "runtime/utf8.h"

static int insert_plain(struct sl_edit *e, const char *s, size_t n, struct sl_err *err)
{
    const size_t tail = e->text.n - e->at;
    int rc = sl_buf_add(&e->text, s, n, err);
    if (rc || !n) return rc;
    memmove(e->text.s + e->at + n, e->text.s + e->at, tail);
    memcpy(e->text.s + e->at, s, n);
    e->at += n;
    return 0;
}

int sl_edit_insert(struct sl_edit *e, const char *s, size_t n, struct sl_err *err)
{
    struct sl_buf clean = {0};
    int rc = 0;
    for (size_t i = 0; i < n && !rc;) {
        size_t bad = 0;
        uint32_t c;
        const size_t len = sl_utf8_char(s + i, n - i, &c, &bad);
        if (!len) {
            i += bad ? bad : n - i;
            continue;
        }
        if (c == '\r' || c == '\n' || c == '\t' || (c >= 0x20 && (c < 0x7f || c > 0x9f))) {
            const bool crlf = c == '\n' && i && s[i - 1] == '\r';
            if (!crlf)
                rc = c == '\r' ? sl_buf_add(&clean, "\n", 1, err)
                               : sl_buf_add(&clean, s + i, len, err);
        }
        i += len;
    }
    if (!rc) rc = insert_plain(e, clean.s, clean.n, err);
    sl_buf_free(&clean);
    return rc;
}

void sl_edit_remove(struct sl_edit *e, size_t from, size_t to)
{
    if (from >= to) return;
    memmove(e->text.s + from, e->text.s + to, e->text.n - to);
    e->text.n -= to - from;
    e->text.s[e->text.n] = 0;
    if (e->at >= to)
        e->at -= to - from;
    else if (e->at > from)
        e->at = from;
}

int sl_edit_set(struct sl_edit *e, const char *s, size_t n, struct sl_err *err)
{
    sl_edit_remove(e, 0, e->text.n);
    return insert_plain(e, s, n, err);
}

size_t sl_edit_left(const struct sl_edit *e, size_t at)
{
    if (!at) return 0;
    do at--;
    while (at && ((unsigned char)e->text.s[at] & 0xc0) == 0x80);
    return at;
}

size_t sl_edit_right(const struct sl_edit *e, size_t at)
{
    if (at == e->text.n) return at;
    do at++;
    while (at < e->text.n && ((unsigned char)e->text.s[at] & 0xc0) == 0x80);
    return at;
}

static bool space(char c)
{
    return c == ' ' || c == '\n' || c == '\t';
}

size_t sl_edit_word_left(const struct sl_edit *e, size_t at)
{
    while (at && space(e->text.s[at - 1])) at--;
    while (at && !space(e->text.s[at - 1])) at--;
    return at;
}

size_t sl_edit_word_right(const struct sl_edit *e, size_t at)
{
    while (at < e->text.n && space(e->text.s[at])) at++;
    while (at < e->text.n && !space(e->text.s[at])) at++;
    return at;
}

size_t sl_edit_line_start(const struct sl_edit *e, size_t at)
{
    while (at && e->text.s[at - 1] != '\n') at--;
    return at;
}

size_t sl_edit_line_end(const struct sl_edit *e, size_t at)
{
    while (at < e->text.n && e->text.s[at] != '\n') at++;
    return at;
}

struct pen {
    struct sl_buf *out;
    size_t row, column, columns;
    int rc;
    struct sl_err *err;
};

static void put(struct pen *p, const char *s, size_t n)
{
    if (!p->rc) p->rc = sl_buf_add(p->out, s, n, p->err);
}

static void new_row(struct pen *p)
{
    put(p, "\r\n", 2);
    p->row++;
    p->column = 0;
}

static void put_char(struct pen *p, const char *s, size_t n, size_t width)
{
    if (p->column + width > p->columns) new_row(p);
    put(p, s, n);
    p->column += width;
}

static size_t width_of(uint32_t c)
{
    const int w = wcwidth((wchar_t)c);
    return w < 0 ? 1 : (size_t)w;
}

int sl_edit_draw(const struct sl_edit *e, const char *prompt, size_t columns, struct sl_buf *out,
                 struct sl_edit_screen *screen, struct sl_err *err)
{
    struct pen p = {.out = out, .columns = columns < 2 ? 2 : columns, .err = err};
    const size_t indent = strlen(prompt);
    for (size_t i = 0; i < indent; i++) put_char(&p, prompt + i, 1, 1);
    for (size_t i = 0; i <= e->text.n && !p.rc;) {
        uint32_t c = 0;
        const size_t n = i < e->text.n ? sl_utf8_char(e->text.s + i, e->text.n - i, &c, NULL) : 1;
        const size_t width = i == e->text.n || c == '\n' || c == '\t' ? 1 : width_of(c);
        if (i == e->at) {
            /* A cursor behind a full row stands on the next one. */
            if (p.column + width > p.columns) new_row(&p);
            screen->row = p.row;
            screen->column = p.column;
        }
        if (i < e->text.n && c == '\n') {
            new_row(&p);
            for (size_t k = 0; k < indent; k++) put_char(&p, " ", 1, 1);
        } else if (i < e->text.n) {
            put_char(&p, c == '\t' ? " " : e->text.s + i, n, width);
        }
        i += n ? n : 1;
    }
    screen->rows = p.row;
    return p.rc;
}
