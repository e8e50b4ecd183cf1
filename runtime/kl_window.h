/* KL between two runs over the same window of tokens, for sluice_feed_logits(): the first run keeps its
 * logits, each further one is compared with them row by row. */
#ifndef SL_RUNTIME_KL_WINDOW_H
#define SL_RUNTIME_KL_WINDOW_H

#include <stddef.h>
#include <stdint.h>

struct sl_kl_window {
    int vocab;
    float *kept; /* [window][vocab] */
    double kl;   /* nats, sum over positions since the caller set it to 0 */
};

/* Room for `window` tokens; SL_E_NOMEM. free(w->kept) ends it. */
int sl_kl_window_init(struct sl_kl_window *w, size_t window, int vocab);

/* Callbacks of sluice_feed_logits(); ctx is the struct, and position counts from the window's start. */
int sl_kl_window_keep(void *ctx, uint64_t position, const float *logits);
int sl_kl_window_compare(void *ctx, uint64_t position, const float *logits);

#endif
