/* See chat_show.h. Everything goes out at once: an answer is read while it is written. */
#include "runtime/chat_show.h"

#include <string.h>
#include "runtime/commands.h"
#include "runtime/utf8.h"

static int out(struct sl_show *s, const char *text, size_t n)
{
    int rc = sl_cmd_write(text, n, &s->err);
    if (n) s->last = text[n - 1];
    return rc;
}

static int literal(struct sl_show *s, const char *text)
{
    return out(s, text, strlen(text));
}

/* Well-formed text; C0 and C1 controls but newline and tab are made visible. */
static int cleaned(struct sl_show *s, const char *text, size_t n)
{
    size_t from = 0;
    int rc = 0;
    for (size_t i = 0; i < n && !rc;) {
        uint32_t c = 0;
        size_t len = sl_utf8_char(text + i, n - i, &c, NULL);
        if (!len) len = 1;
        const bool control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c <= 0x9f);
        if (control) {
            rc = out(s, text + from, i - from);
            if (!rc) rc = literal(s, "?");
            from = i + len;
        }
        i += len;
    }
    return rc ? rc : out(s, text + from, n - from);
}

static int text_piece(struct sl_show *s, struct sl_text t)
{
    s->said = true;
    return s->terminal ? cleaned(s, t.s, t.n) : out(s, t.s, t.n);
}

static int dim(struct sl_show *s, bool on)
{
    int rc = 0;
    if (s->dim == on) return 0;
    s->dim = on;
    if (s->terminal) rc = sl_cmd_write(on ? "\x1b[2m" : "\x1b[0m", 4, &s->err);
    /* Thinking and answer are two paragraphs. */
    if (!rc && !on && s->last != '\n') rc = literal(s, "\n");
    return rc;
}

static int call(struct sl_show *s, const struct sl_chat_call *c)
{
    int rc = s->said && s->last != '\n' ? literal(s, "\n") : 0;
    if (!rc) rc = literal(s, "[call ");
    if (!rc) rc = text_piece(s, c->name);
    if (!rc) rc = literal(s, " ");
    if (!rc) rc = text_piece(s, c->arguments);
    return rc ? rc : literal(s, "]\n");
}

int sl_show_event(void *ctx, const struct sl_chat_event *e)
{
    struct sl_show *s = ctx;
    const bool thinking = e->kind == SL_CHAT_EV_REASONING;
    if (thinking && !s->thinking) return 0;
    int rc = dim(s, thinking);
    if (!rc) rc = e->kind == SL_CHAT_EV_CALL ? call(s, e->call) : text_piece(s, e->text);
    return rc ? rc : sl_cmd_flush(&s->err);
}

int sl_show_end(struct sl_show *s)
{
    int rc = 0;
    if (s->dim && s->terminal) rc = sl_cmd_write("\x1b[0m", 4, &s->err);
    if (!rc && (!s->said || s->last != '\n')) rc = literal(s, "\n");
    s->dim = s->said = false;
    s->last = 0;
    return rc ? rc : sl_cmd_flush(&s->err);
}
