/* Terminal and pipe behind line_input.h.
 *
 * The terminal is raw only while a line is read: an answer is printed, and interrupted, under the
 * settings that the user has. The whole text is drawn anew after each key; at 5 messages a minute that
 * is cheaper than being clever. A paste is drawn once, when its end mark came. */
#include "runtime/line_input.h"

#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include "runtime/line_edit.h"
#include "runtime/utf8.h"

enum { HISTORY_MAX = 200, LINE_MAX_BYTES = 64 << 20, ESCAPE_WAIT_MS = 50, READ_BYTES = 4096 };

struct sl_lines {
    int in, out;
    bool terminal, raw;
    struct termios before;         /* as it was found */
    bool keeps;                    /* NOFLSH is on, until the end */
    unsigned char buf[READ_BYTES]; /* read, not yet used */
    size_t n_buf, at_buf;
    bool ended;
    struct sl_buf line; /* what is given out */
    struct sl_edit edit;
    size_t cursor_row; /* of the text that is drawn */
    char *history[HISTORY_MAX];
    int n_history, shown; /* shown: place in the history, n_history: the line being written */
    char *draft;          /* that line, while history is shown */
};

int sl_lines_open(struct sl_lines **out, int in, int out_fd, struct sl_err *err)
{
    struct sl_lines *l = calloc(1, sizeof *l);
    *out = l;
    if (!l) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for input");
    l->in = in;
    l->out = out_fd;
    const char *term = getenv("TERM");
    l->terminal = isatty(in) && isatty(out_fd) && !(term && strcmp(term, "dumb") == 0);
    if (l->terminal && !setlocale(LC_CTYPE, "C.UTF-8")) setlocale(LC_CTYPE, "");
    return 0;
}

void sl_lines_close(struct sl_lines *l)
{
    if (!l) return;
    if (l->keeps) tcsetattr(l->in, TCSADRAIN, &l->before);
    for (int i = 0; i < l->n_history; i++) free(l->history[i]);
    free(l->draft);
    sl_buf_free(&l->line);
    sl_buf_free(&l->edit.text);
    free(l);
}

bool sl_lines_is_terminal(const struct sl_lines *l)
{
    return l->terminal;
}

/* ---------------------------------------------------------------- bytes */

/* One byte, -1: end of input or a signal that ends the program. wait_ms -1: as long as it takes. */
static int next_byte(struct sl_lines *l, int wait_ms)
{
    while (l->at_buf == l->n_buf) {
        struct pollfd p = {.fd = l->in, .events = POLLIN};
        if (sl_interrupted() || l->ended) return -1;
        const int ready = poll(&p, 1, wait_ms);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return -1;
        const ssize_t n = read(l->in, l->buf, sizeof l->buf);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) {
            l->ended = true;
            return -1;
        }
        l->n_buf = (size_t)n;
        l->at_buf = 0;
    }
    return l->buf[l->at_buf++];
}

static int write_all(const struct sl_lines *l, const char *s, size_t n, struct sl_err *err)
{
    while (n) {
        const ssize_t done = write(l->out, s, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return sl_fail_errno(err, SL_E_IO, errno, "terminal", "write");
        s += done;
        n -= (size_t)done;
    }
    return 0;
}

static int write_str(const struct sl_lines *l, const char *s, struct sl_err *err)
{
    return write_all(l, s, strlen(s), err);
}

static int enter_raw(struct sl_lines *l, struct sl_err *err)
{
    if (!l->keeps && tcgetattr(l->in, &l->before))
        return sl_fail_errno(err, SL_E_IO, errno, "terminal", "tcgetattr");
    struct termios t = l->before;
    t.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR | IXON | ISTRIP | BRKINT);
    t.c_lflag &= ~(tcflag_t)(ECHO | ICANON | ISIG | IEXTEN);
    t.c_cc[VMIN] = 1;
    t.c_cc[VTIME] = 0;
    if (tcsetattr(l->in, TCSADRAIN, &t))
        return sl_fail_errno(err, SL_E_IO, errno, "terminal", "tcsetattr");
    l->raw = true;
    return write_str(l, "\x1b[?2004h", err); /* bracketed paste */
}

