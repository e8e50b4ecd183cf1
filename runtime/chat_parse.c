/* The answer parser (chat_parse.h): a small machine over control ids.
 *
 *   THINK --/think--> BETWEEN --response--> RESPONSE --/response--> AFTER --/message--> DONE
 *     '---------------response-------------^   '--tools--> TOOLS --/tools--^
 *                                                TOOLS --call--> CALL --argument--> ARG, --json--> RAW
 *
 * Between OPEN or CLOSE and SEP lies a header: collected, read at SEP, given back as text when it is none
 * that the channel expects. Text between two control ids is handled as one piece (characters end at a
 * marker, blanks between channels are judged whole), which is why no cut of ids can change the events.
 *
 * A call collects two things at once: its arguments as JSON, and its markup as it was spelled, to fall
 * back on. */
#include "runtime/chat_parse.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "runtime/json_text.h"
#include "runtime/utf8.h"

enum channel {
    CH_THINK,
    CH_BETWEEN,
    CH_RESPONSE,
    CH_AFTER,
    CH_TOOLS,
    CH_CALL,
    CH_ARG,
    CH_RAW, /* inside <json> */
    CH_DONE
};
enum marker { NO_MARKER, OPENING, CLOSING };
enum { HEADER_MAX = 64 << 10, ATTRS_MAX = 8 };

struct header {
    struct sl_text tag;
    int n_attrs;
    struct {
        struct sl_text key, value; /* still escaped */
    } attrs[ATTRS_MAX];
};

struct sl_chat_parser {
    const struct sl_chat_format *f;
    bool thinking;
    sl_chat_event_fn fn;
    void *ctx;

    enum channel at;
    enum channel last; /* where the ids left off, once they have ended */
    bool ended;
    enum marker marker;
    struct sl_buf header;
    struct sl_utf8_stream utf8;
    struct sl_buf gap; /* text between channels */
    struct sl_buf reasoning, content;
    int malformed;

    /* the call being read */
    struct sl_buf raw;  /* as spelled */
    struct sl_buf name; /* unescaped */
    struct sl_buf args; /* "{...", without the brace that ends it */
    struct sl_buf key, type, value;
    int n_args;
    bool whole_args; /* args came from <json> */
    bool bad;

    struct sl_chat answer; /* holds the calls */
    struct sl_chat_message message;
    struct sl_chat_part part;
};

static bool is_text(struct sl_text t, const char *word)
{
    return t.n == strlen(word) && memcmp(t.s, word, t.n) == 0;
}

static bool blank_ascii(const struct sl_buf *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (!strchr(" \t\r\n", b->s[i]) || !b->s[i]) return false;
    return true;
}

static void clear(struct sl_buf *b)
{
    b->n = 0;
    if (b->s) b->s[0] = 0;
}

/* ---------------------------------------------------------------- text */

static int give(struct sl_chat_parser *p, enum sl_chat_event_kind kind, const char *s, size_t n,
                struct sl_err *err)
{
    if (!n) return 0;
    int rc = sl_buf_add(kind == SL_CHAT_EV_REASONING ? &p->reasoning : &p->content, s, n, err);
    if (rc || !p->fn) return rc;
    const struct sl_chat_event e = {.kind = kind, .text = {s, n}};
    return p->fn(p->ctx, &e);
}

/* Where text of the current channel goes, after it became well-formed. */
static int put(struct sl_chat_parser *p, const char *s, size_t n, struct sl_err *err)
{
    int rc = 0;
    switch (p->at) {
    case CH_THINK:
        return give(p, SL_CHAT_EV_REASONING, s, n, err);
    case CH_RESPONSE:
        return give(p, SL_CHAT_EV_CONTENT, s, n, err);
    case CH_BETWEEN:
    case CH_AFTER:
    case CH_TOOLS:
        return sl_buf_add(&p->gap, s, n, err);
    case CH_ARG:
    case CH_RAW:
        rc = sl_buf_add(&p->value, s, n, err);
        return rc ? rc : sl_buf_add(&p->raw, s, n, err);
    case CH_CALL:
        for (size_t i = 0; i < n; i++)
            if (!s[i] || !strchr(" \t\r\n", s[i])) p->bad = true;
        return sl_buf_add(&p->raw, s, n, err);
    case CH_DONE:
        break;
    }
    return 0;
}

