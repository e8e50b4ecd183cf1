/* Checked sizes: every count that comes from a file passes through these before it is trusted. */
#ifndef SL_BASE_SIZE_H
#define SL_BASE_SIZE_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

/* *out = a*b or a+b; false (and *out untouched) on overflow. */
static inline bool sl_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool sl_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
/* Rounds up to a power of two; the caller knows that it does not overflow. */
static inline uint64_t sl_align_up(uint64_t n, uint64_t align)
{
    return (n + align - 1) & ~(align - 1);
}

/* "8G" and "8GB" are 8e9 bytes, "8GiB" is 8 * 2^30; K M G T, plain digits are bytes; fractions such
 * as 1.5G are accepted. False on anything else, on overflow and on zero. */
bool sl_parse_size(const char *text, uint64_t *bytes);

/* Strict decimal integer in [min, max]; the whole string must match. */
bool sl_parse_i64(const char *text, int64_t min, int64_t max, int64_t *out);
bool sl_parse_f64(const char *text, double min, double max, double *out);

/* Human form with the unit named, "12.34 GB" (10^9). Writes at most n bytes, returns buf. */
const char *sl_format_bytes(char *buf, size_t n, uint64_t bytes);
/* "9m51s", "2h03m", "3d04h". */
const char *sl_format_seconds(char *buf, size_t n, double seconds);

#endif
