/* Texts and ids from users (see cli_input.h). */
#include "runtime/cli_input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json.h"
#include "runtime/engine.h"

/* A prompt or a text corpus of more than this is a mistake, not a text. */
#define INPUT_MAX_BYTES (UINT64_C(4) << 30)

static int read_stdin(char **text, size_t *len, struct sl_err *err)
{
    static const char name[] = "standard input";
    size_t cap = 1 << 16;
    size_t n = 0;
    char *buf = malloc(cap);
    if (!buf) goto no_memory;
    for (;;) {
        if (cap - n < 4096) {
            char *more = cap < INPUT_MAX_BYTES ? realloc(buf, cap * 2) : NULL;
            if (!more) goto no_memory;
            buf = more;
            cap *= 2;
        }
        ssize_t got = read(STDIN_FILENO, buf + n, cap - n - 1);
        if (got == 0) break;
        if (got > 0) {
            n += (size_t)got;
            continue;
        }
        if (errno == EINTR && !sl_interrupted()) continue;
        int rc = sl_fail_errno(err, SL_E_SOURCE, errno, name, "read");
        free(buf);
        return rc;
    }
    buf[n] = 0;
    *text = buf;
    *len = n;
    return 0;
no_memory:
    free(buf);
    return sl_fail(err, SL_E_NOMEM, name, NULL, "no memory for %zu bytes and more", n);
}

int sl_input_text(char **text, size_t *len, const char *path, struct sl_err *err)
{
    if (strcmp(path, "-") == 0) return read_stdin(text, len, err);
    return sl_read_file(text, len, path, INPUT_MAX_BYTES, SL_E_SOURCE, err);
}

static int push_id(struct sl_ids *out, int64_t id, int n_vocab, size_t at, const char *name,
                   int code, struct sl_err *err)
{
    if (id < 0 || id >= n_vocab)
        return sl_fail(err, code, name, NULL, "id %zu: %lld is outside the vocabulary of %d", at,
                       (long long)id, n_vocab);
    return sl_ids_push(out, (int32_t)id, err);
}

static int ids_from_json(struct sl_ids *out, const char *text, size_t len, int n_vocab,
                         const char *name, int code, struct sl_err *err)
{
    cJSON *root = NULL;
    const cJSON *list;
    int rc = sl_json_parse(&root, text, len, name, code, err);
    if (!rc) rc = sl_json_arr(root, "ids", &list, name, code, err);
    size_t at = 0;
    const cJSON *item;
    if (!rc) {
        cJSON_ArrayForEach(item, list)
        {
            double v = item->valuedouble;
            bool whole = cJSON_IsNumber(item) && v > -1e15 && v < 1e15 && v == (double)(int64_t)v;
            if (!whole)
                rc = sl_fail(err, code, name, NULL, "ids: entry %zu is not a token id", at);
            else
                rc = push_id(out, (int64_t)v, n_vocab, at, name, code, err);
            if (rc) break;
            at++;
        }
    }
    cJSON_Delete(root);
    return rc;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

int sl_input_ids(struct sl_ids *out, const char *text, size_t len, int n_vocab, const char *name,
                 int code, struct sl_err *err)
{
    size_t i = 0;
    while (i < len && is_space(text[i])) i++;
    if (i < len && text[i] == '{')
        return ids_from_json(out, text + i, len - i, n_vocab, name, code, err);
    size_t at = 0;
    while (i < len) {
        int64_t id = 0;
        size_t start = i;
        for (; i < len && text[i] >= '0' && text[i] <= '9'; i++)
            if (id <= INT32_MAX) id = id * 10 + (text[i] - '0'); /* larger is large enough */
        size_t digits = i - start;
        while (i < len && is_space(text[i])) i++;
        bool ends = i == len || text[i] == ',';
        if (!digits || !ends) {
            size_t show = start;
            while (show < len && text[show] != ',' && show - start < 24) show++;
            return sl_fail(err, code, name, NULL, "id %zu: '%.*s' is not a token id", at,
                           (int)(show - start), text + start);
        }
        int rc = push_id(out, id, n_vocab, at++, name, code, err);
        if (rc) return rc;
        if (i == len) return 0;
        i++; /* the comma; one at the very end would need an id after it */
        while (i < len && is_space(text[i])) i++;
        if (i == len)
            return sl_fail(err, code, name, NULL, "id %zu is missing after the comma", at);
    }
    return 0;
}

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s);
    size_t m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

int sl_input_ids_file(struct sl_ids *out, const char *path, int n_vocab, struct sl_err *err)
{
    char *text = NULL;
    size_t len = 0;
    int rc = sl_input_text(&text, &len, path, err);
    if (rc) return rc;
    size_t width = has_suffix(path, ".u16") ? 2 : has_suffix(path, ".u32") ? 4 : 0;
    if (!width) {
        rc = sl_input_ids(out, text, len, n_vocab, path, SL_E_SOURCE, err);
    } else if (len % width) {
        rc = sl_fail(err, SL_E_SOURCE, path, NULL, "%zu bytes are no whole number of %zu-byte ids",
                     len, width);
    } else {
        for (size_t i = 0; i < len / width && !rc; i++) {
            const char *p = text + i * width;
            int64_t id = width == 2 ? sl_le16(p) : sl_le32(p);
            rc = push_id(out, id, n_vocab, i, path, SL_E_SOURCE, err);
        }
    }
    free(text);
    return rc;
}

static int add_document(struct sl_ids *out, const struct sl_tokenizer *t, const char *text,
                        size_t len, int32_t bos, int32_t eos, struct sl_err *err)
{
    int rc = sl_ids_push(out, bos, err);
    if (!rc) rc = sl_tokenizer_encode_plain(t, text, len, out, err);
    return rc ? rc : sl_ids_push(out, eos, err);
}

int sl_input_tokenize(struct sl_ids *out, const struct sl_tokenizer *t, const char *text,
                      size_t len, const char *name, struct sl_err *err)
{
    int32_t bos = sl_tokenizer_control(t, "[BOS]");
    int32_t eos = sl_tokenizer_control(t, "[EOS]");
    if (bos < 0 || eos < 0)
        return sl_fail(err, SL_E_PACK, "tokenizer_config.json", bos < 0 ? "[BOS]" : "[EOS]",
                       "no such control token, needed to mark the documents of %s", name);
    size_t at = 0;
    for (;;) {
        const char *nul = memchr(text + at, 0, len - at);
        size_t end = nul ? (size_t)(nul - text) : len;
        int rc = add_document(out, t, text + at, end - at, bos, eos, err);
        if (rc || !nul) return rc;
        at = end + 1;
    }
}

int sl_input_documents(struct sl_ids *out, const sluice_pack *p, const char *text, size_t len,
                       const char *name, struct sl_err *err)
{
    return sl_input_tokenize(out, p->tokenizer, text, len, name, err);
}
