/* Calibration statistics of the routed experts: sums over tokens, kept by layer.
 *
 *   latent        f64 [L][L]      x x' over all tokens: input of w1 and w3 of every expert of the layer
 *   latent_diag   f64 [E][L]      squares over an expert's own tokens
 *   hidden_diag   f64 [E][W]      squares of what its w2 reads (after SiTU)
 *   counts        u64 [E]         tokens routed to it
 *   margins       u32 [E][64]     histogram of its distance to the selection threshold
 *   latent_e      f32 [E][L][L]   x x' over its own tokens   | only where memory allows
 *   hidden_e      f32 [E][W][W]   h h' over its own tokens   | (sl_calib_opts)
 *
 * Sums, not means: files over parts of a text add up. Everything is added in token order, so a result
 * does not depend on threads, and a run that was cut and resumed gives the same bytes.
 * L latent_size, W moe_intermediate_size, E n_experts. */
#ifndef SL_QUANT_CALIB_H
#define SL_QUANT_CALIB_H

#include "base/pool.h"
#include "kernels/kernels.h"
#include "quant/stats_file.h"

#define SL_MARGIN_BINS 64
/* Bin of a margin in [-0.5, 0.5), 1/64 wide; beyond it the outer bins. */
int sl_margin_bin(float margin);

struct sl_calib_shape {
    int n_layers, latent, width, n_experts, top_k;
};

struct sl_calib_layer {
    double *latent, *latent_diag, *hidden_diag;
    uint64_t *counts;
    uint32_t *margins;
    float *latent_e, *hidden_e; /* NULL: not collected */
};

struct sl_calib {
    struct sl_calib_shape shape;
    uint64_t tokens, windows; /* fed so far */
    bool per_expert;
    struct sl_calib_layer *layers; /* [n_layers]; latent NULL for a dense layer */
};

/* Bytes of all sums, and with the covariances of each expert. */
uint64_t sl_calib_bytes(const struct sl_calib_shape *s, int n_moe_layers, bool per_expert);
/* is_moe [n_layers]. SL_E_NOMEM. */
int sl_calib_open(struct sl_calib **out, const struct sl_calib_shape *s, const uint8_t *is_moe,
                  bool per_expert, struct sl_err *err);
void sl_calib_close(struct sl_calib *c); /* NULL is fine */

/* g[i][j] += sum_t x[t][i] * x[t][j] for n rows of d values; work: sl_gram_work_floats(n, d).
 * f32 within a call; to f64 or f32 sums. rows [row0, row1) of g only. */
size_t sl_gram_work_floats(int n, int d);
/* x [n][ld] transposed into work once, then any number of row ranges in parallel. */
void sl_gram_pack(float *work, const float *x, size_t ld, int n, int d);
void sl_gram_add_f64(double *g, const float *work, int n, int d, int row0, int row1,
                     const struct sl_kernels *k);
void sl_gram_add_f32(float *g, const float *work, int n, int d, int row0, int row1,
                     const struct sl_kernels *k);

/* Sections of a statistics file. meta is a JSON text of the caller's, kept as it is. */
int sl_calib_save(const struct sl_calib *c, const char *path, const char *meta, struct sl_err *err);
/* Opens the sums of a file for a model of this shape; *meta is malloc'ed. per_expert is what the file
 * has. SL_E_SOURCE when it belongs to another shape. */
int sl_calib_load(struct sl_calib **out, const char *path, const struct sl_calib_shape *s,
                  const uint8_t *is_moe, char **meta, struct sl_err *err);

#endif
