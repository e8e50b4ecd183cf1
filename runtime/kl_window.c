/* See kl_window.h. */
#include "runtime/kl_window.h"

#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "runtime/eval_math.h"

int sl_kl_window_init(struct sl_kl_window *w, size_t window, int vocab)
{
    *w = (struct sl_kl_window){.vocab = vocab};
    w->kept = malloc(window * (size_t)vocab * sizeof *w->kept);
    return w->kept ? 0 : SL_E_NOMEM;
}

int sl_kl_window_keep(void *ctx, uint64_t position, const float *logits)
{
    const struct sl_kl_window *w = ctx;
    const size_t row = (size_t)w->vocab;
    memcpy(w->kept + position * row, logits, row * sizeof *logits);
    return 0;
}

int sl_kl_window_compare(void *ctx, uint64_t position, const float *logits)
{
    struct sl_kl_window *w = ctx;
    w->kl += sl_eval_kl(w->kept + position * (size_t)w->vocab, logits, w->vocab);
    return 0;
}
