/* Tokenizer: the path from text to ids and back, over the parts that do the work.
 *
 *   tokenizer_guard    where the reference cuts long texts and long runs
 *   tokenizer_control  names of control tokens in markup
 *   tokenizer_pretok   pieces that merging never crosses (PCRE2)
 *   tokenizer_bpe      ids of one piece
 *   tokenizer_vocab    tiktoken.model
 *
 * The order is the reference's: guards first, then control strings inside each part, then the
 * pattern on what lies between them, each stretch a text of its own for look-ahead. Looking for
 * control strings before the guards would find one more where a cut runs through a name, and would
 * count characters from other places: other ids in texts beyond 25,000 characters.
 *
 * Python never hands the reference ill-formed UTF-8, so nothing prescribes ids for it. All 256 single
 * bytes are tokens, so we keep what is there: such a byte ends the stretch before it and becomes its
 * own id, and decoding gives the very same bytes back. */
#include "runtime/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/size.h"
#include "runtime/tokenizer_bpe.h"
#include "runtime/tokenizer_control.h"
#include "runtime/tokenizer_guard.h"
#include "runtime/tokenizer_pretok.h"
#include "runtime/tokenizer_vocab.h"
#include "runtime/utf8.h"

#define AUTO_CONTROL_IDS 256
#define MAX_VOCAB        (1 << 24)
#define CACHE_FROM_BYTES 4096 /* shorter texts do not repay clearing a cache */

struct sl_tokenizer {
    int32_t n_vocab;
    struct sl_vocab *vocab;
    struct sl_control *control;
    struct sl_pretok *pretok;
};

/* What one call works with. */
struct run {
    const struct sl_tokenizer *t;
    struct sl_pretok_run *pretok;
    struct sl_bpe_run *bpe;
    struct sl_ids *out;
    struct sl_err *err;
};

int sl_ids_push(struct sl_ids *ids, int32_t id, struct sl_err *err)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 256;
        int32_t *v = NULL;
        if (cap > ids->cap && cap <= SIZE_MAX / sizeof *v) v = realloc(ids->v, cap * sizeof *v);
        if (!v)
            return sl_fail(err, SL_E_NOMEM, NULL, "tokenizer", "no memory for %zu token ids", cap);
        ids->v = v;
        ids->cap = cap;
    }
    ids->v[ids->n++] = id;
    return 0;
}

void sl_ids_free(struct sl_ids *ids)
{
    free(ids->v);
    *ids = (struct sl_ids){0};
}

int sl_tokenizer_open(struct sl_tokenizer **out, const char *dir, int n_vocab, int code,
                      struct sl_err *err)
{
    char path[SL_PATH_MAX];
    int rc = 0;
    if (n_vocab != SL_TOKENIZER_VOCAB_AUTO && (n_vocab < 256 || n_vocab > MAX_VOCAB))
        return sl_fail(err, code, dir, "vocab_size", "%d: a tokenizer has 256 to %d ids", n_vocab,
                       MAX_VOCAB);
    struct sl_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_E_NOMEM, dir, NULL, "no memory for the tokenizer");

    if (!sl_path_join(path, dir, "tiktoken.model")) goto too_long;
    int32_t most = n_vocab == SL_TOKENIZER_VOCAB_AUTO ? MAX_VOCAB - AUTO_CONTROL_IDS : n_vocab;
    rc = sl_vocab_open(&t->vocab, path, (uint32_t)most, code, err);
    if (rc) goto fail;
    int32_t n_ordinary = (int32_t)t->vocab->n;
    t->n_vocab = n_vocab == SL_TOKENIZER_VOCAB_AUTO ? n_ordinary + AUTO_CONTROL_IDS : n_vocab;

    if (!sl_path_join(path, dir, "tokenizer_config.json")) goto too_long;
    rc = sl_control_open(&t->control, path, n_ordinary, t->n_vocab, code, err);
    if (rc) goto fail;
    rc = sl_pretok_open(&t->pretok, err);
    if (rc) goto fail;
    *out = t;
    return 0;
too_long:
    rc = sl_fail(err, code, NULL, "tokenizer", "path of %zu bytes is too long", strlen(dir));
fail:
    sl_tokenizer_close(t);
    return rc;
}

void sl_tokenizer_close(struct sl_tokenizer *t)
{
    if (!t) return;
    sl_pretok_close(t->pretok);
    sl_control_close(t->control);
    sl_vocab_close(t->vocab);
    free(t);
}

