/* Eight scale bytes a step in one 64-bit word: no ISA needed, and several GB/s, which is more than a
 * drive delivers. Differences cannot borrow from a neighbour because the row exponent is the largest
 * byte of the row. Words are little-endian, like the files. */
#include "quant/m4.h"

#include <assert.h>
#include <string.h>

static const uint64_t ones = 0x0101010101010101u, low_nibbles = 0x0f0f0f0f0f0f0f0fu;

static uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Sixteen bytes a step in a loop of fixed length, which compilers turn into byte maxima. */
static uint8_t row_max(const uint8_t *p, int n)
{
    uint8_t m[16] = {0}, max = 0;
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) m[j] = m[j] > p[i + j] ? m[j] : p[i + j];
    for (; i < n; i++) max = max > p[i] ? max : p[i];
    for (int j = 0; j < 16; j++) max = max > m[j] ? max : m[j];
    return max;
}

bool sl_m4_fits(const uint8_t *e8m0, int rows, int blocks)
{
    for (int r = 0; r < rows; r++, e8m0 += blocks) {
        uint8_t e = row_max(e8m0, blocks), over = 0;
        for (int b = 0; b < blocks; b++) over |= (uint8_t)(e - e8m0[b]);
        if (over > 15) return false;
    }
    return true;
}

bool sl_m4_encode(const uint8_t *codes, const uint8_t *e8m0, int rows, int cols, uint8_t *m4_scales,
                  uint8_t *row_e)
{
    (void)codes;
    assert(rows >= 0 && cols >= 0 && cols % 32 == 0);
    int blocks = cols / 32;
    for (int r = 0; r < rows; r++, e8m0 += blocks) {
        uint8_t e = row_max(e8m0, blocks), over = 0;
        row_e[r] = e;
        int b = 0;
        for (; b + 8 <= blocks; b += 8) {
            uint64_t off = e * ones - load64(e8m0 + b);
            if (off & ~low_nibbles) return false;
            off = (off | off >> 4) & 0x00ff00ff00ff00ffu;
            off = (off | off >> 8) & 0x0000ffff0000ffffu;
            uint32_t packed = (uint32_t)(off | off >> 16);
            memcpy(m4_scales, &packed, sizeof packed);
            m4_scales += sizeof packed;
        }
        for (; b < blocks; b += 2) {
            uint8_t lo = (uint8_t)(e - e8m0[b]);
            uint8_t hi = b + 1 < blocks ? (uint8_t)(e - e8m0[b + 1]) : 0;
            over |= lo | hi;
            *m4_scales++ = (uint8_t)(lo | hi << 4);
        }
        if (over > 15) return false;
    }
    return true;
}

bool sl_m4_decode(const uint8_t *m4_scales, const uint8_t *row_e, int rows, int cols, uint8_t *e8m0)
{
    assert(rows >= 0 && cols >= 0 && cols % 32 == 0);
    int blocks = cols / 32;
    for (int r = 0; r < rows; r++, e8m0 += blocks) {
        int e = row_e[r], b = 0;
        uint8_t over = 0;
        if (blocks && e == 255) return false;
        for (; e >= 15 && b + 8 <= blocks; b += 8) { /* no offset can borrow */
            uint32_t packed;
            memcpy(&packed, m4_scales + b / 2, sizeof packed);
            uint64_t off = (packed | (uint64_t)packed << 16) & 0x0000ffff0000ffffu;
            off = (off | off << 8) & 0x00ff00ff00ff00ffu;
            off = (off | off << 4) & low_nibbles;
            off = (uint64_t)e * ones - off;
            memcpy(e8m0 + b, &off, sizeof off);
        }
        for (; b < blocks; b++) {
            int off = m4_scales[b >> 1] >> (b & 1) * 4 & 15;
            over |= off > e;
            e8m0[b] = (uint8_t)(e - off);
        }
        if (over || (blocks && row_max(e8m0, blocks) != e)) return false;
        if (blocks % 2 && m4_scales[blocks >> 1] >> 4) return false;
        m4_scales += (blocks + 1) / 2;
    }
    return true;
}

bool sl_e8m0_has_nan(const uint8_t *bytes, size_t n, size_t *where)
{
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        uint64_t hit = 0;
        for (size_t j = 0; j < 64; j += 8) {
            uint64_t v = ~load64(bytes + i + j); /* a zero byte of v is a 255 */
            hit |= (v - ones) & ~v & ones << 7;
        }
        if (hit) break;
    }
    for (; i < n; i++) {
        if (bytes[i] == 255) {
            *where = i;
            return true;
        }
    }
    return false;
}
