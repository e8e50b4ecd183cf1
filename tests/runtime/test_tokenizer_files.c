/* Tokenizer files are hostile: each fault is one clear line that names file, place and value, each has
 * a control that opens, and nothing crashes on cut or flipped files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "runtime/tokenizer_vocab.h"
#include "tests/runtime/tokenizer_case.h"

#define N_ORDINARY 258 /* bytes, "ab", "abc" */

static const char config[] = "{\"added_tokens_decoder\": {"
                             "\"258\": {\"content\": \"[BOS]\", \"special\": true},"
                             "\"259\": {\"content\": \"[EOS]\"},"
                             "\"261\": {\"content\": \"<|open|>\"}},"
                             "\"bos_token\": \"[BOS]\", \"eos_token\": {\"content\": \"[EOS]\"}}";

/* A good tiktoken.model, its first `skip` lines left out and `extra` put behind them. */
static void make_model(struct tok_text *t, uint32_t n_skip, const char *extra)
{
    for (uint32_t b = n_skip; b < 256; b++)
        tok_add_line(t, &(unsigned char){(unsigned char)b}, 1, b);
    tok_add_line(t, "ab", 2, 256);
    tok_add_line(t, "abc", 3, 257);
    tok_add(t, extra, strlen(extra));
}

static void write_model(uint32_t n_skip, const char *extra)
{
    struct tok_text t = {0};
    make_model(&t, n_skip, extra);
    tok_write("tiktoken.model", t.s, t.n);
    tok_text_free(&t);
}

static int fresh_folder(void **state)
{
    *state = (void *)(uintptr_t)tok_make_folder();
    write_model(0, "");
    tok_write("tokenizer_config.json", config, strlen(config));
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    tok_remove_folder();
    return 0;
}

static void opens(const char *dir, int n_vocab)
{
    sl_tokenizer_close(tok_open(dir, n_vocab));
}

/* Refused under both codes, in one line that holds all the wanted parts. */
static void refused(const char *dir, int n_vocab, const char *file, const char *want)
{
    static const int codes[] = {SL_E_SOURCE, SL_E_PACK};
    for (int i = 0; i < 2; i++) {
        struct sl_tokenizer *t = NULL;
        struct sl_err err = {0};
        int rc = sl_tokenizer_open(&t, dir, n_vocab, codes[i], &err);
        if (rc != codes[i]) fail_msg("%s: code %d (%s), want %d", want, rc, err.text, codes[i]);
        assert_null(t);
        assert_int_equal(err.code, codes[i]);
        if (!strstr(err.text, want) || !strstr(err.text, file) || strchr(err.text, '\n'))
            fail_msg("'%s': no '%s'", err.text, want);
    }
}

static void test_good_files(void **state)
{
    const char *dir = *state;
    opens(dir, SL_TOKENIZER_VOCAB_AUTO);
    opens(dir, 262);
    struct sl_tokenizer *t = tok_open(dir, 300);
    assert_int_equal(sl_tokenizer_n_vocab(t), 300);
    assert_int_equal(sl_tokenizer_n_ordinary(t), N_ORDINARY);
    assert_int_equal(sl_tokenizer_bos(t), 258);
    assert_int_equal(sl_tokenizer_eos(t), 259);
    assert_int_equal(sl_tokenizer_control(t, "<|open|>"), 261);
    assert_int_equal(sl_tokenizer_control(t, "<|reserved_token_260|>"), 260);
    assert_int_equal(sl_tokenizer_control(t, "<|reserved_token_299|>"), 299);
    assert_int_equal(sl_tokenizer_control(t, "<|reserved_token_258|>"), -1);
    assert_int_equal(sl_tokenizer_control(t, "<|reserved_token_300|>"), -1);
    assert_int_equal(sl_tokenizer_control(t, "ab"), -1);
    assert_true(sl_tokenizer_is_control(t, 258));
    assert_true(sl_tokenizer_is_control(t, 299));
    assert_false(sl_tokenizer_is_control(t, 257));
    assert_false(sl_tokenizer_is_control(t, 300));
    assert_false(sl_tokenizer_is_control(t, -1));
    sl_tokenizer_close(t);
}

