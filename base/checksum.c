/* crc32 of zlib and SHA-256 of libmd behind two small contracts.
 *
 * The crc guards records against drives and cables, SHA-256 names a source; neither is a defence
 * against someone who writes the pack. */
#include "base/file.h"

#include <sha2.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

_Static_assert(sizeof(z_off_t) == 8, "crc32_combine takes lengths past 4 GiB");

uint32_t sl_crc32(uint32_t crc, const void *data, size_t len)
{
    if (!len) return crc; /* zlib answers a NULL pointer with the start value */
    return (uint32_t)crc32_z(crc, data, len);
}

uint32_t sl_crc32_combine(uint32_t a, uint32_t b, uint64_t len_b)
{
    /* zlib's length is signed: a longer one is taken in two halves of zeros' worth of shifting.
     * Shifting a by n bytes of zeros is combine(a, 0, n); b is added once, at the end. */
    const uint64_t half = (uint64_t)1 << 62;
    for (; len_b > half; len_b -= half) a = (uint32_t)crc32_combine(a, 0, (z_off_t)half);
    return (uint32_t)crc32_combine(a, b, (z_off_t)len_b);
}

struct sl_sha256 {
    SHA2_CTX ctx;
};

struct sl_sha256 *sl_sha256_open(void)
{
    struct sl_sha256 *s = malloc(sizeof *s);
    if (s) SHA256Init(&s->ctx);
    return s;
}

void sl_sha256_add(struct sl_sha256 *s, const void *data, size_t len)
{
    if (len) SHA256Update(&s->ctx, data, len);
}

void sl_sha256_close(struct sl_sha256 *s, char hex[65])
{
    if (!s) {
        if (hex) hex[0] = '\0';
        return;
    }
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA256Final(digest, &s->ctx);
    free(s);
    if (!hex) return;
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof digest; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[64] = '\0';
}
