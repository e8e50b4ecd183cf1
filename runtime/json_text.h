/* JSON as text: a reader that keeps what cJSON loses (spelling of numbers, NUL in strings), and writers
 * in the two forms that the chat format is made of.
 *
 * Strict RFC 8259: one value, white space around it, well-formed UTF-8, no lone surrogates, nesting of
 * at most SL_JSON_DEPTH. Of equal keys in an object the last value stands, at the first one's place
 * (as in Python). Hostile input costs time n log n and memory in proportion to its length. */
#ifndef SL_RUNTIME_JSON_TEXT_H
#define SL_RUNTIME_JSON_TEXT_H

#include <stdbool.h>
#include "base/buf.h"
#include "base/chunk.h"
#include "runtime/chat_message.h"

#define SL_JSON_DEPTH 256

enum sl_json_kind {
    SL_JSON_NULL,
    SL_JSON_FALSE,
    SL_JSON_TRUE,
    SL_JSON_NUMBER,
    SL_JSON_STRING,
    SL_JSON_ARRAY,
    SL_JSON_OBJECT
};
struct sl_jv {
    enum sl_json_kind kind;
    int n_children;
    struct sl_text text; /* string: its bytes; number: as spelled */
    struct sl_text key;  /* of a member */
    const struct sl_jv *children, *next;
};

/* Parses text[n]; the tree lies in *pool. SL_E_ARG says what is wrong and at which byte. */
int sl_json_tree(const struct sl_jv **out, struct sl_chunk **pool, const char *text, size_t n,
                 struct sl_err *err);
/* Is it one JSON value? kind (may be NULL) receives which. */
bool sl_json_check(const char *text, size_t n, enum sl_json_kind *kind);
/* Member of an object, NULL: none, or v is no object. */
const struct sl_jv *sl_jv_get(const struct sl_jv *v, const char *key);
const char *sl_jv_kind_name(enum sl_json_kind kind); /* "string", "boolean", "null", ... */

enum sl_json_form {
    SL_JSON_COMPACT, /* keys sorted by code point in every object, `,` and `:` */
    SL_JSON_SPACED   /* keys in their order, `, ` and `: ` */
};
/* Numbers as spelled; strings with \" \\ \b \f \n \r \t, other control characters as \u00xx, everything
 * else as it is (Python's json.dumps with ensure_ascii=False). */
int sl_jv_write(struct sl_buf *out, const struct sl_jv *v, enum sl_json_form form,
                struct sl_err *err);
/* A string with its quotes; s is well-formed UTF-8. */
int sl_jv_put_string(struct sl_buf *out, const char *s, size_t n, struct sl_err *err);

#endif
