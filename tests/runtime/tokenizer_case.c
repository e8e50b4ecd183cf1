/* See tokenizer_case.h. */
#include "tests/runtime/tokenizer_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"

const char *tok_folder(const char *name)
{
    static char path[SL_PATH_MAX];
    const char *shared = getenv("SLUICE_SHARED");
    if (!shared || !*shared) shared = "../shared";
    static const char *const places[] = {"models", "tests/fixtures", NULL, NULL};
    for (int i = 0; i < 4; i++) {
        char probe[SL_PATH_MAX + 32];
        if (i < 2)
            snprintf(path, sizeof path, "%s/%s", places[i], name);
        else
            snprintf(path, sizeof path, "%s/%s/%s", shared, i == 2 ? "models" : "fixtures", name);
        snprintf(probe, sizeof probe, "%s/tiktoken.model", path);
        uint64_t bytes;
        if (sl_file_size(probe, &bytes, SL_E_SOURCE, NULL) == 0) return path;
    }
    return NULL;
}

struct sl_tokenizer *tok_open(const char *dir, int n_vocab)
{
    struct sl_tokenizer *t = NULL;
    struct sl_err err = {0};
    if (sl_tokenizer_open(&t, dir, n_vocab, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
    return t;
}

void tok_encode(const struct sl_tokenizer *t, bool markup, const char *text, size_t len,
                struct sl_ids *out)
{
    struct sl_err err = {0};
    out->n = 0;
    int rc = markup ? sl_tokenizer_encode_markup(t, text, len, out, &err)
                    : sl_tokenizer_encode_plain(t, text, len, out, &err);
    if (rc) fail_msg("%s", err.text);
}

struct tok_rng tok_seeded(void)
{
    const char *s = getenv("SLUICE_SEED");
    uint64_t seed = s && *s ? strtoull(s, NULL, 0) : 20260;
    static bool told;
    if (!told) printf("seed %llu (SLUICE_SEED replays another)\n", (unsigned long long)seed);
    told = true;
    return (struct tok_rng){seed};
}

uint32_t tok_below(struct tok_rng *r, uint32_t n)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(((z ^ z >> 31) >> 32) * n >> 32);
}

/* clang-format off */
const char *const tok_chars[] = {
    "a", "z", "A", "Z", "s", "t", "r", "e", "v", "m", "l", "d", "S", "L",    /* ASCII letters */
    "é", "É", "ß", "ж", "Ж", "ǅ", "ʰ", "ª", "ſ", "\u212a",                   /* Ll Lu Lt Lm Lo */
    "か", "ー", "ا", "가", "ก", "\u0902", "\u0903", "\u0301", "\u20dd",      /* Lo Lm Mn Mc Me */
    "漢", "一", "々", "〇", "〡", "⼀", "\U00016FF0", "\U00016FE2", "𠀀",    /* Han, all its kinds */
    "、", "。", "「",                                                         /* not Script=Han */
    "0", "9", "٣", "½", "Ⅷ",                                                 /* N */
    "'", "’", "!", ".", "_", "\"", "<", "|", ">", "€", "😀", "\u200d", "\ufe0f",
    " ", " ", "\t", "\n", "\n", "\r", "\r\n", "\v", "\f", "\xc2\x85", "\u00a0", /* White_Space */
    "\u3000", "\u2028", "\u1680", "\u180e", "\u200b", "\x1c", "\x1f", "\x7f",    /* and not quite */
};
/* clang-format on */
const int tok_n_chars = (int)(sizeof tok_chars / sizeof *tok_chars);

size_t tok_random_text(struct tok_rng *r, char *buf, size_t cap, int few)
{
    const char *pick[8];
    if (few > 8) few = 8;
    for (int i = 0; i < few; i++) pick[i] = tok_chars[tok_below(r, (uint32_t)tok_n_chars)];
    size_t want = 1 + tok_below(r, (uint32_t)cap), n = 0;
    for (;;) {
        const char *s = few > 0 ? pick[tok_below(r, (uint32_t)few)]
                                : tok_chars[tok_below(r, (uint32_t)tok_n_chars)];
        size_t len = strlen(s);
        /* Now and then a run of one character. */
        size_t times = tok_below(r, 8) == 0 ? 1 + tok_below(r, 6) : 1;
        for (; times > 0; times--) {
            if (n + len > want) return n;
            memcpy(buf + n, s, len);
            n += len;
        }
    }
}

static char folder[SL_PATH_MAX];

const char *tok_make_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/sluice-tokenizer-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) fail_msg("no folder %s", folder);
    return folder;
}

void tok_remove_folder(void)
{
    if (folder[0]) sl_remove_tree(folder);
    folder[0] = 0;
}

void tok_write(const char *name, const void *data, size_t len)
{
    char path[SL_PATH_MAX];
    if (!sl_path_join(path, folder, name)) fail_msg("path too long");
    FILE *f = fopen(path, "wb"); /* not synced: thousands of these */
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void reserve(struct tok_text *t, size_t more)
{
    if (t->n + more < t->cap) return;
    t->cap = (t->n + more) * 2 + 64;
    t->s = realloc(t->s, t->cap);
    assert_non_null(t->s);
}

void tok_add(struct tok_text *t, const void *s, size_t n)
{
    reserve(t, n + 1);
    if (n) memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
}

void tok_add_repeat(struct tok_text *t, const char *s, size_t times)
{
    size_t n = strlen(s);
    reserve(t, n * times + 1);
    for (size_t i = 0; i < times; i++) memcpy(t->s + t->n + i * n, s, n);
    t->n += n * times;
    t->s[t->n] = 0;
}

void tok_printf(struct tok_text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char line[4096];
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    assert_true(n >= 0 && (size_t)n < sizeof line);
    tok_add(t, line, (size_t)n);
}

void tok_text_free(struct tok_text *t)
{
    free(t->s);
    *t = (struct tok_text){0};
}

void tok_add_line(struct tok_text *t, const void *token, size_t len, uint32_t rank)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *b = token;
    for (size_t i = 0; i < len; i += 3) {
        size_t n = len - i < 3 ? len - i : 3;
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++) bits = bits << 8 | (k < n ? b[i + k] : 0);
        char four[4];
        for (size_t k = 0; k < 4; k++) four[k] = k <= n ? digit[bits >> (18 - 6 * k) & 63] : '=';
        tok_add(t, four, 4);
    }
    tok_printf(t, " %u\n", (unsigned)rank);
}
