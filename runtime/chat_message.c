/* Conversations as data (chat_message.h): copies into a pool, arrays that double. */
#include "runtime/chat_message.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool sl_text_equal(struct sl_text a, struct sl_text b)
{
    if (!a.s || !b.s) return !a.s && !b.s;
    return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
}

bool sl_chat_effort_parse(const char *s, size_t n, enum sl_chat_effort *out)
{
    static const struct {
        const char *name;
        enum sl_chat_effort effort;
    } known[] = {{"low", SL_EFFORT_LOW}, {"high", SL_EFFORT_HIGH}, {"max", SL_EFFORT_MAX}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].name) == n && memcmp(known[i].name, s, n) == 0) {
            *out = known[i].effort;
            return true;
        }
    return false;
}

static int no_memory(struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the conversation");
}

void sl_chat_free(struct sl_chat *c)
{
    sl_chunk_free(&c->pool);
    *c = (struct sl_chat){0};
}

int sl_chat_copy(struct sl_chat *c, struct sl_text *out, const char *s, size_t n,
                 struct sl_err *err)
{
    *out = (struct sl_text){0};
    if (!s) return 0;
    char *p = n < SIZE_MAX ? sl_chunk_alloc(&c->pool, n + 1) : NULL;
    if (!p) return no_memory(err);
    memcpy(p, s, n);
    p[n] = 0;
    *out = (struct sl_text){p, n};
    return 0;
}

/* Room for one more in an array of n: at 0, 1, 2, 4, ... the array moves to one of twice the size. What
 * it leaves behind in the pool is at most as large as itself. */
static int grow(struct sl_chat *c, void *array, int n, size_t each, struct sl_err *err)
{
    if (n != 0 && (n & (n - 1)) != 0) return 0;
    if (n > INT_MAX / 4) return no_memory(err);
    void *old;
    memcpy(&old, array, sizeof old);
    void *more = sl_chunk_alloc(&c->pool, each * (n ? 2 * (size_t)n : 1));
    if (!more) return no_memory(err);
    if (n) memcpy(more, old, each * (size_t)n);
    memcpy(array, &more, sizeof more);
    return 0;
}

int sl_chat_add(struct sl_chat *c, enum sl_chat_role role, struct sl_chat_message **out,
                struct sl_err *err)
{
    if (c->n_messages == c->cap_messages) {
        const int cap = c->cap_messages ? 2 * c->cap_messages : 8;
        struct sl_chat_message *more =
            cap > INT_MAX / 4 ? NULL : sl_chunk_alloc(&c->pool, sizeof *more * (size_t)cap);
        if (!more) return no_memory(err);
        if (c->n_messages) memcpy(more, c->messages, sizeof *more * (size_t)c->n_messages);
        c->messages = more;
        c->cap_messages = cap;
    }
    *out = &c->messages[c->n_messages++];
    **out = (struct sl_chat_message){.role = role};
    return 0;
}

static int add_part(struct sl_chat *c, struct sl_chat_message *m, struct sl_chat_part part,
                    struct sl_err *err)
{
    int rc = grow(c, &m->parts, m->n_parts, sizeof *m->parts, err);
    if (!rc) m->parts[m->n_parts++] = part;
    return rc;
}

int sl_chat_add_text(struct sl_chat *c, struct sl_chat_message *m, const char *s, size_t n,
                     struct sl_err *err)
{
    struct sl_chat_part part = {.kind = SL_PART_TEXT};
    int rc = sl_chat_copy(c, &part.text, s, n, err);
    return rc ? rc : add_part(c, m, part, err);
}

int sl_chat_add_image(struct sl_chat *c, struct sl_chat_message *m, int width, int height,
                      struct sl_err *err)
{
    return add_part(
        c, m, (struct sl_chat_part){.kind = SL_PART_IMAGE, .width = width, .height = height}, err);
}

int sl_chat_add_call(struct sl_chat *c, struct sl_chat_message *m, const struct sl_chat_call *call,
                     struct sl_err *err)
{
    struct sl_chat_call mine;
    int rc = sl_chat_copy(c, &mine.id, call->id.s, call->id.n, err);
    if (!rc) rc = sl_chat_copy(c, &mine.name, call->name.s, call->name.n, err);
    if (!rc) rc = sl_chat_copy(c, &mine.arguments, call->arguments.s, call->arguments.n, err);
    if (!rc) rc = grow(c, &m->calls, m->n_calls, sizeof *m->calls, err);
    if (!rc) m->calls[m->n_calls++] = mine;
    return rc;
}

int sl_chat_add_copy(struct sl_chat *c, const struct sl_chat_message *m, struct sl_err *err)
{
    struct sl_chat_message *to;
    const struct sl_chat_message from = *m; /* m may lie in the array that moves */
    int rc = sl_chat_add(c, from.role, &to, err);
    for (int i = 0; i < from.n_parts && !rc; i++) {
        const struct sl_chat_part *p = &from.parts[i];
        rc = p->kind == SL_PART_TEXT ? sl_chat_add_text(c, to, p->text.s, p->text.n, err)
                                     : sl_chat_add_image(c, to, p->width, p->height, err);
    }
    for (int i = 0; i < from.n_calls && !rc; i++) rc = sl_chat_add_call(c, to, &from.calls[i], err);
    if (!rc) rc = sl_chat_copy(c, &to->name, from.name.s, from.name.n, err);
    if (!rc) rc = sl_chat_copy(c, &to->reasoning, from.reasoning.s, from.reasoning.n, err);
    if (!rc) rc = sl_chat_copy(c, &to->call_id, from.call_id.s, from.call_id.n, err);
    if (!rc) rc = sl_chat_copy(c, &to->tools, from.tools.s, from.tools.n, err);
    return rc;
}