static void test_forms_that_are_fine(void **state)
{
    const char *dir = *state;
    struct tok_text t = {0}, crlf = {0};
    /* Ranks in any order, blank lines, CRLF, no newline at the end. */
    tok_add_line(&t, "abc", 3, 257);
    tok_add(&t, "\n", 1);
    for (uint32_t b = 256; b-- > 0;) tok_add_line(&t, &(unsigned char){(unsigned char)b}, 1, b);
    tok_add_line(&t, "ab", 2, 256);
    tok_write("tiktoken.model", t.s, t.n - 1);
    opens(dir, 262);
    for (size_t i = 0; i < t.n; i++)
        tok_add(&crlf, t.s[i] == '\n' ? "\r\n" : t.s + i, t.s[i] == '\n' ? 2 : 1);
    tok_write("tiktoken.model", crlf.s, crlf.n);
    opens(dir, 262);
    tok_text_free(&t);
    tok_text_free(&crlf);
    write_model(0, "");
    /* No bos or eos named: the usual names, when they are there. */
    static const char bare[] =
        "{\"added_tokens_decoder\":{\"260\":{\"content\":\"[EOS]\"}},\"bos_token\":null}";
    tok_write("tokenizer_config.json", bare, strlen(bare));
    struct sl_tokenizer *tk = tok_open(dir, 262);
    assert_int_equal(sl_tokenizer_bos(tk), -1);
    assert_int_equal(sl_tokenizer_eos(tk), 260);
    sl_tokenizer_close(tk);
}

