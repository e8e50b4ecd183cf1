/* Tokens, types and merges.
 *
 * Engines that read GGUF merge by a list of pairs, ours by rank. A token's pair is what rank merging
 * makes of its bytes when only lower ranks may be used: two parts, or the token could never be reached
 * and has no pair (spec 5 warns that the list is lossy; it is written because other engines need it, and
 * ignored when read). */
#define _GNU_SOURCE
#include "convert/gguf_vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strmap.h"
#include "convert/json_put.h"

#define TOKEN_MAX 1024 /* bytes of the longest token; blanks in the release have 128 */

enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3 };

/* ---- spelling -------------------------------------------------------------------------------------- */

static bool stands_for_itself(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct alphabet {
    uint16_t point[256]; /* of a byte */
    int16_t byte[512];   /* of a code point, -1: none */
};

static void make_alphabet(struct alphabet *a)
{
    int next = 256;
    for (int i = 0; i < 512; i++) a->byte[i] = -1;
    for (int b = 0; b < 256; b++) {
        a->point[b] = (uint16_t)(stands_for_itself(b) ? b : next++);
        a->byte[a->point[b]] = (int16_t)b;
    }
}

/* s[n] spelled into out, room for 2 n; returns the length. */
static size_t spell(const struct alphabet *a, const char *s, size_t n, char *out)
{
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t c = a->point[(unsigned char)s[i]];
        if (c < 0x80) {
            out[w++] = (char)c;
        } else { /* below 0x800: two bytes of UTF-8 */
            out[w++] = (char)(0xc0 | c >> 6);
            out[w++] = (char)(0x80 | (c & 0x3f));
        }
    }
    return w;
}

/* The bytes that text[n] spells, room for n; -1 when it holds anything else. */
static long unspell(const struct alphabet *a, const uint8_t *text, uint64_t n, char *out)
{
    long w = 0;
    for (uint64_t i = 0; i < n; i++) {
        unsigned c = text[i];
        if (c >= 0x80) {
            if ((c & 0xe0) != 0xc0 || i + 1 == n || (text[i + 1] & 0xc0) != 0x80) return -1;
            c = (c & 0x1f) << 6 | (text[++i] & 0x3f);
            if (c < 0x80) return -1;
        }
        if (c >= 512 || a->byte[c] < 0) return -1;
        out[w++] = (char)a->byte[c];
    }
    return w;
}

/* ---- writing --------------------------------------------------------------------------------------- */

struct merger {
    const struct sl_gguf_vocab *v;
    struct sl_strmap *ranks;
    struct alphabet a;
};

static bool fill_ranks(struct merger *m)
{
    m->ranks = sl_strmap_open((size_t)m->v->n_ordinary);
    for (int id = 0; m->ranks && id < m->v->n_ordinary; id++) {
        size_t n;
        const char *s = m->v->bytes(m->v->ctx, id, &n);
        if (sl_strmap_put(m->ranks, s, n, (uint32_t)id) < 0) return false;
    }
    return m->ranks;
}

/* Where rank merging cuts s[n] in two when only ranks below `limit` may be used; 0: it does not. */
static size_t cut_of(const struct merger *m, const char *s, size_t n, uint32_t limit)
{
    size_t at[TOKEN_MAX + 1]; /* starts of the parts, then n */
    size_t parts = n;
    for (size_t i = 0; i <= n; i++) at[i] = i;
    while (parts > 2) {
        uint32_t best = limit;
        size_t where = 0;
        for (size_t i = 0; i + 2 <= parts; i++) {
            uint32_t rank;
            if (sl_strmap_get(m->ranks, s + at[i], at[i + 2] - at[i], &rank) && rank < best) {
                best = rank;
                where = i;
            }
        }
        if (best == limit) return 0;
        memmove(&at[where + 1], &at[where + 2], (parts - where - 1) * sizeof *at);
        parts--;
    }
    return parts == 2 ? at[1] : 0;
}

static void put_tokens(struct sl_gguf_put *p, const struct merger *m, char *buf)
{
    const struct sl_gguf_vocab *v = m->v;
    sl_gguf_put_array(p, "tokenizer.ggml.tokens", SL_GGUF_STRING, (uint64_t)v->n);
    for (int id = 0; id < v->n; id++) {
        size_t n;
        const char *s = v->bytes(v->ctx, id, &n);
        if (id >= v->n_ordinary)
            sl_gguf_raw_str(p->f, s, n);
        else
            sl_gguf_raw_str(p->f, buf, spell(&m->a, s, n, buf));
    }
    sl_gguf_put_array(p, "tokenizer.ggml.token_type", SL_GGUF_I32, (uint64_t)v->n);
    for (int id = 0; id < v->n; id++)
        sl_gguf_raw_u32(p->f, id < v->n_ordinary ? TYPE_NORMAL : TYPE_CONTROL);
}

