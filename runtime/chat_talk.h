/* One conversation with one session: what `chat` does between two prompts, without a terminal.
 *
 *   ask: user message -> ids, known turns spliced -> sluice_prompt -> pick, parse, feed ... -> message
 *
 * An answer may be stopped between two tokens: what was said stays in the conversation, its turn is
 * closed as the format has it, and the session goes on from there. */
#ifndef SL_RUNTIME_CHAT_TALK_H
#define SL_RUNTIME_CHAT_TALK_H

#include "runtime/chat_parse.h"
#include "runtime/chat_turns.h"
#include "runtime/sluice.h"

struct sl_talk {
    const sluice_pack *pack;
    sluice_session *session;
    struct sl_chat_format format;
    struct sl_chat_turns *turns;
    struct sl_chat chat; /* messages so far; effort and thinking are the caller's to set */
    sluice_sampling sampling;
    uint64_t max_tokens; /* of one answer, 0: what the context has room for */
    /* Asked before each token; true stops the answer. May be NULL. */
    bool (*stopped)(void *ctx);
    sl_chat_event_fn on_event;
    void *ctx; /* of both */
};

enum sl_talk_stop { SL_TALK_END, SL_TALK_LENGTH, SL_TALK_CTX, SL_TALK_STOPPED };
struct sl_talk_turn {
    size_t prompt_ids, cached_ids, written;
    int malformed;
    enum sl_talk_stop stop;
};

/* Fields not named here start at zero; pack and session stay the caller's. SL_E_PACK: no chat format. */
int sl_talk_open(struct sl_talk *t, const sluice_pack *pack, sluice_session *session,
                 struct sl_err *err);
void sl_talk_close(struct sl_talk *t);

/* Appends a user message and the answer to it. On an error the conversation is as it was (SL_E_CTX: it
 * does not fit the context any more; SL_E_INTR: interrupted while the prompt was read). */
int sl_talk_ask(struct sl_talk *t, const char *text, size_t n, struct sl_talk_turn *turn,
                struct sl_err *err);
/* Takes back the last user message and what followed; false: there is none. *text (may be NULL) is that
 * message, valid until the next ask. */
bool sl_talk_undo(struct sl_talk *t, struct sl_text *text);
/* Back to the system messages at the beginning. */
void sl_talk_reset(struct sl_talk *t);

/* State and conversation in one file (sluice_state_save_note). Load replaces both; a file without a
 * conversation, or whose conversation is none, is refused (SL_E_SOURCE) and t is reset if its state
 * was already loaded. */
int sl_talk_save(const struct sl_talk *t, const char *path, struct sl_err *err);
int sl_talk_load(struct sl_talk *t, const char *path, struct sl_err *err);

#endif
