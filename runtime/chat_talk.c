/* The turn-taking behind `chat` (chat_talk.h).
 *
 * A token is picked, shown, and only then fed: the reader sees it before its successor is computed, and
 * an answer that is stopped has not spent a forward pass on a token nobody waits for. */
#include "runtime/chat_talk.h"

#include <stdlib.h>
#include <string.h>
#include "runtime/chat_json.h"

enum { TURNS_BYTES = 64 << 20 };

int sl_talk_open(struct sl_talk *t, const sluice_pack *pack, sluice_session *session,
                 struct sl_err *err)
{
    *t = (struct sl_talk){.pack = pack, .session = session};
    int rc = sl_chat_format_of(&t->format, pack, err);
    return rc ? rc : sl_chat_turns_open(&t->turns, TURNS_BYTES, err);
}

void sl_talk_close(struct sl_talk *t)
{
    sl_chat_turns_close(t->turns);
    sl_chat_free(&t->chat);
}

static int give(struct sl_err *err, const sluice_error *e)
{
    return sl_fail(err, e->code, NULL, NULL, "%s", e->text);
}

/* ---------------------------------------------------------------- one answer */

struct answer {
    struct sl_talk *t;
    struct sl_chat_parser *parser;
    struct sl_ids ids; /* generated, the stop token not among them */
    struct sl_talk_turn *turn;
};

static int say(struct answer *a, int32_t id, struct sl_err *err)
{
    int rc = sl_ids_push(&a->ids, id, err);
    if (!rc) rc = sl_chat_parse(a->parser, &id, 1, err);
    a->turn->written = a->ids.n;
    return rc;
}

static int generate(struct answer *a, struct sl_err *err)
{
    struct sl_talk *t = a->t;
    sluice_plan_info plan;
    sluice_session_plan(t->session, &plan);
    int32_t more[SLUICE_MAX_GUESSES]; /* picked and fed along, yet to be said */
    size_t n_more = 0, said = 0;
    for (;;) {
        sluice_error e = {0};
        int32_t id;
        const bool fed = said < n_more;
        int rc = 0;
        if (fed)
            id = more[said++];
        else
            rc = sluice_pick(t->session, &t->sampling, &id, &e);
        if (rc < 0) return give(err, &e);
        a->turn->stop = SL_TALK_END;
        if (rc == 1) return sl_chat_parse(a->parser, &id, 1, err);
        rc = say(a, id, err);
        if (rc || sl_chat_parser_done(a->parser)) return rc;
        a->turn->stop = SL_TALK_STOPPED;
        if (t->stopped && t->stopped(t->ctx)) return 0;
        a->turn->stop = SL_TALK_LENGTH;
        if (t->max_tokens && a->ids.n >= t->max_tokens) return 0;
        if (fed) continue; /* in the session already */
        a->turn->stop = SL_TALK_CTX;
        if (sluice_position(t->session) == plan.ctx) return 0;
        const size_t most = t->max_tokens ? t->max_tokens - a->ids.n : SLUICE_MAX_GUESSES;
        said = 0;
        if (sluice_feed_on(t->session, id, &t->sampling, most, more, &n_more, &e)) {
            a->turn->stop = SL_TALK_STOPPED;
            return e.code == SL_E_INTR ? 0 : give(err, &e);
        }
    }
}

/* What was said becomes a message, and its ids are kept for the next prompt. */
static int remember(struct answer *a, struct sl_err *err)
{
    struct sl_talk *t = a->t;
    int rc = sl_chat_parse_end(a->parser, err);
    a->turn->malformed = sl_chat_parser_malformed(a->parser);
    if (!rc) rc = sl_chat_add_copy(&t->chat, sl_chat_parser_message(a->parser), err);
    if (!rc) rc = sl_chat_parser_closing(a->parser, &a->ids, err);
    if (!rc)
        rc = sl_chat_turns_put(t->turns, &t->format, !t->chat.no_thinking, a->ids.v, a->ids.n, err);
    /* A session that an interrupt spoiled has nothing to keep; the next prompt begins from what is. */
    if (!rc) sluice_prefix_keep(t->session, NULL);
    return rc;
}