/* Two passes: the array's length comes first. cuts[n_ordinary] from the first. */
static void put_merges(struct sl_gguf_put *p, const struct merger *m, uint16_t *cuts, char *buf)
{
    const struct sl_gguf_vocab *v = m->v;
    uint64_t count = 0;
    for (int id = 0; id < v->n_ordinary; id++) {
        size_t n;
        const char *s = v->bytes(v->ctx, id, &n);
        cuts[id] = n > 1 ? (uint16_t)cut_of(m, s, n, (uint32_t)id) : 0;
        count += cuts[id] != 0;
    }
    sl_gguf_put_array(p, "tokenizer.ggml.merges", SL_GGUF_STRING, count);
    for (int id = 0; id < v->n_ordinary; id++) {
        size_t n;
        if (!cuts[id]) continue;
        const char *s = v->bytes(v->ctx, id, &n);
        size_t len = spell(&m->a, s, cuts[id], buf);
        buf[len++] = ' ';
        len += spell(&m->a, s + cuts[id], n - cuts[id], buf + len);
        sl_gguf_raw_str(p->f, buf, len);
    }
}

static int check_lengths(const struct sl_gguf_vocab *v, const char *file, struct sl_err *err)
{
    for (int id = 0; id < v->n; id++) {
        size_t n = 0;
        const char *s = v->bytes(v->ctx, id, &n);
        if (s && n >= 1 && n <= TOKEN_MAX) continue;
        return sl_fail(err, SL_E_PACK, file, "tokenizer", "id %d has %zu bytes, expected 1 to %d",
                       id, n, TOKEN_MAX);
    }
    return 0;
}