static int put_bytes(struct sl_chat_parser *p, const char *s, size_t n, struct sl_err *err)
{
    char few[SL_UTF8_ROOM(256)];
    int rc = 0;
    for (size_t i = 0; i < n && !rc;) {
        size_t m = n - i < 256 ? n - i : 256;
        rc = put(p, few, sl_utf8_feed(&p->utf8, s + i, m, few), err);
        i += m;
    }
    return rc;
}

/* A control id ends whatever character was open. */
static int end_text(struct sl_chat_parser *p, struct sl_err *err)
{
    char out[SL_UTF8_ROOM(0)];
    size_t n = sl_utf8_finish(&p->utf8, out);
    return n ? put(p, out, n, err) : 0;
}

/* Text between channels, judged once the next marker is known to be one. */
static int end_gap(struct sl_chat_parser *p, struct sl_err *err)
{
    int rc = 0;
    if (!blank_ascii(&p->gap)) {
        p->malformed++;
        rc = give(p, SL_CHAT_EV_CONTENT, p->gap.s, p->gap.n, err);
    }
    clear(&p->gap);
    return rc;
}

static int put_control(struct sl_chat_parser *p, int32_t id, struct sl_err *err)
{
    size_t n;
    const char *s = sl_tokenizer_bytes(p->f->t, id, &n);
    int rc = end_text(p, err);
    if (!rc) rc = put_bytes(p, s, n, err);
    return rc ? rc : end_text(p, err);
}

/* A piece that fits no rule. In a call it spoils the call, which then counts as one. */
static void misplaced(struct sl_chat_parser *p)
{
    if (p->at >= CH_CALL)
        p->bad = true;
    else
        p->malformed++;
}

/* The marker was none: back to text it goes. with_sep: it had its end. */
static int spell_marker(struct sl_chat_parser *p, bool with_sep, struct sl_err *err)
{
    const int32_t id = p->marker == OPENING ? p->f->open : p->f->close;
    p->marker = NO_MARKER;
    misplaced(p);
    int rc = put_control(p, id, err);
    if (!rc) rc = put_bytes(p, p->header.s, p->header.n, err);
    if (!rc && with_sep) rc = put_control(p, p->f->sep, err);
    clear(&p->header);
    return rc;
}

/* ---------------------------------------------------------------- headers */

/* tag( key="value")*; false when it is anything else. */
static bool read_header(struct header *h, const struct sl_buf *b)
{
    size_t i = 0;
    *h = (struct header){0};
    while (i < b->n && b->s[i] >= 'a' && b->s[i] <= 'z') i++;
    if (!i) return false;
    h->tag = (struct sl_text){b->s, i};
    while (i < b->n) {
        const size_t key = i + 1;
        if (b->s[i] != ' ' || h->n_attrs == ATTRS_MAX) return false;
        for (i = key; i < b->n && b->s[i] >= 'a' && b->s[i] <= 'z';) i++;
        if (i == key || b->n - i < 2 || memcmp(b->s + i, "=\"", 2) != 0) return false;
        const size_t value = i + 2;
        const char *end = memchr(b->s + value, '"', b->n - value);
        if (!end) return false;
        h->attrs[h->n_attrs].key = (struct sl_text){b->s + key, i - key};
        h->attrs[h->n_attrs++].value = (struct sl_text){b->s + value, (size_t)(end - b->s) - value};
        i = (size_t)(end - b->s) + 1;
    }
    return true;
}

/* Value of an attribute, unescaped (&quot; before &amp;) and well-formed. false: not there. */
static bool attribute(struct sl_buf *out, const struct header *h, const char *key, int *rc,
                      struct sl_err *err)
{
    int i = 0;
    clear(out);
    while (i < h->n_attrs && !is_text(h->attrs[i].key, key)) i++;
    if (i == h->n_attrs || *rc) return false;
    const struct sl_text v = h->attrs[i].value;
    struct sl_utf8_stream u = {0};
    char c[SL_UTF8_ROOM(1)];
    for (size_t at = 0; at < v.n && !*rc;) {
        const size_t left = v.n - at;
        char one = v.s[at];
        size_t used = 1;
        if (left >= 6 && memcmp(v.s + at, "&quot;", 6) == 0) one = '"', used = 6;
        if (left >= 5 && memcmp(v.s + at, "&amp;", 5) == 0) one = '&', used = 5;
        *rc = sl_buf_add(out, c, sl_utf8_feed(&u, &one, 1, c), err);
        at += used;
    }
    if (!*rc) *rc = sl_buf_add(out, c, sl_utf8_finish(&u, c), err);
    return !*rc;
}