static int read_prompt(struct sl_talk *t, struct sl_talk_turn *turn, struct sl_err *err)
{
    struct sl_chat_prompt p = {0};
    sluice_plan_info plan;
    sluice_error e = {0};
    int rc = sl_chat_turns_render(t->turns, &t->format, &t->chat, &p, err);
    if (rc) return rc;
    sluice_session_plan(t->session, &plan);
    turn->prompt_ids = p.ids.n;
    if (p.ids.n >= plan.ctx)
        rc = sl_fail(
            err, SL_E_CTX, NULL, NULL,
            "the conversation has %zu tokens, --ctx is %llu: /undo, /reset, or a larger --ctx",
            p.ids.n, (unsigned long long)plan.ctx);
    else if (sluice_prompt(t->session, p.ids.v, p.ids.n, p.marks, p.n_marks, &turn->cached_ids, &e))
        rc = give(err, &e);
    sl_chat_prompt_free(&p);
    return rc;
}

int sl_talk_ask(struct sl_talk *t, const char *text, size_t n, struct sl_talk_turn *turn,
                struct sl_err *err)
{
    struct answer a = {.t = t, .turn = turn};
    struct sl_chat_message *m;
    const int before = t->chat.n_messages;
    *turn = (struct sl_talk_turn){0};
    int rc = sl_chat_add(&t->chat, SL_CHAT_USER, &m, err);
    if (!rc) rc = sl_chat_add_text(&t->chat, m, text, n, err);
    if (!rc) rc = read_prompt(t, turn, err);
    if (!rc)
        rc = sl_chat_parser_open(&a.parser, &t->format, !t->chat.no_thinking, t->on_event, t->ctx,
                                 err);
    if (!rc) rc = generate(&a, err);
    if (!rc) rc = remember(&a, err);
    if (rc) t->chat.n_messages = before;
    sl_chat_parser_close(a.parser);
    sl_ids_free(&a.ids);
    return rc;
}

bool sl_talk_undo(struct sl_talk *t, struct sl_text *text)
{
    int n = t->chat.n_messages;
    while (n && t->chat.messages[n - 1].role != SL_CHAT_USER) n--;
    if (!n) return false;
    const struct sl_chat_message *m = &t->chat.messages[n - 1];
    if (text) *text = m->n_parts ? m->parts[0].text : SL_TEXT_LIT("");
    t->chat.n_messages = n - 1;
    return true;
}

void sl_talk_reset(struct sl_talk *t)
{
    int n = 0;
    while (n < t->chat.n_messages && t->chat.messages[n].role == SL_CHAT_SYSTEM) n++;
    t->chat.n_messages = n;
}

/* ---------------------------------------------------------------- files */

/* The state to save stands behind the last whole turn, so that it is a start of every next prompt. */
static int finish_turn(const struct sl_talk *t, struct sl_err *err)
{
    struct sl_chat_prompt p = {0};
    sluice_error e = {0};
    int rc = sl_chat_turns_render(t->turns, &t->format, &t->chat, &p, err);
    if (!rc && p.n_marks &&
        sluice_prompt(t->session, p.ids.v, p.marks[p.n_marks - 1], p.marks, p.n_marks, NULL, &e))
        rc = give(err, &e);
    sl_chat_prompt_free(&p);
    return rc;
}

int sl_talk_save(const struct sl_talk *t, const char *path, struct sl_err *err)
{
    struct sl_buf note = {0};
    sluice_error e = {0};
    if (!t->chat.n_messages)
        return sl_fail(err, SL_E_ARG, path, NULL, "nothing was said yet: there is nothing to save");
    int rc = finish_turn(t, err);
    if (!rc) rc = sl_chat_to_json(&note, &t->chat, err);
    if (!rc && sluice_state_save_note(t->session, path, note.s, note.n, &e)) rc = give(err, &e);
    sl_buf_free(&note);
    return rc;
}

int sl_talk_load(struct sl_talk *t, const char *path, struct sl_err *err)
{
    struct sl_chat chat = {0};
    struct sl_err why = {0};
    sluice_error e = {0};
    void *note = NULL;
    size_t n = 0;
    if (sluice_state_load_note(t->session, path, &note, &n, &e)) return give(err, &e);
    int rc = 0;
    if (!n)
        rc = sl_fail(err, SL_E_SOURCE, path, NULL, "is a state without a conversation");
    else if (sl_chat_from_json(&chat, note, n, NULL, &why))
        rc = sl_fail(err, SL_E_SOURCE, path, "conversation", "%s", why.text);
    if (!rc)
        rc = sl_chat_turns_learn(t->turns, &t->format, !chat.no_thinking, sluice_ids(t->session),
                                 (size_t)sluice_position(t->session), err);
    sluice_free(note);
    if (rc) {
        sl_chat_free(&chat);
        sl_talk_reset(t);
        sluice_session_reset(t->session);
        return rc;
    }
    sl_chat_free(&t->chat);
    t->chat = chat;
    return 0;
}
