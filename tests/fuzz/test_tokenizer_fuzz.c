/* Random damage to the tokenizer's two files and to text: each open is refused with a line or gives a
 * tokenizer that keeps its promises. Most worth under the sanitizers (make asan). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/runtime/tokenizer_case.h"

struct corpus {
    char *model, *config;
    size_t model_len, config_len;
};

static void load(struct corpus *c)
{
    const char *dir = tok_folder("tiny-b");
    char path[SL_PATH_MAX];
    assert_non_null(dir);
    sl_path_join(path, dir, "tiktoken.model");
    assert_int_equal(sl_read_file(&c->model, &c->model_len, path, 1 << 20, SL_E_SOURCE, NULL), 0);
    sl_path_join(path, dir, "tokenizer_config.json");
    assert_int_equal(sl_read_file(&c->config, &c->config_len, path, 1 << 20, SL_E_SOURCE, NULL), 0);
}

/* One or two of: a bit flipped, a byte replaced by a likely one, a stretch removed, doubled or moved. */
static void damage(struct tok_rng *r, const char *s, size_t n, struct tok_text *out)
{
    static const char likely[] = "0123456789\"{}[]:,\\ \n\r=+/A\xff";
    out->n = 0;
    tok_add(out, s, n);
    for (uint32_t k = 1 + tok_below(r, 2); k > 0 && out->n > 1; k--) {
        size_t at = tok_below(r, (uint32_t)out->n), left = out->n - at;
        size_t len = 1 + tok_below(r, (uint32_t)(left < 40 ? left : 40));
        char *p = out->s + at;
        switch (tok_below(r, 5)) {
        case 0:
            *p = (char)(*p ^ (1 << tok_below(r, 8)));
            break;
        case 1:
            *p = likely[tok_below(r, sizeof likely)];
            break;
        case 2:
            memmove(p, p + len, left - len);
            out->n -= len;
            break;
        case 3: {
            char copy[40];
            memcpy(copy, p, len);
            tok_add(out, copy, len);
            break;
        }
        default: {
            char copy[40];
            size_t to = tok_below(r, (uint32_t)(out->n - len + 1));
            memcpy(copy, p, len);
            memcpy(out->s + to, copy, len);
        }
        }
    }
}

static void check_promises(const struct sl_tokenizer *t, struct tok_rng *r)
{
    char buf[600];
    size_t n = tok_random_text(r, buf, 500, (int)tok_below(r, 5)), len;
    const char *name = sl_tokenizer_bytes(t, sl_tokenizer_n_vocab(t) - 1, &len);
    memcpy(buf + n, name, len < 90 ? len : 90);
    n += len < 90 ? len : 90;
    struct sl_ids ids = {0};
    for (int markup = 0; markup < 2; markup++) {
        tok_encode(t, markup != 0, buf, n, &ids);
        char *back = NULL;
        size_t n_back;
        assert_int_equal(sl_tokenizer_decode(t, ids.v, ids.n, &back, &n_back, NULL), 0);
        assert_int_equal(n_back, n);
        assert_memory_equal(back, buf, n);
        free(back);
    }
    sl_ids_free(&ids);
    for (int32_t id = 0; id < sl_tokenizer_n_vocab(t); id++) {
        assert_non_null(sl_tokenizer_bytes(t, id, &len));
        assert_true(len > 0);
    }
}

static void test_damaged_files(void **state)
{
    (void)state;
    struct tok_rng r = tok_seeded();
    struct corpus c;
    load(&c);
    const char *dir = tok_make_folder();
    struct tok_text bad = {0};
    int n_refused = 0, n_opened = 0;
    for (int round = 0; round < 1500; round++) {
        bool model = round % 2 == 0;
        damage(&r, model ? c.model : c.config, model ? c.model_len : c.config_len, &bad);
        tok_write("tiktoken.model", model ? bad.s : c.model, model ? bad.n : c.model_len);
        tok_write("tokenizer_config.json", model ? c.config : bad.s, model ? c.config_len : bad.n);
        struct sl_tokenizer *t = NULL;
        struct sl_err err = {0};
        int rc = sl_tokenizer_open(&t, dir, 576, SL_E_PACK, &err);
        if (rc == 0) {
            n_opened++;
            check_promises(t, &r);
            sl_tokenizer_close(t);
        } else {
            n_refused++;
            assert_int_equal(rc, SL_E_PACK);
            assert_true(strlen(err.text) > strlen(dir));
            assert_null(strchr(err.text, '\n'));
            if (!strstr(err.text, model ? "/tiktoken.model: " : "/tokenizer_config.json: ") &&
                !strstr(err.text, "added_tokens_decoder")) /* fewer ranks: ids do not meet */
                fail_msg("%s", err.text);
        }
    }
    print_message("%d refused, %d opened\n", n_refused, n_opened);
    assert_true(n_refused > 100);
    assert_true(n_opened > 20);
    tok_text_free(&bad);
    free(c.model);
    free(c.config);
    tok_remove_folder();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_damaged_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