int sl_gguf_vocab_put(struct sl_gguf_put *p, const struct sl_gguf_vocab *v, int bos, int eos,
                      int pad, const char *file, struct sl_err *err)
{
    struct merger m = {.v = v};
    char buf[2 * TOKEN_MAX + 2];
    int rc = check_lengths(v, file, err);
    if (rc) return rc;
    make_alphabet(&m.a);
    uint16_t *cuts = calloc((size_t)v->n_ordinary + 1, sizeof *cuts);
    if (!cuts || !fill_ranks(&m)) {
        rc = sl_fail(err, SL_E_NOMEM, file, "tokenizer", "out of memory");
    } else {
        sl_gguf_put_str(p, "tokenizer.ggml.model", "gpt2");
        sl_gguf_put_str(p, "tokenizer.ggml.pre", "kimi-k2"); /* the name of this pre-tokenizer */
        put_tokens(p, &m, buf);
        put_merges(p, &m, cuts, buf);
        if (bos >= 0) sl_gguf_put_u32(p, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
        if (eos >= 0) sl_gguf_put_u32(p, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
        if (pad >= 0) sl_gguf_put_u32(p, "tokenizer.ggml.padding_token_id", (uint32_t)pad);
        sl_gguf_put_bool(p, "tokenizer.ggml.add_bos_token", false); /* K3 never adds one */
    }
    sl_strmap_close(m.ranks);
    free(cuts);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------------- */

struct reader {
    const struct sl_gguf *g;
    const struct sl_gguf_value *tokens, *types;
    const uint8_t *at; /* next token */
    int n, n_ordinary;
    struct sl_err *err;
};

static const char key_tokens[] = "tokenizer.ggml.tokens";

static int refuse(const struct reader *r, int id, const char *what)
{
    return sl_fail(r->err, SL_E_SOURCE, r->g->files[0].name, key_tokens, "id %d: %s", id, what);
}

/* The parser has checked that every string lies in the array. */
static const uint8_t *next_token(struct reader *r, uint64_t *n)
{
    *n = 0;
    for (int b = 7; b >= 0; b--) *n = *n << 8 | r->at[b];
    const uint8_t *s = r->at + 8;
    r->at = s + *n;
    return s;
}

static int check_model(const struct reader *r)
{
    static const char *const wanted[][2] = {{"tokenizer.ggml.model", "gpt2"},
                                            {"tokenizer.ggml.pre", "kimi-k2"}};
    for (int i = 0; i < 2; i++) {
        const char *s = NULL;
        uint64_t n = 0;
        int rc = sl_gguf_str(r->g, wanted[i][0], true, &s, &n, r->err);
        if (rc) return rc;
        if (n != strlen(wanted[i][1]) || memcmp(s, wanted[i][1], n) != 0)
            return sl_fail(r->err, SL_E_SOURCE, r->g->files[0].name, wanted[i][0],
                           "\"%.*s\", expected \"%s\"", n > 40 ? 40 : (int)n, s, wanted[i][1]);
    }
    return 0;
}

static int open_arrays(struct reader *r)
{
    const char *file = r->g->files[0].name;
    const char *key_types = "tokenizer.ggml.token_type";
    r->tokens = sl_gguf_value(r->g, key_tokens);
    r->types = sl_gguf_value(r->g, key_types);
    if (!r->tokens || r->tokens->type != SL_GGUF_ARRAY || r->tokens->item_type != SL_GGUF_STRING ||
        r->tokens->n < 256 || r->tokens->n > 1 << 24)
        return sl_fail(r->err, SL_E_SOURCE, file, key_tokens, "expected an array of tokens");
    if (!r->types || r->types->type != SL_GGUF_ARRAY || r->types->n != r->tokens->n)
        return sl_fail(r->err, SL_E_SOURCE, file, key_types, "expected one integer a token");
    r->n = (int)r->tokens->n;
    r->at = r->tokens->at;
    /* Ordinary tokens come first: their ids are ranks. */
    for (int id = 0; id < r->n; id++) {
        int64_t type = 0;
        if (!sl_gguf_item_int(r->types, (uint64_t)id, &type))
            return sl_fail(r->err, SL_E_SOURCE, file, key_types, "expected one integer a token");
        if (type == TYPE_NORMAL && r->n_ordinary == id) r->n_ordinary++;
        if (type == TYPE_NORMAL && r->n_ordinary <= id)
            return sl_fail(r->err, SL_E_SOURCE, file, key_types,
                           "id %d is an ordinary token behind a control token", id);
    }
    return 0;
}

static void put_base64(FILE *f, const char *s, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++) bits = bits << 8 | (i + k < n ? (unsigned char)s[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            putc(i + k <= n ? digits[bits >> (18 - 6 * k) & 63] : '=', f);
    }
}

static int write_model(struct reader *r, FILE *f)
{
    struct alphabet a;
    char bytes[2 * TOKEN_MAX];
    make_alphabet(&a);
    for (int id = 0; id < r->n_ordinary; id++) {
        uint64_t n;
        const uint8_t *s = next_token(r, &n);
        long len = n <= sizeof bytes ? unspell(&a, s, n, bytes) : -1;
        if (len < 1 || len > TOKEN_MAX) return refuse(r, id, "not a byte-level token");
        put_base64(f, bytes, (size_t)len);
        fprintf(f, " %d\n", id);
    }
    return 0;
}

/* Names that the reference shows in decoded text (spec 5). */
static bool is_special(const char *name)
{
    return strcmp(name, "<|open|>") != 0 && strcmp(name, "<|close|>") != 0 &&
           strcmp(name, "<|sep|>") != 0;
}

static void put_role(FILE *f, const char *role, const char *name)
{
    if (!*name) return;
    fprintf(f, ",\n \"%s\": ", role);
    sl_json_put_string(f, name);
}

static int write_config(struct reader *r, FILE *f)
{
    char name[TOKEN_MAX + 1];
    char usual[64];
    char role[4][64] = {"", "", "", ""}; /* BOS, EOS, PAD, UNK */
    static const char *const spelled[4] = {"[BOS]", "[EOS]", "[PAD]", "[UNK]"};
    static const char *const roles[4] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    bool first = true;
    fputs("{\n \"added_tokens_decoder\": {", f);
    for (int id = r->n_ordinary; id < r->n; id++) {
        uint64_t n;
        const uint8_t *s = next_token(r, &n);
        if (n < 1 || n > TOKEN_MAX || memchr(s, 0, n))
            return refuse(r, id, "a control token without a usable name");
        memcpy(name, s, n);
        name[n] = 0;
        for (int k = 0; k < 4; k++)
            if (!strcmp(name, spelled[k])) strcpy(role[k], name);
        snprintf(usual, sizeof usual, "<|reserved_token_%d|>", id);
        if (!strcmp(name, usual)) continue;
        fprintf(f, "%s\n  \"%d\": {\"content\": ", first ? "" : ",", id);
        sl_json_put_string(f, name);
        fprintf(f, ", \"special\": %s}", is_special(name) ? "true" : "false");
        first = false;
    }
    fputs("\n }", f);
    for (int k = 0; k < 4; k++) put_role(f, roles[k], role[k]);
    fputs(",\n \"tokenizer_class\": \"TikTokenTokenizer\"\n}\n", f);
    return 0;
}

static int render(struct reader *r, int (*fn)(struct reader *, FILE *), char **text, size_t *len)
{
    FILE *f = open_memstream(text, len);
    if (!f) return sl_fail(r->err, SL_E_NOMEM, r->g->files[0].name, NULL, "out of memory");
    int rc = fn(r, f);
    int bad = ferror(f);
    bad |= fclose(f);
    if (!rc && bad) rc = sl_fail(r->err, SL_E_NOMEM, r->g->files[0].name, NULL, "out of memory");
    return rc;
}

int sl_gguf_vocab_read(const struct sl_gguf *g, char **model, size_t *model_len, char **config,
                       size_t *config_len, struct sl_err *err)
{
    struct reader r = {.g = g, .err = err};
    *model = *config = NULL;
    int rc = check_model(&r);
    if (!rc) rc = open_arrays(&r);
    if (!rc) rc = render(&r, write_model, model, model_len);
    if (!rc) rc = render(&r, write_config, config, config_len);
    if (rc) {
        free(*model);
        free(*config);
        *model = *config = NULL;
    }
    return rc;
}