/* What may come where: of a cut answer's half marker, the word it began and the channel behind it. */
static const struct half {
    enum marker marker;
    enum channel least, most;
    const char *tag;
    enum channel to;
} halves[] = {
    {CLOSING, CH_THINK, CH_THINK, "think", CH_BETWEEN},
    {CLOSING, CH_RESPONSE, CH_RESPONSE, "response", CH_AFTER},
    {CLOSING, CH_TOOLS, CH_TOOLS, "tools", CH_AFTER},
    {CLOSING, CH_CALL, CH_CALL, "call", CH_TOOLS},
    {CLOSING, CH_ARG, CH_ARG, "argument", CH_CALL},
    {CLOSING, CH_RAW, CH_RAW, "json", CH_CALL},
    {CLOSING, CH_THINK, CH_RAW, "message", CH_DONE},
    {OPENING, CH_THINK, CH_BETWEEN, "response", CH_RESPONSE},
    {OPENING, CH_THINK, CH_AFTER, "tools", CH_TOOLS},
    {OPENING, CH_TOOLS, CH_TOOLS, "call", CH_CALL},
    {OPENING, CH_CALL, CH_CALL, "argument", CH_ARG},
    {OPENING, CH_CALL, CH_CALL, "json", CH_RAW},
};

/* NULL: the header could not have become a marker, and is text. */
static const struct half *half_marker(const struct sl_chat_parser *p, enum channel at)
{
    for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++) {
        const struct half *h = &halves[i];
        const size_t n = strlen(h->tag);
        const size_t m = p->header.n < n ? p->header.n : n;
        if (h->marker != p->marker || at < h->least || at > h->most) continue;
        if (m && memcmp(p->header.s, h->tag, m) != 0) continue;
        if (p->header.n <= n || (h->marker == OPENING && p->header.s[n] == ' ')) return h;
    }
    return NULL;
}

/* ---------------------------------------------------------------- calls */

static void begin_call(struct sl_chat_parser *p)
{
    clear(&p->raw);
    clear(&p->args);
    p->n_args = 0;
    p->whole_args = false;
    p->bad = false;
}

/* What the markers of a call look like in its raw form. */
static int raw_marker(struct sl_chat_parser *p, struct sl_err *err)
{
    const int32_t id = p->marker == OPENING ? p->f->open : p->f->close;
    size_t n;
    const char *s = sl_tokenizer_bytes(p->f->t, id, &n);
    char few[SL_UTF8_ROOM(1)];
    struct sl_utf8_stream u = {0};
    int rc = sl_buf_add(&p->raw, s, n, err);
    for (size_t i = 0; i < p->header.n && !rc; i++)
        rc = sl_buf_add(&p->raw, few, sl_utf8_feed(&u, p->header.s + i, 1, few), err);
    if (!rc) rc = sl_buf_add(&p->raw, few, sl_utf8_finish(&u, few), err);
    s = sl_tokenizer_bytes(p->f->t, p->f->sep, &n);
    return rc ? rc : sl_buf_add(&p->raw, s, n, err);
}

/* Adds "key": value to the arguments; what does not fit its type spoils the call. */
static int end_argument(struct sl_chat_parser *p, struct sl_err *err)
{
    struct sl_chunk *pool = NULL;
    const struct sl_jv *v = NULL;
    const bool string = is_text((struct sl_text){p->type.s, p->type.n}, "string");
    if (!string && sl_json_tree(&v, &pool, p->value.s ? p->value.s : "", p->value.n, NULL)) {
        p->bad = true;
    } else if (!string &&
               !is_text((struct sl_text){p->type.s, p->type.n}, sl_jv_kind_name(v->kind))) {
        p->bad = true;
    }
    int rc = 0;
    if (!p->bad) rc = sl_buf_str(&p->args, p->n_args++ ? ", " : "{", err);
    if (!p->bad && !rc) rc = sl_jv_put_string(&p->args, p->key.s, p->key.n, err);
    if (!p->bad && !rc) rc = sl_buf_str(&p->args, ": ", err);
    if (!p->bad && !rc)
        rc = string ? sl_jv_put_string(&p->args, p->value.s, p->value.n, err)
                    : sl_jv_write(&p->args, v, SL_JSON_SPACED, err);
    sl_chunk_free(&pool);
    return rc;
}