/* Between two lines Ctrl-C must not make the terminal drop what was printed and typed since: it raises
 * the signal first and empties its queues after. */
static void leave_raw(struct sl_lines *l)
{
    if (!l->raw) return;
    struct termios t = l->before;
    t.c_lflag |= NOFLSH;
    tcsetattr(l->in, TCSADRAIN, &t);
    l->keeps = true;
    write_str(l, "\x1b[?2004l", NULL);
    l->raw = false;
}

/* ---------------------------------------------------------------- drawing */

static size_t columns(const struct sl_lines *l)
{
    struct winsize w;
    return ioctl(l->out, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
}

/* Over what was drawn before: up to its first row, clear to the end, draw, cursor to its place. */
static int draw(struct sl_lines *l, const char *prompt, struct sl_err *err)
{
    struct sl_buf b = {0};
    struct sl_edit_screen s = {0};
    int rc = 0;
    if (l->cursor_row) rc = sl_buf_printf(&b, err, "\x1b[%zuA", l->cursor_row);
    if (!rc) rc = sl_buf_str(&b, "\r\x1b[J", err);
    if (!rc) rc = sl_edit_draw(&l->edit, prompt, columns(l), &b, &s, err);
    if (!rc && s.rows > s.row) rc = sl_buf_printf(&b, err, "\x1b[%zuA", s.rows - s.row);
    if (!rc) rc = sl_buf_str(&b, "\r", err);
    if (!rc && s.column) rc = sl_buf_printf(&b, err, "\x1b[%zuC", s.column);
    if (!rc) rc = write_all(l, b.s, b.n, err);
    l->cursor_row = s.row;
    sl_buf_free(&b);
    return rc;
}

/* The cursor behind the text, on a row of its own. */
static int finish_drawing(struct sl_lines *l, const char *prompt, const char *note,
                          struct sl_err *err)
{
    l->edit.at = l->edit.text.n;
    int rc = draw(l, prompt, err);
    if (!rc) rc = write_str(l, note, err);
    return rc ? rc : write_str(l, "\r\n", err);
}

/* ---------------------------------------------------------------- history */

static void add_history(struct sl_lines *l)
{
    const char *s = l->edit.text.s;
    if (!l->edit.text.n || (l->n_history && strcmp(l->history[l->n_history - 1], s) == 0)) return;
    char *copy = strdup(s);
    if (!copy) return; /* it is only not remembered */
    if (l->n_history == HISTORY_MAX) {
        free(l->history[0]);
        memmove(l->history, l->history + 1, sizeof l->history - sizeof l->history[0]);
        l->n_history--;
    }
    l->history[l->n_history++] = copy;
}

static int show_history(struct sl_lines *l, int step, struct sl_err *err)
{
    const int to = l->shown + step;
    if (to < 0 || to > l->n_history) return 0;
    if (l->shown == l->n_history) {
        free(l->draft);
        l->draft = strdup(l->edit.text.s ? l->edit.text.s : "");
    }
    l->shown = to;
    const char *s = to == l->n_history ? l->draft : l->history[to];
    return s ? sl_edit_set(&l->edit, s, strlen(s), err) : 0;
}

/* Up and down move within a text of several lines first. */
static int vertical(struct sl_lines *l, int step, struct sl_err *err)
{
    struct sl_edit *e = &l->edit;
    const size_t start = sl_edit_line_start(e, e->at);
    const size_t end = sl_edit_line_end(e, e->at);
    if (step < 0 ? start == 0 : end == e->text.n) return show_history(l, step, err);
    size_t from = step < 0 ? sl_edit_line_start(e, start - 1) : end + 1;
    const size_t last = sl_edit_line_end(e, from);
    for (size_t i = start; i < e->at && from < last; i = sl_edit_right(e, i))
        from = sl_edit_right(e, from);
    e->at = from;
    return 0;
}

/* ---------------------------------------------------------------- keys */

enum { KEY_GO_ON, KEY_SUBMIT, KEY_CANCEL, KEY_END };

/* Text up to the end mark of a paste. A terminal that dies in a paste ends it. */
static int paste(struct sl_lines *l, struct sl_err *err)
{
    static const char mark[] = "\x1b[201~";
    struct sl_buf b = {0};
    int rc = 0;
    for (int c; !rc && (c = next_byte(l, -1)) >= 0;) {
        const char byte = (char)c;
        rc = b.n < LINE_MAX_BYTES
                 ? sl_buf_add(&b, &byte, 1, err)
                 : sl_fail(err, SL_E_SOURCE, NULL, "paste", "more than %d bytes", LINE_MAX_BYTES);
        if (b.n >= sizeof mark - 1 &&
            memcmp(b.s + b.n - (sizeof mark - 1), mark, sizeof mark - 1) == 0) {
            b.n -= sizeof mark - 1;
            break;
        }
    }
    if (!rc) rc = sl_edit_insert(&l->edit, b.s, b.n, err);
    sl_buf_free(&b);
    return rc;
}

static int csi(struct sl_lines *l, struct sl_err *err)
{
    struct sl_edit *e = &l->edit;
    char arg[16];
    size_t n = 0;
    int c;
    while ((c = next_byte(l, ESCAPE_WAIT_MS)) >= 0 && (c < 0x40 || c > 0x7e))
        if (n < sizeof arg - 1) arg[n++] = (char)c;
    arg[n] = 0;
    const bool word = strcmp(arg, "1;5") == 0 || strcmp(arg, "1;3") == 0;
    switch (c) {
    case 'A':
        return vertical(l, -1, err);
    case 'B':
        return vertical(l, 1, err);
    case 'C':
        e->at = word ? sl_edit_word_right(e, e->at) : sl_edit_right(e, e->at);
        return 0;
    case 'D':
        e->at = word ? sl_edit_word_left(e, e->at) : sl_edit_left(e, e->at);
        return 0;
    case 'H':
        e->at = sl_edit_line_start(e, e->at);
        return 0;
    case 'F':
        e->at = sl_edit_line_end(e, e->at);
        return 0;
    case '~':
        if (strcmp(arg, "200") == 0) return paste(l, err);
        if (strcmp(arg, "3") == 0) sl_edit_remove(e, e->at, sl_edit_right(e, e->at));
        if (strcmp(arg, "1") == 0 || strcmp(arg, "7") == 0) e->at = sl_edit_line_start(e, e->at);
        if (strcmp(arg, "4") == 0 || strcmp(arg, "8") == 0) e->at = sl_edit_line_end(e, e->at);
        return 0;
    default:
        return 0;
    }
}

static int escape(struct sl_lines *l, struct sl_err *err)
{
    struct sl_edit *e = &l->edit;
    const int c = next_byte(l, ESCAPE_WAIT_MS);
    switch (c) {
    case '[':
    case 'O':
        return csi(l, err);
    case 'b':
        e->at = sl_edit_word_left(e, e->at);
        return 0;
    case 'f':
        e->at = sl_edit_word_right(e, e->at);
        return 0;
    case 'd':
        sl_edit_remove(e, e->at, sl_edit_word_right(e, e->at));
        return 0;
    case 0x7f:
        sl_edit_remove(e, sl_edit_word_left(e, e->at), e->at);
        return 0;
    case '\r':
    case '\n':
        return sl_edit_insert(e, "\n", 1, err);
    default:
        return 0;
    }
}

/* Characters arrive byte by byte; the rest of one comes at once. */
static int character(struct sl_lines *l, int first, struct sl_err *err)
{
    char s[4] = {(char)first};
    size_t n = 1;
    size_t bad = 0;
    while (!sl_utf8_char(s, n, NULL, &bad) && !bad && n < sizeof s) {
        const int c = next_byte(l, ESCAPE_WAIT_MS);
        if (c < 0) return 0;
        s[n++] = (char)c;
    }
    return sl_edit_insert(&l->edit, s, n, err);
}

static void suspend(struct sl_lines *l, struct sl_err *err)
{
    leave_raw(l);
    raise(SIGTSTP);
    l->cursor_row = 0;
    enter_raw(l, err);
}

/* KEY_* or an error. */
static int key(struct sl_lines *l, int c, struct sl_err *err)
{
    struct sl_edit *e = &l->edit;
    int rc = KEY_GO_ON;
    switch (c) {
    case '\r':
        if (e->at != e->text.n || !e->at || e->text.s[e->at - 1] != '\\') return KEY_SUBMIT;
        sl_edit_remove(e, e->at - 1, e->at);
        return sl_edit_insert(e, "\n", 1, err);
    case '\n':
        return sl_edit_insert(e, "\n", 1, err);
    case 0x03: /* Ctrl-C */
        return KEY_CANCEL;
    case 0x04: /* Ctrl-D */
        if (!e->text.n) return KEY_END;
        sl_edit_remove(e, e->at, sl_edit_right(e, e->at));
        break;
    case 0x01:
        e->at = sl_edit_line_start(e, e->at);
        break;
    case 0x05:
        e->at = sl_edit_line_end(e, e->at);
        break;
    case 0x02:
        e->at = sl_edit_left(e, e->at);
        break;
    case 0x06:
        e->at = sl_edit_right(e, e->at);
        break;
    case 0x08:
    case 0x7f:
        sl_edit_remove(e, sl_edit_left(e, e->at), e->at);
        break;
    case 0x0b:
        sl_edit_remove(e, e->at, sl_edit_line_end(e, e->at));
        break;
    case 0x15:
        sl_edit_remove(e, sl_edit_line_start(e, e->at), e->at);
        break;
    case 0x17:
        sl_edit_remove(e, sl_edit_word_left(e, e->at), e->at);
        break;
    case 0x0c:
        l->cursor_row = 0;
        return write_str(l, "\x1b[H\x1b[2J", err);
    case 0x10:
        return vertical(l, -1, err);
    case 0x0e:
        return vertical(l, 1, err);
    case 0x1a:
        suspend(l, err);
        break;
    case 0x1b:
        return escape(l, err);
    default:
        rc = c >= 0x20 || c == '\t' ? character(l, c, err) : KEY_GO_ON;
    }
    return rc;
}

static int read_terminal(struct sl_lines *l, const char *prompt, struct sl_err *err)
{
    int rc = enter_raw(l, err);
    int what = KEY_GO_ON;
    if (rc) return rc;
    sl_edit_remove(&l->edit, 0, l->edit.text.n);
    l->cursor_row = 0;
    l->shown = l->n_history;
    while (!rc && what == KEY_GO_ON) {
        if (l->at_buf == l->n_buf)
            rc = draw(l, prompt, err); /* keys that wait are drawn together */
        const int c = rc ? -1 : next_byte(l, -1);
        what = rc ? KEY_GO_ON : c < 0 ? KEY_END : key(l, c, err);
        if (what < 0) rc = what;
    }
    if (!rc) rc = finish_drawing(l, prompt, what == KEY_CANCEL ? "^C" : "", err);
    leave_raw(l);
    if (rc) return rc;
    if (what == KEY_CANCEL) return SL_LINE_CANCELLED;
    if (what == KEY_END) return SL_LINE_END;
    add_history(l);
    l->line.n = 0;
    rc = sl_buf_add(&l->line, l->edit.text.s, l->edit.text.n, err);
    return rc ? rc : SL_LINE_TEXT;
}

static int read_pipe(struct sl_lines *l, struct sl_err *err)
{
    int rc = sl_buf_add(&l->line, "", 0, err);
    int c;
    l->line.n = 0;
    while (!rc && (c = next_byte(l, -1)) >= 0) {
        const char byte = (char)c;
        if (c == '\n' && l->line.n && l->line.s[l->line.n - 1] == '\\') {
            l->line.s[l->line.n - 1] = '\n';
        } else if (c == '\n') {
            l->line.s[l->line.n] = 0;
            return SL_LINE_TEXT;
        } else if (l->line.n == LINE_MAX_BYTES) {
            return sl_fail(err, SL_E_SOURCE, "standard input", NULL, "a line of more than %d bytes",
                           LINE_MAX_BYTES);
        } else if (c) {
            rc = sl_buf_add(&l->line, &byte, 1, err);
        }
    }
    if (rc) return rc;
    l->line.s[l->line.n] = 0;
    return l->line.n && !sl_interrupted() ? SL_LINE_TEXT : SL_LINE_END;
}

int sl_lines_read(struct sl_lines *l, const char *prompt, struct sl_buf **text, struct sl_err *err)
{
    *text = &l->line;
    return l->terminal ? read_terminal(l, prompt, err) : read_pipe(l, err);
}
