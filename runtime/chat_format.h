/* Conversation to ids: the release's chat markup (spec 6), exact.
 *
 *   <message role="user">TEXT</message>;   =   OPEN message| role|="|user|" SEP TEXT CLOSE message SEP EOM
 *
 * A prompt is a list of segments. Control ids come from control segments alone; every text segment is
 * encoded by itself with encode_plain, so text of users, tools, names and schemas can spell markup but
 * never become it, and no merge crosses a border. Attribute values are escaped (& then "), content
 * never is.
 *
 * Order: tool declarations, thinking effort, messages, tool_choice, response_format, then the
 * generation prompt, left open in the think channel (or the response channel without thinking).
 *
 * Equality: ids equal those of the release's encoder (tests/runtime/test_chat_format.c, vectors). */
#ifndef SL_RUNTIME_CHAT_FORMAT_H
#define SL_RUNTIME_CHAT_FORMAT_H

#include "runtime/chat_message.h"
#include "runtime/sluice.h"
#include "runtime/tokenizer.h"

/* Control ids of a vocabulary, by name. Plain data; t must outlive it. */
struct sl_chat_format {
    const struct sl_tokenizer *t;
    int32_t open, close, sep, eom;
    int32_t eos; /* [EOS], -1: none; ends an answer as eom does */
};
/* SL_E_PACK names the control token that the vocabulary lacks: such a model cannot chat. */
int sl_chat_format_init(struct sl_chat_format *f, const struct sl_tokenizer *t, struct sl_err *err);
int sl_chat_format_of(struct sl_chat_format *f, const sluice_pack *p, struct sl_err *err);

/* Finds the ids that an assistant message had when it was generated (chat_turns.h). key[n] is the
 * message's rendered form, see sl_chat_key(). Returns the ids, *n_ids of them, valid until the next call
 * on the same ctx; NULL: not known. */
typedef const int32_t *(*sl_chat_find_turn)(void *ctx, const char *key, size_t n, size_t *n_ids);

struct sl_chat_prompt {
    struct sl_ids ids;
    /* Rising positions in ids where a state is worth keeping: the end of the system prompt (tools,
     * effort, leading system messages), and of each assistant message. Never 0, never ids.n. */
    size_t *marks;
    size_t n_marks;
    size_t spliced; /* ids that came from find_turn */
};
void sl_chat_prompt_free(struct sl_chat_prompt *p);

/* Renders c with its generation prompt into out (start from {0}; on an error it is empty again).
 * find_turn may be NULL.
 *
 * SL_E_ARG names message and field: arguments of a call that are JSON but no object; tools, or a schema,
 * that are no JSON of the right type; a tool result with no name given and no call to take it from; an
 * image where the vocabulary has no media tokens. Other errors: SL_E_NOMEM, SL_E_INTR. */
int sl_chat_render(const struct sl_chat_format *f, const struct sl_chat *c,
                   sl_chat_find_turn find_turn, void *ctx, struct sl_chat_prompt *out,
                   struct sl_err *err);

/* What identifies an assistant message for find_turn: its segments after the generation prompt, each
 * with its kind and length, in malloc'ed memory. Two messages have one key if and only if they render
 * the same. thinking: as in the conversation. */
int sl_chat_key(const struct sl_chat_format *f, const struct sl_chat_message *m, bool thinking,
                char **key, size_t *n, struct sl_err *err);

#endif