static int end_raw_arguments(struct sl_chat_parser *p, struct sl_err *err)
{
    enum sl_json_kind kind;
    if (p->n_args || p->whole_args || !p->value.n ||
        !sl_json_check(p->value.s, p->value.n, &kind) || kind != SL_JSON_OBJECT) {
        p->bad = true;
        return 0;
    }
    p->whole_args = true;
    return sl_buf_add(&p->args, p->value.s, p->value.n, err);
}

/* Are the keys distinct? Twins would lose a value on the way through JSON. */
static bool keys_distinct(const struct sl_chat_parser *p)
{
    struct sl_chunk *pool = NULL;
    const struct sl_jv *v;
    bool ok = p->whole_args || (sl_json_tree(&v, &pool, p->args.s, p->args.n, NULL) == 0 &&
                                v->n_children == p->n_args);
    sl_chunk_free(&pool);
    return ok;
}

/* An unfinished or invalid call becomes content. */
static int drop_call(struct sl_chat_parser *p, struct sl_err *err)
{
    p->malformed++;
    p->at = CH_TOOLS;
    p->bad = false;
    return give(p, SL_CHAT_EV_CONTENT, p->raw.s, p->raw.n, err);
}

static int end_call(struct sl_chat_parser *p, struct sl_err *err)
{
    int rc = 0;
    if (!p->whole_args) {
        if (!p->n_args) rc = sl_buf_str(&p->args, "{", err);
        if (!rc) rc = sl_buf_str(&p->args, "}", err);
    }
    if (rc) return rc;
    if (p->bad || !keys_distinct(p)) return drop_call(p, err);
    p->at = CH_TOOLS;
    const struct sl_chat_call call = {.name = {p->name.s, p->name.n},
                                      .arguments = {p->args.s, p->args.n}};
    rc = sl_chat_add_call(&p->answer, &p->message, &call, err);
    if (rc || !p->fn) return rc;
    const int index = p->message.n_calls - 1;
    const struct sl_chat_event e = {
        .kind = SL_CHAT_EV_CALL, .call = &p->message.calls[index], .call_index = index};
    return p->fn(p->ctx, &e);
}

/* ---------------------------------------------------------------- markers */

/* A marker inside a call: 1 handled, 0 not one that belongs there. */
static int marker_in_call(struct sl_chat_parser *p, const struct header *h, struct sl_err *err,
                          int *rc)
{
    const bool opens = p->marker == OPENING;
    if (!opens && is_text(h->tag, "call")) {
        if (p->at != CH_CALL) p->bad = true;
        *rc = raw_marker(p, err);
        if (!*rc) *rc = end_call(p, err);
        return 1;
    }
    /* The end of all calls, or of the message, ends a call that forgot to. */
    if (!opens && (is_text(h->tag, "tools") || is_text(h->tag, "message"))) {
        *rc = drop_call(p, err);
        return 0;
    }
    if (p->bad) return 0;
    if (opens && p->at == CH_CALL && is_text(h->tag, "argument")) {
        const bool key = attribute(&p->key, h, "key", rc, err);
        const bool type = attribute(&p->type, h, "type", rc, err);
        if (!key || !type) p->bad = true;
        p->at = CH_ARG;
    } else if (opens && p->at == CH_CALL && is_text(h->tag, "json")) {
        p->at = CH_RAW;
    } else if (!opens && p->at == CH_ARG && is_text(h->tag, "argument")) {
        p->at = CH_CALL;
        if (p->whole_args) p->bad = true;
        if (!*rc) *rc = end_argument(p, err);
    } else if (!opens && p->at == CH_RAW && is_text(h->tag, "json")) {
        p->at = CH_CALL;
        *rc = end_raw_arguments(p, err);
    } else {
        return 0;
    }
    if (!*rc) *rc = raw_marker(p, err);
    clear(&p->value);
    return 1;
}