static void test_faults_in_the_model(void **state)
{
    const char *dir = *state;
    static const struct {
        uint32_t n_skip;
        const char *extra, *want;
    } c[] = {
        {0, "YWJj257\n", "line 259: no space between token and rank: YWJj257"},
        {0, " 258\n", "line 259: empty token"},
        {0, "YWJ* 258\n", "line 259: not base64: YWJ*"},
        {0, "YWI 258\n", "line 259: not base64: YWI"},   /* no padding */
        {0, "YWJ= 258\n", "line 259: not base64: YWJ="}, /* unused bits set: "ab" spelt anew */
        {0, "YW=i 258\n", "line 259: not base64: YW=i"},
        {0, "==== 258\n", "line 259: not base64: ===="},
        {0, "YWE=YWE= 258\n", "line 259: not base64: YWE=YWE="},
        {0, "YWJk \n", "line 259: rank : expected 0 to 258"},
        {0, "YWJk x\n", "line 259: rank x: expected 0 to 258"},
        {0, "YWJk -1\n", "line 259: rank -1: expected 0 to 258"},
        {0, "YWJk 25 8\n", "line 259: rank 25 8: expected"},
        {0, "YWJk 259\n", "line 259: rank 259: expected 0 to 258, one for each line"},
        {0, "YWJk 4294967554\n", "line 259: rank 4294967554: expected"}, /* 2^32 + 258 */
        {0, "YWJk 99999999999999999999999\n", "line 259: rank 99999999999999999999999: expected"},
        {0, "YWJk 256\n", "line 259: rank 256 twice"},
        {0, "YWI= 258\n", "line 259: token YWI= of rank 256 again, with rank 258"},
        {1, "YWJk 0\n", "no token for the single byte 0x00"},
        {0, "YWJk 258\nYWJl 259\nYWJm 260\nYWJn 261\nYWJo 262\n",
         "263 tokens, expected 256 to 262"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        write_model(c[i].n_skip, c[i].extra);
        refused(dir, 262, "tiktoken.model", c[i].want);
    }
    write_model(0, "YWJk 258\nYWJl 259\nYWJm 260\n");
    tok_write("tokenizer_config.json", "{\"added_tokens_decoder\":{}}", 27);
    opens(dir, 262); /* the control of the lot */

    tok_write("tiktoken.model", "", 0);
    refused(dir, 262, "tiktoken.model", "0 tokens, expected 256 to 262");
    tok_write("tiktoken.model", "YQ==\0 0\n", 8);
    refused(dir, 262, "tiktoken.model", "line 1: not base64");
}

static void test_long_tokens(void **state)
{
    const char *dir = *state;
    struct tok_text token = {0};
    tok_add_repeat(&token, "x", SL_VOCAB_TOKEN_MAX_BYTES + 3);
    for (int over = 0; over < 4; over++) {
        struct tok_text t = {0};
        make_model(&t, 0, "");
        tok_add_line(&t, token.s, SL_VOCAB_TOKEN_MAX_BYTES + (size_t)over, 258);
        tok_write("tiktoken.model", t.s, t.n);
        tok_write("tokenizer_config.json", "{\"added_tokens_decoder\":{}}", 27);
        if (over == 0)
            opens(dir, 262);
        else
            refused(dir, 262, "tiktoken.model", "line 259: token of");
        tok_text_free(&t);
    }
    tok_text_free(&token);
}

static void test_faults_in_the_config(void **state)
{
    const char *dir = *state;
#define DECODER(s) "{\"added_tokens_decoder\":{" s "}}"
    static const struct {
        const char *json, *want;
    } c[] = {
        {"", "tokenizer_config.json"},
        {"{", "tokenizer_config.json"},
        {"[]", "added_tokens_decoder"},
        {"{}", "added_tokens_decoder"},
        {"{\"added_tokens_decoder\":[]}", "added_tokens_decoder"},
        {DECODER("\"257\":{\"content\":\"x\"}"), "id \"257\": expected 258 to 261"},
        {DECODER("\"262\":{\"content\":\"x\"}"), "id \"262\": expected 258 to 261"},
        {DECODER("\"-1\":{\"content\":\"x\"}"), "id \"-1\": expected 258 to 261"},
        {DECODER("\"\":{\"content\":\"x\"}"), "id \"\": expected 258 to 261"},
        {DECODER("\"25x\":{\"content\":\"x\"}"), "id \"25x\": expected 258 to 261"},
        {DECODER("\"4294967554\":{\"content\":\"x\"}"), "id \"4294967554\": expected 258 to 261"},
        {DECODER("\"258\":{\"content\":\"x\"},\"0258\":{\"content\":\"y\"}"), "id 0258 twice"},
        {DECODER("\"258\":7"), "added_tokens_decoder.258: expected an object"},
        {DECODER("\"258\":{}"), "content"},
        {DECODER("\"258\":{\"content\":7}"), "content"},
        {DECODER("\"258\":{\"content\":\"\"}"), "added_tokens_decoder.258: name of 0 bytes"},
        {DECODER("\"258\":{\"content\":\"x\"},\"259\":{\"content\":\"x\"}"),
         "added_tokens_decoder.259: name \"x\" is that of id 258 too"},
        {DECODER("\"258\":{\"content\":\"<|reserved_token_260|>\"}"),
         "name \"<|reserved_token_260|>\" is that of id 258 too"},
        {DECODER("\"258\":{\"content\":\"a\xff\"}"),
         "added_tokens_decoder.258: name is not UTF-8 at byte 1"},
        {"{\"added_tokens_decoder\":{},\"eos_token\":\"[EOS]\"}",
         "eos_token: \"[EOS]\" is not among the control tokens"},
        {"{\"added_tokens_decoder\":{},\"bos_token\":5}", "bos_token: expected a string"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        tok_write("tokenizer_config.json", c[i].json, strlen(c[i].json));
        refused(dir, 262, "tokenizer_config.json", c[i].want);
    }
    struct tok_text t = {0};
    for (int over = 0; over < 2; over++) {
        t.n = 0;
        tok_printf(&t, "{\"added_tokens_decoder\":{\"258\":{\"content\":\"");
        tok_add_repeat(&t, "n", 256 + (size_t)over);
        tok_printf(&t, "\"}}}");
        tok_write("tokenizer_config.json", t.s, t.n);
        if (over)
            refused(dir, 262, "tokenizer_config.json", "name of 257 bytes, expected 1 to 256");
        else
            opens(dir, 262);
    }
    tok_text_free(&t);
}

static void test_sizes_and_missing_files(void **state)
{
    const char *dir = *state;
    char path[SL_PATH_MAX];
    refused(dir, 257, "tiktoken.model", "258 tokens, expected 256 to 257");
    refused(dir, 261, "tokenizer_config.json", "id \"261\": expected 258 to 260");
    refused(dir, 255, dir, "vocab_size: 255");
    refused(dir, -1, dir, "vocab_size: -1");
    refused(dir, INT32_MAX, dir, "vocab_size: 2147483647");
    opens(dir, 262);
    sl_path_join(path, dir, "tokenizer_config.json");
    assert_int_equal(unlink(path), 0);
    refused(dir, 262, "tokenizer_config.json", "tokenizer_config.json");
    sl_path_join(path, dir, "tiktoken.model");
    assert_int_equal(unlink(path), 0);
    refused(dir, 262, "tiktoken.model", "tiktoken.model");
    refused("no/such/folder", 262, "no/such/folder/tiktoken.model", "tiktoken.model");
    char *far = malloc(SL_PATH_MAX + 8);
    assert_non_null(far);
    memset(far, 'd', SL_PATH_MAX + 7);
    far[SL_PATH_MAX + 7] = 0;
    refused(far, 262, "tokenizer", "path of 4103 bytes is too long");
    free(far);
}

/* Every cut of the file but the last line's newline is refused; every flipped bit is refused or still
 * a whole vocabulary: all ranks filled, bytes in bounds. */
static void test_cut_and_flipped_models(void **state)
{
    const char *dir = *state;
    char path[SL_PATH_MAX];
    sl_path_join(path, dir, "tiktoken.model");
    struct tok_text t = {0};
    make_model(&t, 0, "");
    size_t n_good = 0, n_bad = 0;
    for (size_t cut = 0; cut < t.n; cut += cut < t.n - 40 ? 13 : 1) {
        tok_write("tiktoken.model", t.s, cut);
        struct sl_vocab *v = NULL;
        int rc = sl_vocab_open(&v, path, 1000, SL_E_PACK, NULL);
        /* Cut by a whole last line or two it is a shorter vocabulary: still dense, all bytes there. */
        bool whole = cut + 1 >= t.n || (v && v->n < N_ORDINARY);
        assert_int_equal(rc, whole ? 0 : SL_E_PACK);
        sl_vocab_close(v);
    }
    struct tok_rng r = tok_seeded();
    for (size_t i = 0; i < t.n; i += 5) {
        char was = t.s[i];
        t.s[i] = (char)(was ^ (1 << tok_below(&r, 8)));
        tok_write("tiktoken.model", t.s, t.n);
        struct sl_vocab *v = NULL;
        int rc = sl_vocab_open(&v, path, 1000, SL_E_PACK, NULL);
        assert_true(rc == 0 || rc == SL_E_PACK);
        if (rc == 0) {
            n_good++;
            for (uint32_t k = 0; k < v->n; k++) {
                assert_in_range(v->len[k], 1, SL_VOCAB_TOKEN_MAX_BYTES);
                assert_int_equal(sl_vocab_rank(v, v->blob + v->at[k], v->len[k]), k);
            }
        } else {
            n_bad++;
        }
        sl_vocab_close(v);
        t.s[i] = was;
    }
    assert_true(n_bad > n_good); /* and some flips do make another good token */
    tok_text_free(&t);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, fresh_folder, drop_folder)
    const struct CMUnitTest tests[] = {
        CASE(test_good_files),
        CASE(test_forms_that_are_fine),
        CASE(test_faults_in_the_model),
        CASE(test_long_tokens),
        CASE(test_faults_in_the_config),
        CASE(test_sizes_and_missing_files),
        CASE(test_cut_and_flipped_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
