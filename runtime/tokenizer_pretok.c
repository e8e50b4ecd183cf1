/* Pre-tokenizer: the reference pattern through PCRE2, in a form that never steps back.
 *
 * The reference (spec section 5) is an alternation of eight branches, the first that matches wins:
 *
 *   1 [\p{Han}]+
 *   2 X?  U* L+  S?        X = [^\r\n\p{L}\p{N}]        S = (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *   3 X?  U+ L*  S?        U = Lu Lt Lm Lo M less Han   L = Ll Lm Lo M less Han
 *   4 \p{N}{1,3}           5  ?[^\s\p{L}\p{N}]+[\r\n]*
 *   6 \s*[\r\n]+           7 \s+(?!\S)                  8 \s+
 *
 * Two things keep it from being pasted. PCRE2 has no class intersection, its \p{Han} means script
 * extensions and its \s takes U+180E: hence HAN and SPACE as code points. And U and L share Lm, Lo
 * and M, so that branches 2, 3 and 6 give characters back one by one: correct, but every one of them
 * costs match stack, in runs that may be hundreds of thousands of characters long. Written with
 * UPPER = Lu Lt, LOWER = Ll and BOTH = Lm Lo M less Han (disjoint; Han has no Lu, Lt, Ll), each
 * branch has one possible end and reaches it going forward:
 *
 *   2  Let R be the longest run of UPPER and BOTH. If a LOWER follows R, U* is R and L+ goes on from
 *      there: R LOWER (LOWER|BOTH)*. If not, U* gives back down to the last BOTH in R, which L+
 *      takes; then an UPPER or the end of R stops L+. So the match is R up to its last BOTH:
 *      (UPPER* BOTH+)+.
 *   3  is tried when 2 failed with and without X, so R holds no BOTH and no LOWER follows it. If X
 *      is a mark, it is a BOTH itself and 2 matched without X. So: X? UPPER+.
 *   6  ends after the last newline of its run of white space: (BLANK* newline+)+.
 *
 * All repeats are possessive, and what a branch scans without taking (UPPER after the last BOTH,
 * BLANK after the last newline) the next piece takes whole: time is linear, match memory constant,
 * with and without machine code (runs of 10 MB measured, neither stack nor heap grew).
 *
 * Four branches for ASCII come first. Each gives what 1..8 would give and declines, by its last
 * look-ahead, when a character outside ASCII or an apostrophe could make the piece longer. They need
 * no property look-up: calib.txt goes from 17 to 67 MB/s on one core.
 *
 *   a  1 and 5..8 cannot start with, and 2 takes before 5, a lead and letters; [A-Z]*[a-z]+ is
 *      branch 2, [A-Z]+ with no LOWER behind it branch 3
 *   b  branch 4
 *   c  branch 5: a lead that no letter follows makes 2 and 3 fail
 *   d  branches 6 and 7: CR and LF are in no other branch, nor are two white spaces in a row
 *
 * Tables: letters, marks and digits that Unicode 15 to 16 added are written out below, so that a
 * library with Unicode 14 tables (PCRE2 10.40 to 10.44) cuts alike. Code points assigned later than
 * that follow the library. tests/runtime/test_tokenizer_pretok.c runs the original branches,
 * backtracking and all, beside this form. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/tokenizer_pretok.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>

/* Script=Han, all planes (not script extensions). */
#define HAN                                                                                        \
    "\\x{2E80}-\\x{2E99}\\x{2E9B}-\\x{2EF3}\\x{2F00}-\\x{2FD5}\\x{3005}\\x{3007}"                  \
    "\\x{3021}-\\x{3029}\\x{3038}-\\x{303B}\\x{3400}-\\x{4DBF}\\x{4E00}-\\x{9FFF}"                 \
    "\\x{F900}-\\x{FA6D}\\x{FA70}-\\x{FAD9}\\x{16FE2}\\x{16FE3}\\x{16FF0}\\x{16FF1}"               \
    "\\x{20000}-\\x{2A6DF}\\x{2A700}-\\x{2B739}\\x{2B740}-\\x{2B81D}\\x{2B820}-\\x{2CEA1}"         \
    "\\x{2CEB0}-\\x{2EBE0}\\x{2EBF0}-\\x{2EE5D}\\x{2F800}-\\x{2FA1D}\\x{30000}-\\x{3134A}"         \
    "\\x{31350}-\\x{323AF}"

/* White_Space: without and with CR and LF. */
#define BLANK                                                                                      \
    "\\x09\\x0B\\x0C\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"    \
    "\\x{205F}\\x{3000}"
#define SPACE "\\r\\n" BLANK

/* Unicode 15.0, 15.1 and 16.0: what they added to each class. */
#define NEW_UPPER "\\x{1C89}\\x{A7CB}\\x{A7CC}\\x{A7DA}\\x{A7DC}\\x{10D50}-\\x{10D65}"
#define NEW_LOWER "\\x{1C8A}\\x{A7CD}\\x{A7DB}\\x{10D70}-\\x{10D85}\\x{1DF25}-\\x{1DF2A}"
#define NEW_OTHER                                                                                  \
    "\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D4F}\\x{10D6F}\\x{10EC2}-\\x{10EC4}"                    \
    "\\x{1123F}\\x{11240}\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}"           \
    "\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}"           \
    "\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}"                    \
    "\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}"                     \
    "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}"
#define NEW_MARK                                                                                   \
    "\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}"                 \
    "\\x{113B8}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}"          \
    "\\x{113D2}\\x{113E1}\\x{113E2}\\x{11F00}\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}"            \
    "\\x{11F3E}-\\x{11F42}\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}\\x{1611E}-\\x{1612F}"          \
    "\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}\\x{1E5EE}\\x{1E5EF}"
