/* A conversation as data: what a person, a file or an HTTP request says, before it becomes ids.
 *
 * chat_json.h fills it from OpenAI-style JSON, chat_format.h renders it, chat_parse.h makes the
 * assistant's message from the model's ids. Nothing here knows tokens or markup.
 *
 * Ownership: every string and array lies in the conversation's own pool and lives until
 * sl_chat_free(); nothing is freed one by one. Setters copy. Texts are byte strings: they may hold NUL
 * and need not be terminated. Not thread-safe. */
#ifndef SL_RUNTIME_CHAT_MESSAGE_H
#define SL_RUNTIME_CHAT_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include "base/chunk.h"
#include "base/err.h"

/* s NULL: absent, which is not the same as empty (n 0, s not NULL). */
struct sl_text {
    const char *s;
    size_t n;
};
#define SL_TEXT_LIT(lit) ((struct sl_text){(lit), sizeof(lit) - 1})
bool sl_text_equal(struct sl_text a, struct sl_text b); /* absent equals only absent */

enum sl_chat_role { SL_CHAT_SYSTEM, SL_CHAT_USER, SL_CHAT_ASSISTANT, SL_CHAT_TOOL };

/* One part of a message's content. An image is known by its pixel size alone: the runtime has no vision
 * tower yet, and chat_json.h refuses images for that reason. */
struct sl_chat_part {
    enum { SL_PART_TEXT, SL_PART_IMAGE } kind;
    struct sl_text text;
    int width, height;
};

struct sl_chat_call {
    struct sl_text id;        /* tool_call_id; absent: none */
    struct sl_text name;      /* of the function */
    struct sl_text arguments; /* JSON text as it was given or generated; absent or empty: none */
};

struct sl_chat_message {
    enum sl_chat_role role;
    struct sl_text name; /* user, system: an optional name; tool: the tool's name if given */
    struct sl_chat_part *parts;
    int n_parts;
    /* assistant only */
    struct sl_text reasoning; /* absent and white space alone render the same */
    struct sl_chat_call *calls;
    int n_calls;
    /* tool only */
    struct sl_text call_id; /* which call it answers; absent: by position */
    /* system only: JSON array of tools that join here; content is not rendered then */
    struct sl_text tools;
};

enum sl_chat_effort {
    SL_EFFORT_DEFAULT, /* what the release does without a word about it: max */
    SL_EFFORT_UNSET,   /* no message about it */
    SL_EFFORT_LOW,
    SL_EFFORT_HIGH,
    SL_EFFORT_MAX
};
/* "low", "high", "max"; false for anything else ("medium" is advertised by the prompt's own text and
 * refused by the reference all the same). */
bool sl_chat_effort_parse(const char *s, size_t n, enum sl_chat_effort *out);

enum sl_chat_tool_choice { SL_TOOLS_AUTO, SL_TOOLS_NONE, SL_TOOLS_REQUIRED };
enum sl_chat_response { SL_RESPONSE_TEXT, SL_RESPONSE_JSON, SL_RESPONSE_SCHEMA };

struct sl_chat {
    struct sl_chat_message *messages;
    int n_messages; /* may be lowered by who takes turns back */
    int cap_messages;
    struct sl_text tools; /* JSON array, absent: none */
    bool no_thinking;     /* the answer begins in the response channel */
    enum sl_chat_effort effort;
    enum sl_chat_tool_choice tool_choice;
    enum sl_chat_response response;
    struct sl_text schema; /* JSON, of SL_RESPONSE_SCHEMA */
    struct sl_chunk *pool;
};

/* Start from {0}: an empty conversation, thinking on, effort default. */
void sl_chat_free(struct sl_chat *c);

/* Copies into the pool, one NUL appended; s NULL gives an absent text. SL_E_NOMEM. */
int sl_chat_copy(struct sl_chat *c, struct sl_text *out, const char *s, size_t n,
                 struct sl_err *err);
/* Appends an empty message; *out is valid until the next one is appended. */
int sl_chat_add(struct sl_chat *c, enum sl_chat_role role, struct sl_chat_message **out,
                struct sl_err *err);
/* Appends to a message of c. */
int sl_chat_add_text(struct sl_chat *c, struct sl_chat_message *m, const char *s, size_t n,
                     struct sl_err *err);
int sl_chat_add_image(struct sl_chat *c, struct sl_chat_message *m, int width, int height,
                      struct sl_err *err);
int sl_chat_add_call(struct sl_chat *c, struct sl_chat_message *m, const struct sl_chat_call *call,
                     struct sl_err *err);
/* Appends a copy of a message, which may belong to another conversation. */
int sl_chat_add_copy(struct sl_chat *c, const struct sl_chat_message *m, struct sl_err *err);

#endif
