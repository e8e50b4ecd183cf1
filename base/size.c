/* Numbers as people write them, read strictly: the whole string or nothing.
 *
 * strtol and friends skip spaces, accept signs, wrap or saturate and stop at the first odd character;
 * a flag such as --ram 8Gib must be refused, not read as 8. */
#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits at *s into *out; false when there is none or it overflows. */
static bool take_digits(const char **s, uint64_t *out)
{
    if (!is_digit(**s)) return false;
    uint64_t v = 0;
    for (; is_digit(**s); (*s)++)
        if (!sl_mul_u64(v, 10, &v) || !sl_add_u64(v, (uint64_t)(**s - '0'), &v)) return false;
    *out = v;
    return true;
}

/* "" is 1, "G" and "GB" 10^9, "GiB" 2^30; 0 for anything else. */
static uint64_t unit_bytes(const char *unit)
{
    static const char letters[] = "KMGT";
    if (!*unit) return 1;
    const char *letter = strchr(letters, *unit);
    if (!letter) return 0;
    bool binary = !strcmp(unit + 1, "iB");
    if (!binary && unit[1] && strcmp(unit + 1, "B") != 0) return 0;
    uint64_t bytes = 1;
    for (const char *l = letters; l <= letter; l++) bytes *= binary ? 1024 : 1000;
    return bytes;
}

bool sl_parse_size(const char *text, uint64_t *bytes)
{
    uint64_t whole = 0;
    uint64_t part = 0;
    uint64_t scale = 1;
    const char *s = text;
    if (!take_digits(&s, &whole)) return false;
    if (*s == '.') {
        const char *first = ++s;
        if (!take_digits(&s, &part)) return false;
        if (s - first > 6) return false; /* part * 2^40 stays inside 64 bits */
        for (const char *d = first; d < s; d++) scale *= 10;
    }
    uint64_t unit = unit_bytes(s);
    if (!unit || (unit == 1 && scale > 1)) return false; /* half a byte is a slip of the pen */
    uint64_t total;
    if (!sl_mul_u64(whole, unit, &total) || !sl_add_u64(total, part * unit / scale, &total))
        return false;
    if (!total) return false;
    *bytes = total;
    return true;
}

bool sl_parse_i64(const char *text, int64_t min, int64_t max, int64_t *out)
{
    const char *s = text;
    bool negative = *s == '-';
    if (negative) s++;
    uint64_t v = 0;
    if (!take_digits(&s, &v) || *s) return false;
    if (v > (uint64_t)INT64_MAX + negative) return false;
    int64_t n = negative ? -(int64_t)(v - (v > 0)) - (v > 0)
                         /* in two steps, since INT64_MIN has no positive twin */
                         : (int64_t)v;
    if (n < min || n > max) return false;
    *out = n;
    return true;
}

bool sl_parse_f64(const char *text, double min, double max, double *out)
{
    /* The shape first: strtod alone also takes spaces, hex floats, "inf" and "nan". */
    const char *s = text;
    if (*s == '-') s++;
    size_t digits = strspn(s, "0123456789");
    s += digits;
    if (*s == '.') {
        size_t after = strspn(++s, "0123456789");
        digits += after;
        s += after;
    }
    if (!digits) return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '+' || *s == '-') s++;
        size_t exponent = strspn(s, "0123456789");
        if (!exponent) return false;
        s += exponent;
    }
    if (*s) return false;
    double v = strtod(text, NULL);
    if (!isfinite(v) || v < min || v > max) return false;
    *out = v;
    return true;
}

const char *sl_format_bytes(char *buf, size_t n, uint64_t bytes)
{
    static const char *const units[] = {"kB", "MB", "GB", "TB"};
    if (bytes < 1000) {
        snprintf(buf, n, "%u B", (unsigned)bytes);
        return buf;
    }
    double v = (double)bytes / 1e3;
    size_t u = 0;
    while (v >= 999.995 && u + 1 < sizeof units / sizeof *units) {
        v /= 1e3;
        u++;
    }
    snprintf(buf, n, "%.2f %s", v, units[u]);
    return buf;
}

const char *sl_format_seconds(char *buf, size_t n, double seconds)
{
    if (!(seconds >= 0 && seconds < 1e9)) { /* NaN too: a rate of zero has no ETA */
        snprintf(buf, n, "?");
        return buf;
    }
    unsigned s = (unsigned)(seconds + 0.5);
    unsigned minutes = s / 60;
    unsigned hours = minutes / 60;
    if (s < 60)
        snprintf(buf, n, "%us", s);
    else if (minutes < 60)
        snprintf(buf, n, "%um%02us", minutes, s % 60);
    else if (hours < 24)
        snprintf(buf, n, "%uh%02um", hours, minutes % 60);
    else
        snprintf(buf, n, "%ud%02uh", hours / 24, hours % 24);
    return buf;
}
