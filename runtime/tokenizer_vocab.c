/* Ordinary vocabulary: the text file tiktoken.model, one `base64(bytes) SP rank` a line.
 *
 * The file comes from strangers. Lines are counted first, so that "dense" needs no guess: n lines,
 * every rank below n, none twice. Base64 is taken strictly (full groups, padding only at the end,
 * unused bits zero), since two spellings of one token would hide a duplicate from a reader's eye.
 * Ranks may come in any order. */
#include "runtime/tokenizer_vocab.h"

#include <stdlib.h>
#include <string.h>
#include "base/file.h"

struct line {
    const char *s;
    size_t len;
    size_t number; /* from 1, blank lines counted */
};

/* Next non-blank line of text[len] from *pos; false at the end. One CR before the LF is dropped. */
static bool next_line(const char *text, size_t len, size_t *pos, struct line *ln)
{
    while (*pos < len) {
        const char *s = text + *pos;
        const char *end = memchr(s, '\n', len - *pos);
        size_t n = end ? (size_t)(end - s) : len - *pos;
        *pos += n + (end ? 1 : 0);
        ln->number++;
        if (n > 0 && s[n - 1] == '\r') n--;
        if (n == 0) continue;
        ln->s = s;
        ln->len = n;
        return true;
    }
    return false;
}

static int base64_digit(unsigned char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes s[n] into out, room n / 4 * 3; -1 when it is not canonical base64. */
static long base64_decode(const char *s, size_t n, char *out)
{
    if (n % 4 != 0) return -1;
    long w = 0;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;
        size_t pad = 0;
        if (i + 4 == n && s[i + 3] == '=') pad = s[i + 2] == '=' ? 2 : 1;
        for (size_t k = 0; k < 4 - pad; k++) {
            int d = base64_digit((unsigned char)s[i + k]);
            if (d < 0) return -1;
            bits |= (uint32_t)d << (18 - 6 * k);
        }
        if (bits & ((1u << 8 * pad) - 1)) return -1;
        for (size_t k = 0; k < 3 - pad; k++) out[w++] = (char)(bits >> (16 - 8 * k));
    }
    return w;
}

/* "line 17" as the field of an error. */
struct where {
    char text[32];
};

