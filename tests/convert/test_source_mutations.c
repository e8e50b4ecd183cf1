/* Random damage to headers, configs and indexes: whatever comes in, the answer is a sound list or one
 * printable line, never a crash, an endless loop or a leak (the last two under asan).
 *
 * Deterministic: the seed is printed, SLUICE_TEST_SEED replays another. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "convert/hf_config.h"
#include "convert/safetensors.h"
#include "convert/safetensors_index.h"
#include "tests/convert/checkpoint_copy.h"

static uint64_t rng_state;

static uint32_t rnd(uint32_t n)
{
    rng_state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = rng_state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) % n);
}

/* Pieces that a reader of this format may trip over. */
static const char *const pieces[] = {"{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     ":",
                                     "\"",
                                     "\\",
                                     "\\u0000",
                                     "0",
                                     "-1",
                                     "1e308",
                                     "18446744073709551616",
                                     "9007199254740993",
                                     "null",
                                     "true",
                                     "\"dtype\"",
                                     "\"shape\":[]",
                                     "\"data_offsets\":[0,0]",
                                     "\"__metadata__\":{}",
                                     "\xff",
                                     "\xc3",
                                     "\x1b[0m",
                                     "\n",
                                     "0.5",
                                     "\"BF16\"",
                                     "\"U8\"",
                                     "4294967296"};

/* One to four edits of text[len] in a buffer with room; returns the new length. */
static size_t mutate(char *text, size_t len, size_t room)
{
    for (uint32_t edits = 1 + rnd(4); edits; edits--) {
        size_t at = len ? rnd((uint32_t)len) : 0;
        size_t n = 1 + rnd(12);
        switch (rnd(5)) {
        case 0: /* flip a bit */
            if (len) text[at] = (char)(text[at] ^ 1 << rnd(8));
            break;
        case 1: /* cut the end */
            if (rnd(8) == 0) len = at;
            break;
        case 2: /* take bytes out */
            if (n > len - at) n = len - at;
            memmove(text + at, text + at + n, len - at - n);
            len -= n;
            break;
        case 3: { /* put a piece in */
            const char *piece = pieces[rnd(sizeof pieces / sizeof *pieces)];
            size_t m = strlen(piece);
            if (len + m > room) break;
            memmove(text + at + m, text + at, len - at);
            memcpy(text + at, piece, m);
            len += m;
            break;
        }
        default: { /* move a digit */
            char *digit = memchr(text + at, '1', len - at);
            if (digit) *digit = (char)('0' + rnd(10));
            break;
        }
        }
    }
    return len;
}

static void check_line(const struct sl_err *err, int rc)
{
    assert_true(rc == SL_E_SOURCE || rc == SL_E_NOMEM);
    assert_int_equal(err->code, rc);
    assert_true(err->text[0] != '\0');
    for (const char *p = err->text; *p; p++)
        assert_true((unsigned char)*p >= 0x20 && (unsigned char)*p != 0x7f);
}

static char *slurp(const char *path, size_t *len)
{
    char *text = NULL;
    struct sl_err err = {0};
    if (sl_read_file(&text, len, path, 1 << 24, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
    return text;
}

static void headers(void **state)
{
    (void)state;
    size_t len;
    char *file = slurp("tests/fixtures/tiny-a/model-00001-of-000010.safetensors", &len);
    size_t json = (size_t)sl_le64(file);
    char *text = malloc(json + 256);
    assert_non_null(text);
    int accepted = 0;
    for (int i = 0; i < 4000; i++) {
        struct sl_err err = {0};
        struct sl_src_tensor *t = NULL;
        char *names = NULL;
        uint32_t n = 0;
        memcpy(text, file + 8, json);
        size_t m = i ? mutate(text, json, json + 256) : json; /* the first is the control */
        uint64_t start = 8 + m;
        uint64_t bytes = start + (len - 8 - json);
        int rc = sl_safetensors_parse(&t, &n, &names, text, m, start, bytes, 0, "f", &err);
        if (i == 0) assert_int_equal(rc, 0);
        if (rc) {
            check_line(&err, rc);
            continue;
        }
        accepted++;
        uint64_t at = start;
        for (uint32_t k = 0; k < n; k++) {
            assert_int_equal(t[k].offset, at);
            assert_true(t[k].bytes > 0 && t[k].n_dims >= 1 && t[k].n_dims <= 4);
            assert_true(sl_dtype_bytes(t[k].dtype) > 0);
            at += t[k].bytes;
        }
        assert_int_equal(at, bytes);
        free(t);
        free(names);
    }
    assert_true(accepted > 1 && accepted < 4000); /* both answers were exercised */
    free(text);
    free(file);
}

static void configs(void **state)
{
    (void)state;
    size_t len;
    char *file = slurp("tests/fixtures/tiny-a/config.json", &len);
    char *text = malloc(len + 256);
    assert_non_null(text);
    int accepted = 0;
    for (int i = 0; i < 4000; i++) {
        struct sl_err err = {0};
        struct sl_config c;
        memcpy(text, file, len);
        size_t m = i ? mutate(text, len, len + 256) : len;
        int rc = sl_hf_config_parse(&c, text, m, "config.json", &err);
        if (i == 0) assert_int_equal(rc, 0);
        if (rc) {
            check_line(&err, rc);
            continue;
        }
        accepted++;
        assert_int_equal(sl_config_check(&c, "again", SL_E_SOURCE, &err), 0);
    }
    assert_true(accepted > 1 && accepted < 4000);
    free(text);
    free(file);
}

static void indexes(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    static const char small[] =
        "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a\":\"x-1.safetensors\","
        "\"b\":\"x-2.safetensors\",\"c\":\"x-1.safetensors\"}}";
    char text[sizeof small + 256];
    int accepted = 0;
    for (int i = 0; i < 1500; i++) {
        struct sl_err err = {0};
        struct sl_index ix;
        memcpy(text, small, sizeof small - 1);
        size_t m = i ? mutate(text, sizeof small - 1, sizeof text) : sizeof small - 1;
        cc_write(&c, "i.json", text, m);
        int rc = sl_index_read(&ix, cc_path(&c, "i.json"), 1 << 20, &err);
        if (i == 0) assert_int_equal(rc, 0);
        if (rc) {
            check_line(&err, rc);
            continue;
        }
        accepted++;
        char name[300];
        for (uint32_t k = 0; k < sl_strmap_count(ix.files); k++) {
            sl_index_file_name(&ix, k, name, sizeof name);
            assert_null(strchr(name, '/'));
            assert_int_equal(sl_index_file(&ix, name), k);
        }
        sl_index_free(&ix);
    }
    assert_true(accepted > 1 && accepted < 1500);
    cc_close(&c);
}

int main(void)
{
    const char *seed = getenv("SLUICE_TEST_SEED");
    rng_state = seed ? strtoull(seed, NULL, 0) : 20240607;
    printf("SLUICE_TEST_SEED=%llu\n", (unsigned long long)rng_state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers),
        cmocka_unit_test(configs),
        cmocka_unit_test(indexes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