/* Outside of calls: the channel that the marker leads to, -1: it belongs to none here. */
static int next_channel(const struct sl_chat_parser *p, const struct header *h)
{
    if (p->marker == CLOSING) {
        if (h->n_attrs) return -1;
        if (is_text(h->tag, "message")) return CH_DONE;
        if (p->at == CH_THINK && is_text(h->tag, "think")) return CH_BETWEEN;
        if (p->at == CH_RESPONSE && is_text(h->tag, "response")) return CH_AFTER;
        if (p->at == CH_TOOLS && is_text(h->tag, "tools")) return CH_AFTER;
        return -1;
    }
    if (p->at <= CH_BETWEEN && is_text(h->tag, "response")) return CH_RESPONSE;
    if (p->at <= CH_AFTER && is_text(h->tag, "tools")) return CH_TOOLS;
    if (p->at == CH_TOOLS && is_text(h->tag, "call")) return CH_CALL;
    return -1;
}

static int end_marker(struct sl_chat_parser *p, struct sl_err *err)
{
    struct header h;
    int rc = 0;
    if (!read_header(&h, &p->header)) return spell_marker(p, true, err);
    if (p->at >= CH_CALL && marker_in_call(p, &h, err, &rc)) {
        p->marker = NO_MARKER;
        clear(&p->header);
        return rc;
    }
    if (rc) return rc;
    int to = p->at < CH_CALL ? next_channel(p, &h) : -1;
    if (to == CH_CALL) {
        begin_call(p);
        bool named = attribute(&p->name, &h, "tool", &rc, err) && p->name.n;
        if (!rc) rc = end_gap(p, err);
        if (!rc) rc = raw_marker(p, err);
        if (!named) p->bad = true;
    } else if (to >= 0) {
        rc = end_gap(p, err);
    } else {
        return spell_marker(p, true, err);
    }
    p->at = (enum channel)to;
    p->marker = NO_MARKER;
    clear(&p->header);
    return rc;
}

/* ---------------------------------------------------------------- ids */

static int stop(struct sl_chat_parser *p, struct sl_err *err)
{
    p->last = p->at;
    p->ended = true;
    int rc = end_text(p, err);
    if (!rc && p->marker != NO_MARKER && !half_marker(p, p->at)) rc = spell_marker(p, false, err);
    if (!rc) rc = end_text(p, err);
    if (!rc && p->at >= CH_CALL && p->at != CH_DONE) rc = drop_call(p, err);
    return rc ? rc : end_gap(p, err);
}

static int control(struct sl_chat_parser *p, int32_t id, struct sl_err *err)
{
    int rc = 0;
    if (id == p->f->sep && p->marker != NO_MARKER) return end_marker(p, err);
    if (p->marker != NO_MARKER) rc = spell_marker(p, false, err); /* cut short by another one */
    if (!rc) rc = end_text(p, err);
    if (rc) return rc;
    if (id == p->f->open || id == p->f->close) {
        p->marker = id == p->f->open ? OPENING : CLOSING;
        return 0;
    }
    misplaced(p); /* a control token that has no place in an answer */
    return put_control(p, id, err);
}

static int one(struct sl_chat_parser *p, int32_t id, struct sl_err *err)
{
    size_t n;
    const char *s = sl_tokenizer_bytes(p->f->t, id, &n);
    if (!s)
        return sl_fail(err, SL_E_ARG, NULL, NULL, "id %d is outside the vocabulary of %d", id,
                       sl_tokenizer_n_vocab(p->f->t));
    if (p->at == CH_DONE) return 0;
    if (id == p->f->eom || id == p->f->eos) {
        int rc = stop(p, err);
        p->at = CH_DONE;
        return rc;
    }
    if (sl_tokenizer_is_control(p->f->t, id)) return control(p, id, err);
    if (p->marker == NO_MARKER) return put_bytes(p, s, n, err);
    int rc = sl_buf_add(&p->header, s, n, err);
    return rc || p->header.n <= HEADER_MAX ? rc : spell_marker(p, false, err);
}

int sl_chat_parse(struct sl_chat_parser *p, const int32_t *ids, size_t n, struct sl_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) rc = one(p, ids[i], err);
    return rc;
}

int sl_chat_parse_end(struct sl_chat_parser *p, struct sl_err *err)
{
    return p->at == CH_DONE || p->ended ? 0 : stop(p, err);
}

