/* Guards: slices of 400,000 characters, cut again where a run of white space or of anything else
 * grows past 25,000 characters.
 *
 * The run counter starts afresh in each slice and after each cut; a cut does not end the slice. The
 * kinds are those of Python's str.isspace(), which takes U+001C..U+001F for white space while the
 * pre-tokenizer's \s does not: one piece may therefore span runs and be as long as a slice. */
#include "runtime/tokenizer_guard.h"

#include "runtime/utf8.h"

static bool is_space(uint32_t cp)
{
    if (cp < 0x80) return (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x20);
    if (cp < 0x2000) return cp == 0x85 || cp == 0xa0 || cp == 0x1680;
    return cp <= 0x200a || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

bool sl_guard_next(struct sl_guard *g, size_t *start, size_t *n)
{
    if (g->pos >= g->len) return false;
    size_t i = g->pos;
    int n_chars = g->n_chars, n_run = g->n_run;
    bool run_space = g->space;
    while (i < g->len && n_chars < SL_GUARD_SLICE_CHARS) {
        uint32_t cp = (unsigned char)g->text[i];
        size_t bytes = 1;
        if (cp >= 0x80) {
            bytes = sl_utf8_char(g->text + i, g->len - i, &cp, NULL);
            if (!bytes) {
                bytes = 1;
                cp = 0xfffd;
            }
        }
        bool space = is_space(cp);
        if (space != run_space) {
            run_space = space;
            n_run = 0;
        } else if (n_run == SL_GUARD_RUN_CHARS) {
            n_run = 0;
            break;
        }
        n_run++;
        n_chars++;
        i += bytes;
    }
    if (n_chars == SL_GUARD_SLICE_CHARS) {
        n_chars = 0;
        n_run = 0;
    }
    g->n_chars = n_chars;
    g->n_run = n_run;
    g->space = run_space;
    *start = g->pos;
    *n = i - g->pos;
    g->pos = i;
    return true;
}
