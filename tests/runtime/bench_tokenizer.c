/* Tokenizer speed: MB/s of encode_plain, encode_markup and decode on one core, by kind of text.
 *
 *   build/tests/runtime/bench_tokenizer [FOLDER [FILE...]]
 *
 * FOLDER holds tiktoken.model and tokenizer_config.json (default models/k3-nano). Without files it
 * makes its own texts: words, mixed scripts, and long runs of one character. Best of three. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "runtime/tokenizer.h"
#include "tests/runtime/tokenizer_case.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void bench(const struct sl_tokenizer *t, const char *name, const char *text, size_t len)
{
    double best[3] = {1e9, 1e9, 1e9};
    struct sl_ids ids = {0};
    for (int round = 0; round < 3; round++) {
        for (int way = 0; way < 3; way++) {
            struct sl_err err = {0};
            char *back = NULL;
            size_t n = 0;
            int rc;
            if (way < 2) ids.n = 0;
            double s = now();
            if (way == 0)
                rc = sl_tokenizer_encode_markup(t, text, len, &ids, &err);
            else if (way == 1)
                rc = sl_tokenizer_encode_plain(t, text, len, &ids, &err);
            else
                rc = sl_tokenizer_decode(t, ids.v, ids.n, &back, &n, &err);
            s = now() - s;
            if (rc) {
                fprintf(stderr, "%s\n", err.text);
                exit(1);
            }
            if (way == 2 && (n != len || memcmp(back, text, len) != 0)) {
                fprintf(stderr, "%s: decoding gives other bytes\n", name);
                exit(1);
            }
            free(back);
            if (s < best[way]) best[way] = s;
        }
    }
    double mb = (double)len / 1e6;
    printf("%-28s %8.2f MB %9zu ids   plain %6.1f  markup %6.1f  decode %6.1f MB/s\n", name, mb,
           ids.n, mb / best[1], mb / best[0], mb / best[2]);
    sl_ids_free(&ids);
}

/* Words of a made-up language: a few thousand, short ones more often. */
static void make_words(struct tok_text *x, struct tok_rng *r, size_t len)
{
    static char word[4096][12];
    for (int i = 0; i < 4096; i++) {
        uint32_t n = 1 + tok_below(r, 2 + (uint32_t)i / 512);
        for (uint32_t k = 0; k < n; k++) word[i][k] = "etaoinshrdlucmfw"[tok_below(r, 16)];
        word[i][n] = 0;
    }
    while (x->n < len) {
        const char *w = word[tok_below(r, 1 + tok_below(r, 4096))];
        tok_add(x, w, strlen(w));
        uint32_t end = tok_below(r, 12);
        tok_add(x, end == 0 ? ".\n" : end == 1 ? ", " : " ", end < 2 ? 2 : 1);
    }
}

static void make_mixed(struct tok_text *x, struct tok_rng *r, size_t len)
{
    char buf[200];
    while (x->n < len) {
        if (tok_below(r, 2))
            tok_add(x, buf, tok_random_text(r, buf, sizeof buf, (int)tok_below(r, 6)));
        else
            make_words(x, r, x->n + 300);
    }
}

int main(int argc, char **argv)
{
    struct sl_err err = {0};
    struct sl_tokenizer *t = NULL;
    const char *dir = argc > 1 ? argv[1] : "models/k3-nano";
    if (sl_tokenizer_open(&t, dir, SL_TOKENIZER_VOCAB_AUTO, SL_E_SOURCE, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (int i = 2; i < argc; i++) {
        char *text = NULL;
        size_t len = 0;
        if (sl_read_file(&text, &len, argv[i], UINT32_MAX, SL_E_SOURCE, &err)) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        bench(t, argv[i], text, len);
        free(text);
    }
    if (argc <= 2) {
        const size_t len = 4000000;
        struct tok_rng r = {1};
        struct tok_text x = {0};
        make_words(&x, &r, len);
        bench(t, "words", x.s, x.n);
        x.n = 0;
        make_mixed(&x, &r, len);
        bench(t, "mixed scripts", x.s, x.n);
        static const char *const unit[][2] = {{"a", "run of 'a'"},         {" ", "run of blanks"},
                                              {"\n", "run of newlines"},   {"漢", "run of U+6F22"},
                                              {"\u0301", "run of U+0301"}, {"<|", "run of '<|'"}};
        for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
            x.n = 0;
            tok_add_repeat(&x, unit[i][0], len / strlen(unit[i][0]));
            bench(t, unit[i][1], x.s, x.n);
        }
        tok_text_free(&x);
    }
    sl_tokenizer_close(t);
    return 0;
}