static const char *at_line(struct where *w, size_t number)
{
    char digits[24];
    size_t n = sizeof digits - 1;
    digits[n] = 0;
    do {
        digits[--n] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    memcpy(w->text, "line ", 5);
    memcpy(w->text + 5, digits + n, sizeof digits - n);
    return w->text;
}

/* Reads one line into token `*used` of the blob; its rank's at/len are set. */
static int read_token(struct sl_vocab *v, const struct line *ln, size_t *used, const char *path,
                      int code, struct sl_err *err)
{
    struct where w;
    const char *where = at_line(&w, ln->number);
    const char *sp = memchr(ln->s, ' ', ln->len);
    if (!sp)
        return sl_fail(err, code, path, where, "no space between token and rank: %.*s",
                       (int)(ln->len < 60 ? ln->len : 60), ln->s);
    size_t code_len = (size_t)(sp - ln->s), rank_len = ln->len - code_len - 1;
    if (code_len == 0) return sl_fail(err, code, path, where, "empty token");
    if (code_len > (SL_VOCAB_TOKEN_MAX_BYTES + 2) / 3 * 4)
        return sl_fail(err, code, path, where, "token of %zu base64 characters, at most %u bytes",
                       code_len, SL_VOCAB_TOKEN_MAX_BYTES);
    char *bytes = v->blob + *used;
    long n = base64_decode(ln->s, code_len, bytes);
    if (n < 0)
        return sl_fail(err, code, path, where, "not base64: %.*s",
                       (int)(code_len < 60 ? code_len : 60), ln->s);
    if (n > (long)SL_VOCAB_TOKEN_MAX_BYTES)
        return sl_fail(err, code, path, where, "token of %ld bytes, at most %u", n,
                       SL_VOCAB_TOKEN_MAX_BYTES);

    uint64_t rank = 0;
    bool digits = rank_len > 0 && rank_len <= 9;
    for (size_t i = 0; digits && i < rank_len; i++) {
        if (sp[1 + i] < '0' || sp[1 + i] > '9') digits = false;
        rank = rank * 10 + (uint64_t)(sp[1 + i] - '0');
    }
    if (!digits || rank >= v->n)
        return sl_fail(err, code, path, where, "rank %.*s: expected 0 to %u, one for each line",
                       (int)(rank_len < 30 ? rank_len : 30), sp + 1, v->n - 1);
    if (v->len[rank]) return sl_fail(err, code, path, where, "rank %u twice", (unsigned)rank);

    int put = sl_strmap_put(v->map, bytes, (size_t)n, (uint32_t)rank);
    if (put < 0) return sl_fail(err, SL_E_NOMEM, path, NULL, "no memory for the vocabulary");
    if (put == 0) {
        uint32_t first = 0;
        sl_strmap_get(v->map, bytes, (size_t)n, &first);
        return sl_fail(err, code, path, where, "token %.*s of rank %u again, with rank %u",
                       (int)(code_len < 60 ? code_len : 60), ln->s, first, (unsigned)rank);
    }
    v->at[rank] = (uint32_t)*used;
    v->len[rank] = (uint16_t)n;
    if ((uint32_t)n > v->max_bytes) v->max_bytes = (uint32_t)n;
    if (n == 1) v->byte[(unsigned char)bytes[0]] = (uint32_t)rank;
    if (n == 2)
        v->pair[(unsigned)(unsigned char)bytes[0] << 8 | (unsigned char)bytes[1]] = (uint32_t)rank;
    *used += (size_t)n;
    return 0;
}

static int check_bytes(const struct sl_vocab *v, const char *path, int code, struct sl_err *err)
{
    for (unsigned b = 0; b < 256; b++)
        if (v->byte[b] == SL_VOCAB_NONE)
            return sl_fail(err, code, path, NULL,
                           "no token for the single byte 0x%02x; all 256 are needed", b);
    return 0;
}

int sl_vocab_open(struct sl_vocab **out, const char *path, uint32_t max_tokens, int code,
                  struct sl_err *err)
{
    char *text = NULL;
    size_t len = 0;
    struct sl_vocab *v = calloc(1, sizeof *v);
    int rc = SL_E_NOMEM;
    if (!v) goto no_memory;
    rc = sl_read_file(&text, &len, path, SL_VOCAB_FILE_MAX_BYTES, code, err);
    if (rc) goto fail;

    struct line ln = {0};
    size_t pos = 0, n = 0;
    while (next_line(text, len, &pos, &ln)) n++;
    if (n == 0 || n > max_tokens) {
        rc = sl_fail(err, code, path, NULL, "%zu tokens, expected 256 to %u", n, max_tokens);
        goto fail;
    }
    v->n = (uint32_t)n;
    v->blob = malloc(len); /* base64 only shrinks */
    v->at = calloc(n, sizeof *v->at);
    v->len = calloc(n, sizeof *v->len);
    v->pair = malloc(65536 * sizeof *v->pair);
    v->map = sl_strmap_open(n);
    if (!v->blob || !v->at || !v->len || !v->pair || !v->map) goto no_memory;
    memset(v->byte, 0xff, sizeof v->byte); /* SL_VOCAB_NONE */
    memset(v->pair, 0xff, 65536 * sizeof *v->pair);

    size_t used = 0;
    pos = 0;
    ln = (struct line){0};
    while (next_line(text, len, &pos, &ln)) {
        rc = read_token(v, &ln, &used, path, code, err);
        if (rc) goto fail;
    }
    rc = check_bytes(v, path, code, err);
    if (rc) goto fail;
    free(text);
    *out = v;
    return 0;
no_memory:
    rc = sl_fail(err, SL_E_NOMEM, path, NULL, "no memory for the vocabulary");
fail:
    free(text);
    sl_vocab_close(v);
    return rc;
}

void sl_vocab_close(struct sl_vocab *v)
{
    if (!v) return;
    sl_strmap_close(v->map);
    free(v->pair);
    free(v->len);
    free(v->at);
    free(v->blob);
    free(v);
}