/* Ordinary text up to a guard's cut or a control string. */
static int encode_stretch(struct run *r, const char *s, size_t len)
{
    while (len > 0) {
        size_t good = sl_utf8_valid(s, len);
        for (size_t i = 0; i < good;) {
            size_t piece = 0;
            int rc = sl_pretok_next(r->pretok, s + i, good - i, &piece, r->err);
            if (!rc) rc = sl_bpe_piece(r->bpe, s + i, piece, r->out, r->err);
            if (rc) return rc;
            i += piece;
        }
        s += good;
        len -= good;
        if (len > 0) { /* not UTF-8: this byte, as it is */
            int rc = sl_bpe_piece(r->bpe, s, 1, r->out, r->err);
            if (rc) return rc;
            s++;
            len--;
        }
    }
    return 0;
}

static int encode_with_controls(struct run *r, const char *s, size_t len)
{
    while (len > 0) {
        size_t name = 0;
        int32_t id = -1;
        size_t before = sl_control_seek(r->t->control, s, len, &name, &id);
        int rc = encode_stretch(r, s, before);
        if (!rc && name) rc = sl_ids_push(r->out, id, r->err);
        if (rc) return rc;
        s += before + name;
        len -= before + name;
    }
    return 0;
}

static int encode(const struct sl_tokenizer *t, const char *text, size_t len, bool markup,
                  struct sl_ids *out, struct sl_err *err)
{
    struct run r = {.t = t, .out = out, .err = err};
    size_t n_before = out->n;
    int rc = sl_pretok_run_open(&r.pretok, t->pretok, err);
    if (!rc) rc = sl_bpe_run_open(&r.bpe, t->vocab, len >= CACHE_FROM_BYTES, err);
    struct sl_guard guard = {.text = text, .len = len};
    size_t start, n;
    while (!rc && sl_guard_next(&guard, &start, &n)) {
        rc = markup ? encode_with_controls(&r, text + start, n)
                    : encode_stretch(&r, text + start, n);
        if (!rc && sl_interrupted()) rc = sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
    }
    sl_bpe_run_close(r.bpe);
    sl_pretok_run_close(r.pretok);
    if (rc) out->n = n_before;
    return rc;
}

int sl_tokenizer_encode_plain(const struct sl_tokenizer *t, const char *text, size_t len,
                              struct sl_ids *out, struct sl_err *err)
{
    return encode(t, text, len, false, out, err);
}

int sl_tokenizer_encode_markup(const struct sl_tokenizer *t, const char *text, size_t len,
                               struct sl_ids *out, struct sl_err *err)
{
    return encode(t, text, len, true, out, err);
}

const char *sl_tokenizer_bytes(const struct sl_tokenizer *t, int32_t id, size_t *len)
{
    *len = 0;
    if (id < 0 || id >= t->n_vocab) return NULL;
    if (sl_tokenizer_is_control(t, id)) return sl_control_name(t->control, id, len);
    *len = t->vocab->len[id];
    return t->vocab->blob + t->vocab->at[id];
}

int sl_tokenizer_decode(const struct sl_tokenizer *t, const int32_t *ids, size_t n, char **out,
                        size_t *len, struct sl_err *err)
{
    uint64_t total = 1; /* the NUL */
    for (size_t i = 0; i < n; i++) {
        size_t k;
        if (!sl_tokenizer_bytes(t, ids[i], &k))
            return sl_fail(err, SL_E_ARG, NULL, "ids", "id %d at index %zu: expected 0 to %d",
                           ids[i], i, t->n_vocab - 1);
        if (!sl_add_u64(total, k, &total)) total = UINT64_MAX;
    }
    char *buf = total <= SIZE_MAX ? malloc((size_t)total) : NULL;
    if (!buf)
        return sl_fail(err, SL_E_NOMEM, NULL, "tokenizer", "no memory for the text of %zu ids", n);
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k;
        const char *s = sl_tokenizer_bytes(t, ids[i], &k);
        memcpy(buf + w, s, k);
        w += k;
    }
    buf[w] = 0;
    *out = buf;
    *len = w;
    return 0;
}

int sl_tokenizer_n_vocab(const struct sl_tokenizer *t)
{
    return t->n_vocab;
}

int sl_tokenizer_n_ordinary(const struct sl_tokenizer *t)
{
    return (int)t->vocab->n;
}

int32_t sl_tokenizer_control(const struct sl_tokenizer *t, const char *name)
{
    return sl_control_find(t->control, name, strlen(name));
}

bool sl_tokenizer_is_control(const struct sl_tokenizer *t, int32_t id)
{
    return id >= (int32_t)t->vocab->n && id < t->n_vocab;
}

int32_t sl_tokenizer_bos(const struct sl_tokenizer *t)
{
    return sl_control_bos(t->control);
}

int32_t sl_tokenizer_eos(const struct sl_tokenizer *t)
{
    return sl_control_eos(t->control);
}