#define NEW_DIGIT                                                                                  \
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"         \
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"         \
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"
#define NEW_HAN "\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}" /* letters, all Lo */

#define ALNUM  "\\p{L}\\p{N}" NEW_UPPER NEW_LOWER NEW_OTHER NEW_HAN NEW_DIGIT
#define UPPER  "[\\p{Lu}\\p{Lt}" NEW_UPPER "]"
#define LOWER  "[\\p{Ll}" NEW_LOWER "]"
#define BOTH   "(?:(?![" HAN "])[\\p{Lm}\\p{Lo}\\p{M}" NEW_OTHER NEW_MARK "])"
#define LEAD   "[^\\r\\n" ALNUM "]"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?+"

/* ASCII that is no letter, digit or white space; everything outside ASCII. */
#define SIGN "\\x00-\\x08\\x0E-\\x1F!-/:-@\\[-`{-\\x7F"
#define WIDE "\\x{80}-\\x{10FFFF}"

/* clang-format off */
static const char pattern[] =
    "[" SIGN "\\x09\\x0B\\x0C\\x20]?+(?:[A-Z]++[a-z]*+|[a-z]++)(?!['" WIDE "])"                   /* a */
    "|[0-9]{1,3}+(?![" WIDE "])"                                                                  /* b */
    "|(?:[" SIGN "](?![A-Za-z" WIDE "])[" SIGN "]*+| [" SIGN "]++)(?![" WIDE "])[\\r\\n]*+"       /* c */
    "|(?=[\\r\\n]|[" SPACE "]{2})(?:(?:[" BLANK "]*+[\\r\\n]++)++|[" SPACE "]+(?![^" SPACE "]))"  /* d */
    "|[" HAN "]++"                                                                                /* 1 */
    "|" LEAD "?(?:(?:" UPPER "++|" BOTH "++)*+" LOWER "(?:" LOWER "++|" BOTH "++)*+"              /* 2 */
              "|(?:" UPPER "*+" BOTH "++)++)" SUFFIX
    "|" LEAD "?" UPPER "++" SUFFIX                                                                /* 3 */
    "|[\\p{N}" NEW_DIGIT "]{1,3}+"                                                                /* 4 */
    "| ?+[^" SPACE ALNUM "]++[\\r\\n]*+"                                                          /* 5 */
    "|(?:[" BLANK "]*+[\\r\\n]++)++"                                                              /* 6 */
    "|[" SPACE "]+(?![^" SPACE "])"                                                               /* 7 */
    "|[" SPACE "]++";                                                                             /* 8 */
/* clang-format on */

struct sl_pretok {
    pcre2_code *code;
    int jit; /* machine code is there; else interpreted: same pieces, about a sixth of the speed */
};

struct sl_pretok_run {
    const struct sl_pretok *p;
    pcre2_match_context *ctx;
    pcre2_match_data *match;
};

static int no_memory(struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, NULL, "tokenizer", "no memory for the pre-tokenizer");
}

int sl_pretok_open(struct sl_pretok **out, struct sl_err *err)
{
    struct sl_pretok *p = calloc(1, sizeof *p);
    if (!p) return no_memory(err);
    int code = 0;
    PCRE2_SIZE at = 0;
    p->code = pcre2_compile((PCRE2_SPTR)pattern, sizeof pattern - 1,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &at, NULL);
    if (!p->code) {
        /* The pattern is ours: beside memory, only a library built without Unicode refuses it. */
        char why[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        sl_pretok_close(p);
        return sl_fail(err, SL_E_NOMEM, NULL, "tokenizer", "PCRE2 at pattern offset %zu: %s",
                       (size_t)at, why);
    }
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    *out = p;
    return 0;
}

void sl_pretok_close(struct sl_pretok *p)
{
    if (!p) return;
    pcre2_code_free(p->code);
    free(p);
}

int sl_pretok_run_open(struct sl_pretok_run **out, const struct sl_pretok *p, struct sl_err *err)
{
    struct sl_pretok_run *r = calloc(1, sizeof *r);
    if (!r) return no_memory(err);
    r->p = p;
    r->ctx = pcre2_match_context_create(NULL);
    r->match = pcre2_match_data_create(1, NULL);
    if (!r->ctx || !r->match) {
        sl_pretok_run_close(r);
        return no_memory(err);
    }
    /* The library's limits guard against patterns that explode; this one cannot, and a limit that a
     * long run reaches would turn it into an error. */
    pcre2_set_match_limit(r->ctx, UINT32_MAX);
    pcre2_set_depth_limit(r->ctx, UINT32_MAX);
    pcre2_set_heap_limit(r->ctx, UINT32_MAX);
    *out = r;
    return 0;
}

void sl_pretok_run_close(struct sl_pretok_run *r)
{
    if (!r) return;
    pcre2_match_data_free(r->match);
    pcre2_match_context_free(r->ctx);
    free(r);
}

int sl_pretok_next(struct sl_pretok_run *r, const char *text, size_t len, size_t *piece,
                   struct sl_err *err)
{
    PCRE2_SPTR s = (PCRE2_SPTR)text;
    const pcre2_code *code = r->p->code;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (r->p->jit) rc = pcre2_jit_match(code, s, len, 0, 0, r->match, r->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, s, len, 0, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK, r->match, r->ctx);
    if (rc == PCRE2_ERROR_NOMEMORY) return no_memory(err);
    /* Every character starts some branch, so "no match" is as much a surprise as any other code. */
    if (rc < 0) return sl_fail(err, SL_E_NOMEM, NULL, "tokenizer", "PCRE2: match error %d", rc);
    *piece = pcre2_get_ovector_pointer(r->match)[1];
    return 0;
}

void sl_pretok_no_jit(struct sl_pretok *p)
{
    p->jit = 0;
}
