/* A byte-level vocabulary: every text can be written in it, n bytes are n tokens, and what a made-up
 * model says stays readable: control ids print as their names. */
#define _GNU_SOURCE
#include "convert/synth_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "offload/pack_sums.h"

#define N_BYTES 256

static const char *const files[] = {"tiktoken.model", "tokenizer_config.json"};

/* `base64(byte) SP rank` a line. */
static void put_vocab(FILE *f)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (unsigned b = 0; b < N_BYTES; b++)
        fprintf(f, "%c%c== %u\n", digits[b >> 2], digits[(b & 3) << 4], b);
}

static void put_config(FILE *f, const struct sl_config *c)
{
    const struct {
        int id;
        const char *name;
    } roles[] = {{c->bos_id, "[BOS]"}, {c->eos_id, "<|end_of_msg|>"}, {c->pad_id, "[PAD]"}};
    bool named[3] = {false};
    fputs("{\"added_tokens_decoder\":{", f);
    for (int i = 0; i < 3; i++) {
        bool taken = roles[i].id < N_BYTES;
        for (int k = 0; k < i; k++) taken |= roles[k].id == roles[i].id;
        named[i] = !taken;
        if (taken) continue;
        bool first = true;
        for (int k = 0; k < i; k++) first &= !named[k];
        fprintf(f, "%s\"%d\":{\"content\":\"%s\",\"special\":true}", first ? "" : ",", roles[i].id,
                roles[i].name);
    }
    putc('}', f);
    if (named[0]) fputs(",\"bos_token\":\"[BOS]\"", f);
    if (named[1]) fputs(",\"eos_token\":\"<|end_of_msg|>\"", f);
    fputs("}\n", f);
}

/* Text of files[i] in malloc'ed memory, NULL: no memory. */
static char *text_of(const struct sl_config *c, int i, size_t *len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, len);
    if (!f) return NULL;
    if (i)
        put_config(f, c);
    else
        put_vocab(f);
    int bad = ferror(f);
    bad |= fclose(f);
    if (!bad) return text;
    free(text);
    return NULL;
}

uint64_t sl_synth_tokenizer_bytes(const struct sl_config *c)
{
    uint64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        size_t len = 0;
        char *text = text_of(c, i, &len);
        if (!text) return 0;
        free(text);
        bytes += len;
    }
    return bytes;
}

uint64_t sl_synth_sums_bytes(void)
{
    uint64_t bytes = sl_sums_line_bytes("pack.json");
    for (int i = 0; i < 2; i++) bytes += sl_sums_line_bytes("tokenizer/") + strlen(files[i]);
    return bytes;
}

int sl_synth_tokenizer(const struct sl_config *c, const char *dir, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) {
        size_t len = 0;
        if (!sl_path_join(path, dir, files[i]))
            return sl_fail(err, SL_E_ARG, dir, NULL, "path too long");
        char *text = text_of(c, i, &len);
        rc = text ? sl_write_file(path, text, len, err)
                  : sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
        free(text);
    }
    return rc;
}
