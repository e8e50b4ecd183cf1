/* Statistics taken while a source is converted: convert --calib TEXT, one pass over the source.
 *
 * Who can run the model (runtime/fused_calib.h; this folder cannot) gives these calls. For each layer, in
 * order: begin runs all tokens up to the experts; then each expert is read once, its tokens go through
 * it, its sums are handed back, and it is encoded; end finishes the layer's outputs. What the next layer
 * reads is on the drive before the journal says so, so a killed conversion goes on from that layer though
 * the source behind it may be gone.
 *
 *   preflight   prepare                                  (dry runs end here)
 *   layer l     begin | trunk unit | bank unit: shared, expert x n_experts | end | "calib l" in the journal */
#ifndef SL_CONVERT_LIVE_CALIB_H
#define SL_CONVERT_LIVE_CALIB_H

#include "convert/input.h"
#include "kernels/mat.h"

struct sl_jobs;
struct sl_pool;

/* What preparation found out. */
struct sl_live_price {
    char identity[160];     /* what the statistics depend on beside the source; for the journal */
    uint64_t tokens;        /* of calibration */
    uint64_t memory_bytes;  /* of the pass, its activations (mapped scratch files) not counted */
    uint64_t scratch_bytes; /* of files beside the journal, at most */
    uint64_t job_bytes;     /* of each job while experts are encoded */
    double seconds;         /* of the forward pass, estimated from a product on this machine */
};

struct sl_live_calib {
    void *ctx;
    /* Reads nothing but what belongs to the text. threads: of the pool to come. */
    int (*prepare)(void *ctx, const struct sl_input *in, int threads, struct sl_live_price *out,
                   struct sl_err *err);
    /* work: folder of the scratch files. done: layers that an earlier run finished. */
    int (*start)(void *ctx, struct sl_pool *pool, const char *work, int done, struct sl_err *err);
    int (*begin)(void *ctx, int layer, struct sl_err *err);
    /* Of the layer begun: [latent][latent] sums of x x' and tokens of each expert, valid until end. */
    void (*shared)(void *ctx, const double **latent, const uint64_t **counts);
    /* Runs the tokens of one expert, whose matrices are mats; fills latent_e [latent][latent] and hidden_e
     * [width][width] with its sums (both NULL: none wanted). Any thread, each expert once. */
    int (*expert)(void *ctx, int expert, const struct sl_mat mats[SL_N_MATS], float *latent_e,
                  float *hidden_e, struct sl_err *err);
    int (*end)(void *ctx, int layer, struct sl_err *err);
};

/* Experts of a layer whose bank is written already, for their outputs alone. */
int sl_live_run_experts(const struct sl_live_calib *live, const struct sl_input *in, int layer,
                        struct sl_jobs *jobs, struct sl_err *err);
/* The matrices of an expert as it was read. */
void sl_live_mats(const struct sl_config *c, const struct sl_in_expert *x,
                  struct sl_mat mats[SL_N_MATS]);

#endif
