/* crc32 and SHA-256 against values published with their standards, split anywhere, joined anyhow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static void crc_check_values(void **state)
{
    (void)state;
    /* The check value that catalogues of CRCs give for CRC-32/ISO-HDLC. */
    assert_int_equal(sl_crc32(0, "123456789", 9), 0xcbf43926u);
    assert_int_equal(sl_crc32(0, "", 0), 0);
    assert_int_equal(sl_crc32(0, NULL, 0), 0);
    assert_int_equal(sl_crc32(0x1234, NULL, 0), 0x1234);
    assert_int_equal(sl_crc32(sl_crc32(0, "1234", 4), "56789", 5), 0xcbf43926u);
}

static void crc_of_any_length_equals_the_definition(void **state)
{
    (void)state;
    unsigned char data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 37 + i / 3);
    uint32_t reg = 0xffffffffu;
    for (size_t i = 0; i < sizeof data; i++) {
        reg ^= data[i];
        for (int b = 0; b < 8; b++) reg = reg >> 1 ^ (reg & 1 ? 0xedb88320u : 0);
        assert_int_equal(sl_crc32(0, data, i + 1), ~reg);
    }
}

static void crc_combine_joins(void **state)
{
    (void)state;
    unsigned char data[257];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * i + 11);
    uint32_t whole = sl_crc32(0, data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut++) {
        uint32_t a = sl_crc32(0, data, cut);
        uint32_t b = sl_crc32(0, data + cut, sizeof data - cut);
        assert_int_equal(sl_crc32_combine(a, b, sizeof data - cut), whole);
    }
}

/* The polynomial is primitive: its register returns to where it was after 2^32 - 1 zero bits, so
 * also after 2^32 - 1 zero bytes, and any multiple. A combine that drops upper bits of the length
 * gives something else. */
static void crc_combine_past_4_gib(void **state)
{
    (void)state;
    static const unsigned char zeros[100];
    const uint64_t period = UINT32_MAX;
    uint32_t head = sl_crc32(0, "expert record", 13);
    for (unsigned k = 0; k <= 100; k += 10) {
        uint32_t want = sl_crc32(head, zeros, k);
        uint32_t tail = sl_crc32(0, zeros, k);
        assert_int_equal(sl_crc32_combine(head, tail, k + period), want);
        assert_int_equal(sl_crc32_combine(head, tail, k + period * 365), want);
        assert_int_equal(sl_crc32_combine(head, tail, k + period * 4000000000u), want);
    }
}

static void sha_of(const char *text, size_t n, size_t repeat, const char *want)
{
    for (size_t piece = 1; piece < 130; piece += 43) {
        struct sl_sha256 *s = sl_sha256_open();
        assert_non_null(s);
        for (size_t r = 0; r < repeat; r++)
            for (size_t at = 0; at < n; at += piece)
                sl_sha256_add(s, text + at, n - at < piece ? n - at : piece);
        char hex[65];
        sl_sha256_close(s, hex);
        assert_string_equal(hex, want);
    }
}

/* FIPS 180 examples. */
static void sha256_published_vectors(void **state)
{
    (void)state;
    sha_of("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha_of("abc", 3, 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, 1,
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char a[1000];
    memset(a, 'a', sizeof a);
    sha_of(a, sizeof a, 1000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void sha256_without_an_answer(void **state)
{
    (void)state;
    sl_sha256_close(sl_sha256_open(), NULL);
    char hex[65] = "x";
    sl_sha256_close(NULL, hex);
    assert_string_equal(hex, "");
}

static void little_endian_loads(void **state)
{
    (void)state;
    static const unsigned char b[] = {0xee, 1, 2, 3, 4, 5, 6, 7, 0xf8};
    assert_int_equal(sl_le16(b + 1), 0x0201);
    assert_int_equal(sl_le32(b + 5), 0xf8070605u);
    assert_true(sl_le64(b + 1) == 0xf807060504030201u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_check_values),
        cmocka_unit_test(crc_of_any_length_equals_the_definition),
        cmocka_unit_test(crc_combine_joins),
        cmocka_unit_test(crc_combine_past_4_gib),
        cmocka_unit_test(sha256_published_vectors),
        cmocka_unit_test(sha256_without_an_answer),
        cmocka_unit_test(little_endian_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
