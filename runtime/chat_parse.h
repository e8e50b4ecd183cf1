/* The model's ids to reasoning, content and tool calls, as they arrive (spec 6.4).
 *
 *   reasoning CLOSE think SEP OPEN response SEP content CLOSE response SEP
 *   [OPEN tools SEP (call)+ CLOSE tools SEP] CLOSE message SEP EOM
 *
 * Structure is read from control ids alone: "<|sep|>" spelled in text is text. Events carry whole UTF-8
 * characters, whatever the cut of ids (ill-formed bytes become U+FFFD). Joined, the events of one
 * sequence are the same however the text between two control ids is cut into ids.
 *
 * Tolerated: a missing think or response closer, missing trailers, an answer cut anywhere. What fits no
 * rule is not dropped: it is given as text of the channel it stands in (content outside of channels), its
 * markers spelled out, and counted in `malformed`. A call is given whole, once its closer is there and its
 * name and arguments are valid; one that is cut or invalid is content (and malformed). Half a marker at
 * the end of a cut answer is neither. White space between channels is dropped.
 */
#ifndef SL_RUNTIME_CHAT_PARSE_H
#define SL_RUNTIME_CHAT_PARSE_H

#include "runtime/chat_format.h"
#include "runtime/chat_message.h"

enum sl_chat_event_kind {
    SL_CHAT_EV_REASONING, /* text: what is new */
    SL_CHAT_EV_CONTENT,   /* text: what is new */
    SL_CHAT_EV_CALL /* call, call_index: a complete call; call->id is absent, name it yourself */
};
struct sl_chat_event {
    enum sl_chat_event_kind kind;
    struct sl_text text; /* valid during the callback, well-formed UTF-8, not empty */
    const struct sl_chat_call *call;
    int call_index; /* from 0 */
};
/* Non-zero stops the feed and is returned by it. */
typedef int (*sl_chat_event_fn)(void *ctx, const struct sl_chat_event *e);

struct sl_chat_parser;

/* thinking: the prompt left the think channel open (else the response channel). fn may be NULL: the
 * answer is then only collected. f must outlive the parser. */
int sl_chat_parser_open(struct sl_chat_parser **out, const struct sl_chat_format *f, bool thinking,
                        sl_chat_event_fn fn, void *ctx, struct sl_err *err);
void sl_chat_parser_close(struct sl_chat_parser *p); /* NULL is fine */

/* Feeds generated ids, the stop token included if there was one. After the end (a stop token or the
 * closed message) further ids are ignored. SL_E_ARG: an id outside the vocabulary; SL_E_NOMEM. */
int sl_chat_parse(struct sl_chat_parser *p, const int32_t *ids, size_t n, struct sl_err *err);
/* No more ids will come: flushes held bytes and what turned out to be no markup. Once. */
int sl_chat_parse_end(struct sl_chat_parser *p, struct sl_err *err);

bool sl_chat_parser_done(const struct sl_chat_parser *p); /* message closed, or a stop token seen */
/* Pieces that fitted no rule so far. */
int sl_chat_parser_malformed(const struct sl_chat_parser *p);
/* The think channel is over. */
bool sl_chat_parser_in_response(const struct sl_chat_parser *p);
/* Everything so far as an assistant message: reasoning, one text part, calls. Owned by the parser, valid
 * until the next feed. After sl_chat_parse_end() it equals the joined events. */
const struct sl_chat_message *sl_chat_parser_message(struct sl_chat_parser *p);

/* Appends the ids that complete the turn as the format has it, after all ids fed so far but a stop token:
 * the end-of-message token alone after a closed message, the missing closers and it after a cut answer.
 * Generated ids (without a stop token) + these are what the next prompt must hold to go on from here. */
int sl_chat_parser_closing(const struct sl_chat_parser *p, struct sl_ids *out, struct sl_err *err);

#endif