/* ---------------------------------------------------------------- answers */

int sl_chat_parser_open(struct sl_chat_parser **out, const struct sl_chat_format *f, bool thinking,
                        sl_chat_event_fn fn, void *ctx, struct sl_err *err)
{
    struct sl_chat_parser *p = calloc(1, sizeof *p);
    *out = p;
    if (!p) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the parser");
    p->f = f;
    p->thinking = thinking;
    p->fn = fn;
    p->ctx = ctx;
    p->at = thinking ? CH_THINK : CH_RESPONSE;
    p->message.role = SL_CHAT_ASSISTANT;
    return 0;
}

void sl_chat_parser_close(struct sl_chat_parser *p)
{
    if (!p) return;
    struct sl_buf *const all[] = {&p->header, &p->gap,  &p->reasoning, &p->content, &p->raw,
                                  &p->name,   &p->args, &p->key,       &p->type,    &p->value};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) sl_buf_free(all[i]);
    sl_chat_free(&p->answer);
    free(p);
}

bool sl_chat_parser_done(const struct sl_chat_parser *p)
{
    return p->at == CH_DONE;
}

int sl_chat_parser_malformed(const struct sl_chat_parser *p)
{
    return p->malformed;
}

bool sl_chat_parser_in_response(const struct sl_chat_parser *p)
{
    return p->at != CH_THINK;
}

const struct sl_chat_message *sl_chat_parser_message(struct sl_chat_parser *p)
{
    p->part = (struct sl_chat_part){.kind = SL_PART_TEXT, .text = {p->content.s, p->content.n}};
    p->message.parts = &p->part;
    p->message.n_parts = p->content.n != 0;
    p->message.reasoning = (struct sl_text){p->reasoning.s, p->reasoning.n};
    return &p->message;
}

/* Ids of a closer or an opener. */
static int tag_ids(const struct sl_chat_parser *p, int32_t first, const char *tag,
                   struct sl_ids *out, struct sl_err *err)
{
    int rc = sl_ids_push(out, first, err);
    if (!rc) rc = sl_tokenizer_encode_plain(p->f->t, tag, strlen(tag), out, err);
    return rc ? rc : sl_ids_push(out, p->f->sep, err);
}

/* Finishes half a marker with the word it began; *at is the channel behind it. */
static int finish_marker(const struct sl_chat_parser *p, enum channel *at, struct sl_ids *out,
                         struct sl_err *err)
{
    const struct half *h = half_marker(p, *at);
    const size_t have = p->header.n;
    int rc = 0;
    if (!h) return 0;
    *at = h->to;
    if (have < strlen(h->tag))
        rc = sl_tokenizer_encode_plain(p->f->t, h->tag + have, strlen(h->tag) - have, out, err);
    return rc ? rc : sl_ids_push(out, p->f->sep, err);
}

int sl_chat_parser_closing(const struct sl_chat_parser *p, struct sl_ids *out, struct sl_err *err)
{
    enum channel at = p->ended ? p->last : p->at;
    int rc = 0;
    if (p->marker != NO_MARKER) rc = finish_marker(p, &at, out, err);
    while (at != CH_DONE && !rc) {
        switch (at) {
        case CH_THINK:
            rc = tag_ids(p, p->f->close, "think", out, err);
            at = CH_BETWEEN;
            break;
        case CH_BETWEEN:
            rc = tag_ids(p, p->f->open, "response", out, err);
            at = CH_RESPONSE;
            break;
        case CH_RESPONSE:
            rc = tag_ids(p, p->f->close, "response", out, err);
            at = CH_AFTER;
            break;
        case CH_RAW:
        case CH_ARG:
            rc = tag_ids(p, p->f->close, at == CH_ARG ? "argument" : "json", out, err);
            at = CH_CALL;
            break;
        case CH_CALL:
            rc = tag_ids(p, p->f->close, "call", out, err);
            at = CH_TOOLS;
            break;
        case CH_TOOLS:
            rc = tag_ids(p, p->f->close, "tools", out, err);
            at = CH_AFTER;
            break;
        default:
            rc = tag_ids(p, p->f->close, "message", out, err);
            at = CH_DONE;
        }
    }
    return rc ? rc : sl_ids_push(out, p->f->eom, err);
}
