/* The pass itself: windows through a layer, experts over all tokens, windows on to the next layer.
 *
 * Each number is made by the calls of graph.c on the same rows in the same order as in a feed, so a chunk of
 * one window gives the bits of `calibrate`; sums over tokens grow window by window, and inside one as
 * the engine's observer would see them (runtime/calibrate.c): latents of a window together, hidden rows
 * SL_GRAPH_PAIRS at a time. */
#define _GNU_SOURCE
#include "runtime/fused_calib.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/size.h"
#include "quant/calib.h"
#include "runtime/cli_input.h"
#include "runtime/graph_parts.h"
#include "runtime/layer_weights.h"
#include "runtime/tokenizer.h"

enum { STRIP = 64 };

struct map {
    float *at;
    uint64_t bytes;
};

struct sl_fused {
    struct sl_fused_opts o;
    struct sl_live_calib calls;
    const struct sl_input *in;
    const struct sl_config *c;
    struct sl_ids ids;
    size_t n, window;
    struct sl_kernels kernels;
    struct sl_pool *pool;
    char work[SL_PATH_MAX];

    struct sl_arena arena; /* state and graph */
    struct sl_state *state;
    struct sl_graph *graph;
    struct sl_model model;
    struct sl_layer_weights weights;
    void *folded;

    int stream[2];            /* files */
    int bank[SL_MAX_LAYERS];  /* files, -1: not open */
    struct map latent, pairs; /* of the layer in progress */
    float *rows;              /* [window][hidden + 1] */
    uint16_t *routed;         /* [n][top_k] */
    float *share;             /* [n][top_k] */
    uint32_t *pair;           /* [n * top_k] by expert, then token */
    uint64_t *first;          /* [n_experts + 2] */
    uint64_t *counts;         /* [n_experts] */
    double *latent_sum;       /* [latent][latent] */
    float *gram;              /* of one window */
    int n_gram;               /* its rows */
};

/* ---- the text */

static int read_ids(struct sl_fused *f, struct sl_err *err)
{
    const struct sl_input *in = f->in;
    char dir[SL_PATH_MAX];
    struct sl_tokenizer *t = NULL;
    char *text = NULL;
    size_t len;
    if (f->o.ids) return sl_input_ids_file(&f->ids, f->o.ids, in->cfg.vocab_size, err);
    const char *from = in->files_dir;
    if (!from && in->pack && sl_path_join(dir, in->pack->dir, "tokenizer")) from = dir;
    if (!from)
        return sl_fail(err, SL_E_SOURCE, f->o.text, NULL, "the source has no tokenizer for it");
    int rc =
        sl_tokenizer_open(&t, from, in->cfg.vocab_size, in->pack ? SL_E_PACK : SL_E_SOURCE, err);
    if (!rc) rc = sl_input_text(&text, &len, f->o.text, err);
    if (!rc) rc = sl_input_tokenize(&f->ids, t, text, len, f->o.text, err);
    free(text);
    sl_tokenizer_close(t);
    return rc;
}

static void identify(const struct sl_fused *f, char *out, size_t n)
{
    char hex[65];
    struct sl_sha256 *sha = sl_sha256_open();
    sl_sha256_add(sha, f->ids.v, f->n * sizeof *f->ids.v);
    sl_sha256_close(sha, hex);
    snprintf(out, n, "ids %s, %zu tokens, window %zu", hex, f->n, f->window);
}

/* ---- price */

static uint64_t state_bytes(const struct sl_fused *f)
{
    struct sl_state_bytes s;
    sl_state_price(f->c, f->window, 0, &s);
    return s.kda + s.conv + s.mla_rows + s.mla_expanded + s.tables;
}

static struct sl_graph_opts graph_opts(const struct sl_fused *f)
{
    return (struct sl_graph_opts){.max_chunk = (int)f->window, .max_ctx = f->window};
}

/* Seconds of one multiply-add of f32 activations on one thread. */
static double seconds_each(const struct sl_kernels *k)
{
    enum { ROWS = 64, COLS = 1024, TOKENS = 16, RUNS = 8 };
    struct timespec a, b;
    float *w = calloc((size_t)ROWS * COLS, sizeof *w),
          *x = calloc((size_t)TOKENS * COLS, sizeof *x);
    float *y = calloc((size_t)TOKENS * ROWS, sizeof *y);
    double best = 1;
    const struct sl_mat m = {
        .fmt = SL_FMT_F32, .rows = ROWS, .cols = COLS, .codes = (const uint8_t *)w};
    for (int i = 0; w && x && y && i < RUNS; i++) {
        clock_gettime(CLOCK_MONOTONIC, &a);
        k->mul(&m, 0, ROWS, x, COLS, TOKENS, y, ROWS);
        clock_gettime(CLOCK_MONOTONIC, &b);
        const double s = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        if (s < best) best = s;
    }
    free(w);
    free(x);
    free(y);
    return best / ((double)ROWS * COLS * TOKENS);
}

/* Multiply-adds of one token: the trunk of all layers, its experts, and the sums of what they read. */
static double work_each(const struct sl_fused *f)
{
    const struct sl_config *c = f->c;
    const double H = c->hidden_size, L = c->latent_size, W = c->moe_intermediate_size;
    double n = 0;
    for (int l = 0; l < c->n_layers; l++) {
        const double wide = c->is_kda[l] ? (double)c->kda_heads * c->kda_head_dim
                                         : (double)c->n_heads * (c->v_head_dim + c->qk_nope_dim);
        n += 5 * H * wide;
        if (!sl_config_is_moe(c, l)) {
            n += 3 * H * c->intermediate_size;
            continue;
        }
        n += H * (2 * L + c->n_experts) + 3 * H * W * c->n_shared_experts;
        n += c->top_k * (3 * L * W + L * L + W * W) + L * L;
    }
    return n;
}

static int prepare(void *ctx, const struct sl_input *in, int threads, struct sl_live_price *out,
                   struct sl_err *err)
{
    struct sl_fused *f = ctx;
    f->in = in;
    f->c = &in->cfg;
    sl_ids_free(&f->ids);
    int rc = read_ids(f, err);
    if (rc) return rc;
    f->n = f->ids.n;
    if (f->o.tokens && (uint64_t)f->o.tokens < f->n) f->n = (size_t)f->o.tokens;
    const char *name = f->o.ids ? f->o.ids : f->o.text;
    if (!f->n) return sl_fail(err, SL_E_SOURCE, name, NULL, "holds no tokens");
    f->window = (size_t)f->o.window < f->n ? (size_t)f->o.window : f->n;
    const uint64_t n = f->n, k = (uint64_t)f->c->top_k, L = (uint64_t)f->c->latent_size;
    const uint64_t W = (uint64_t)f->c->moe_intermediate_size, H = (uint64_t)f->c->hidden_size;
    const uint64_t banks = (uint64_t)(f->c->n_layers / f->c->attn_res_block_size + 1);
    uint64_t pairs;
    if (!sl_mul_u64(n, k, &pairs) || pairs > UINT32_MAX || f->window > SL_GRAPH_CHUNK_MAX)
        return sl_fail(err, SL_E_ARG, name, "tokens", "%zu are more than one pass takes", f->n);
    sl_kernels_init(&f->kernels, sl_cpu_detect());
    *out = (struct sl_live_price){.tokens = n};
    identify(f, out->identity, sizeof out->identity);
    const struct sl_graph_opts go = graph_opts(f);
    out->memory_bytes = state_bytes(f) + sl_graph_bytes(f->c, &go, threads) +
                        sl_layer_weights_bytes(in) + 8 * L * L + (2 + 4 + 4) * pairs +
                        4 * f->window * (H + 1) +
                        sl_gram_work_floats((int)f->window, (int)L) * sizeof(float);
    out->scratch_bytes = n * (2 * H + banks * (H + 1) + L + k * L) * sizeof(float);
    /* Gathered rows and their transpose, sums, a metric in f64 and its factors. */
    out->job_bytes =
        (f->window + 16) * (2 * L + 3 * W) * sizeof(float) + 4 * (L * L + W * W) + 3 * 8 * L * L;
    out->seconds = seconds_each(&f->kernels) * work_each(f) * (double)n / threads;
    return 0;
}

/* ---- scratch files */

static int open_file(struct sl_fused *f, const char *name, bool fresh, uint64_t bytes, int *fd,
                     char path[SL_PATH_MAX], struct sl_err *err)
{
    uint64_t has;
    if (!sl_path_join(path, f->work, name))
        return sl_fail(err, SL_E_ARG, f->work, NULL, "path too long");
    *fd = open(path, O_RDWR | O_CLOEXEC | (fresh ? O_CREAT : 0), 0666);
    if (*fd < 0) return sl_fail_errno(err, SL_E_IO, errno, path, "open");
    if (fresh && ftruncate(*fd, (off_t)bytes))
        return sl_fail_errno(err, SL_E_IO, errno, path, "truncate");
    int rc = sl_file_size(path, &has, SL_E_PACK, err);
    if (!rc && has != bytes)
        rc = sl_fail(err, SL_E_PACK, path, NULL,
                     "%llu bytes, expected %llu; remove the unfinished pack to start over",
                     (unsigned long long)has, (unsigned long long)bytes);
    return rc;
}

static int map_file(struct sl_fused *f, const char *name, uint64_t bytes, struct map *m,
                    struct sl_err *err)
{
    char path[SL_PATH_MAX];
    int fd = -1;
    int rc = open_file(f, name, true, bytes, &fd, path, err);
    if (!rc) {
        /* Room on the drive now: a full one would end the process at a write to the map. */
        const int full = posix_fallocate(fd, 0, (off_t)bytes);
        if (full && full != EOPNOTSUPP && full != EINVAL)
            rc = sl_fail_errno(err, full == ENOSPC ? SL_E_NOSPACE : SL_E_IO, full, path,
                               "reserve space");
    }
    if (!rc) {
        m->at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        m->bytes = bytes;
        if (m->at == MAP_FAILED) {
            m->at = NULL;
            rc = sl_fail_errno(err, SL_E_IO, errno, path, "map");
        }
    }
    if (fd >= 0) close(fd);
    return rc;
}

static int open_bank(struct sl_fused *f, int j, bool fresh, struct sl_err *err)
{
    char name[32], path[SL_PATH_MAX];
    snprintf(name, sizeof name, "calib.bank.%d", j);
    return open_file(f, name, fresh, f->n * ((uint64_t)f->c->hidden_size + 1) * sizeof(float),
                     &f->bank[j], path, err);
}

/* Vectors that are banked before a layer. */
static int banked_before(const struct sl_config *c, int layer)
{
    return (layer + c->attn_res_block_size - 1) / c->attn_res_block_size;
}

static int embed(struct sl_fused *f, struct sl_err *err)
{
    const struct sl_input *in = f->in;
    const uint64_t H = (uint64_t)f->c->hidden_size;
    struct sl_in_tensor t;
    if (!in->ops->find(in, "model.embed_tokens.weight", &t))
        return sl_fail(err, SL_E_SOURCE, NULL, "model.embed_tokens.weight", "is missing");
    const enum sl_fmt fmt = sl_fmt_of_dtype(t.dtype);
    const uint64_t row = fmt == SL_FMT_NONE ? 0 : sl_fmt_row_bytes(fmt, H);
    if (!row || t.n_dims != 2 || t.shape[0] != f->c->vocab_size || t.shape[1] != (int64_t)H)
        return sl_fail(err, SL_E_SOURCE, sl_input_file(in, &t), t.name, "not the shape expected");
    uint8_t *raw = malloc(row);
    if (!raw) return sl_fail(err, SL_E_NOMEM, NULL, "embedding", "out of memory");
    int rc = 0;
    for (size_t i = 0; i < f->n && !rc; i++) {
        const struct sl_mat m = {.fmt = fmt, .rows = 1, .cols = (int)H, .codes = raw};
        const size_t at = i % f->window, first = i - at;
        rc = in->ops->read(in, &t, (uint64_t)f->ids.v[i] * row, raw, row, err);
        if (rc) break;
        sl_mat_decode_row(&m, 0, f->rows + at * H);
        if (at + 1 < f->window && i + 1 < f->n) continue;
        rc = sl_pwrite_all(f->stream[0], f->rows, (at + 1) * H * sizeof(float),
                           first * H * sizeof(float), "scratch of the calibration", err);
    }
    free(raw);
    return rc;
}

static int start(void *ctx, struct sl_pool *pool, const char *work, int done, struct sl_err *err)
{
    struct sl_fused *f = ctx;
    const struct sl_config *c = f->c;
    const uint64_t H = (uint64_t)c->hidden_size, L = (uint64_t)c->latent_size;
    const uint64_t pairs = f->n * (uint64_t)c->top_k, E = (uint64_t)c->n_experts;
    char path[SL_PATH_MAX];
    if (done >= c->n_layers) return 0;
    if ((size_t)snprintf(f->work, sizeof f->work, "%s", work) >= sizeof f->work)
        return sl_fail(err, SL_E_ARG, work, NULL, "path too long");
    f->pool = pool;
    f->rows = malloc(f->window * (H + 1) * sizeof *f->rows);
    f->routed = malloc(pairs * sizeof *f->routed);
    f->share = malloc(pairs * sizeof *f->share);
    f->pair = malloc(pairs * sizeof *f->pair);
    f->first = malloc((E + 2) * sizeof *f->first);
    f->counts = malloc(E * sizeof *f->counts);
    f->latent_sum = malloc(L * L * sizeof *f->latent_sum);
    f->gram = malloc(sl_gram_work_floats((int)f->window, (int)L) * sizeof *f->gram);
    f->folded = aligned_alloc(64, sl_align_up(sl_model_layer_bytes(c), 64));
    f->model.cfg = *c;
    f->model.layers = calloc((size_t)c->n_layers, sizeof *f->model.layers);
    f->weights.in = f->in;
    if (!f->rows || !f->routed || !f->share || !f->pair || !f->first || !f->counts ||
        !f->latent_sum || !f->gram || !f->folded || !f->model.layers)
        return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    const struct sl_graph_opts go = graph_opts(f);
    int rc = sl_arena_init(&f->arena,
                           state_bytes(f) + sl_graph_bytes(c, &go, sl_pool_threads(pool)) + 8192,
                           "calibration", err);
    if (!rc) rc = sl_state_open(&f->state, c, f->window, 0, &f->arena, err);
    if (!rc) rc = sl_graph_open(&f->graph, &f->model, &f->kernels, pool, NULL, &f->arena, &go, err);
    for (int i = 0; i < 2 && !rc; i++) {
        char name[32];
        snprintf(name, sizeof name, "calib.stream.%d", i);
        const bool fresh = !done || i != done % 2;
        rc = open_file(f, name, fresh, f->n * H * sizeof(float), &f->stream[i], path, err);
    }
    for (int j = 0; j < banked_before(c, done) && !rc; j++) rc = open_bank(f, j, false, err);
    if (!rc && E) rc = map_file(f, "calib.latent", f->n * L * sizeof(float), &f->latent, err);
    if (!rc && E) rc = map_file(f, "calib.pairs", pairs * L * sizeof(float), &f->pairs, err);
    return rc || done ? rc : embed(f, err);
}

/* ---- windows */

static size_t window_tokens(const struct sl_fused *f, size_t at)
{
    return f->n - at < f->window ? f->n - at : f->window;
}

static int load_rows(struct sl_fused *f, int fd, size_t width, size_t at, size_t n, int slot,
                     const struct sl_layer_place *p, struct sl_err *err)
{
    const size_t H = (size_t)f->c->hidden_size, slots = (size_t)p->n_slots;
    int rc = sl_pread_all(fd, f->rows, n * width * sizeof(float), at * width * sizeof(float),
                          "scratch of the calibration", SL_E_PACK, err);
    for (size_t t = 0; t < n && !rc; t++) {
        const float *row = f->rows + t * width;
        memcpy(p->stream + (t * slots + (size_t)slot) * H, row, H * sizeof(float));
        if (width > H) p->rms[t * slots + (size_t)slot] = row[H];
    }
    return rc;
}

static int save_rows(struct sl_fused *f, int fd, size_t width, size_t at, size_t n, int slot,
                     const struct sl_layer_place *p, struct sl_err *err)
{
    const size_t H = (size_t)f->c->hidden_size, slots = (size_t)p->n_slots;
    for (size_t t = 0; t < n; t++) {
        float *row = f->rows + t * width;
        memcpy(row, p->stream + (t * slots + (size_t)slot) * H, H * sizeof(float));
        if (width > H) row[H] = p->rms[t * slots + (size_t)slot];
    }
    return sl_pwrite_all(fd, f->rows, n * width * sizeof(float), at * width * sizeof(float),
                         "scratch of the calibration", err);
}

/* The banked vectors of a window, and its running sums out of `sums`. */
static int load_window(struct sl_fused *f, int sums, int n_banked, size_t at, size_t n,
                       const struct sl_layer_place *p, struct sl_err *err)
{
    const size_t H = (size_t)f->c->hidden_size;
    int rc = 0;
    for (int j = 0; j < n_banked && !rc; j++)
        rc = load_rows(f, f->bank[j], H + 1, at, n, j, p, err);
    return rc ? rc : load_rows(f, sums, H, at, n, n_banked, p, err);
}

static void latent_task(void *ctx, int task, int worker)
{
    struct sl_fused *f = ctx;
    const int L = f->c->latent_size, row0 = task * STRIP;
    (void)worker;
    sl_gram_add_f64(f->latent_sum, f->gram, f->n_gram, L, row0, row0 + STRIP < L ? row0 + STRIP : L,
                    &f->kernels);
}

/* What the experts will need of a window, and the layer's own sums. */
static void keep_window(struct sl_fused *f, size_t at, size_t n, const struct sl_layer_place *p)
{
    const size_t L = (size_t)f->c->latent_size, k = (size_t)f->c->top_k;
    memcpy(f->latent.at + at * L, p->latent, n * L * sizeof(float));
    for (size_t t = 0; t < n; t++)
        for (size_t j = 0; j < k; j++) {
            const int e = p->routes[t].ids[j];
            f->routed[(at + t) * k + j] = (uint16_t)e;
            f->share[(at + t) * k + j] = p->routes[t].weights[j];
            f->counts[e]++;
        }
    sl_gram_pack(f->gram, p->latent, L, (int)n, (int)L);
    f->n_gram = (int)n;
    sl_pool_run(f->pool, ((int)L + STRIP - 1) / STRIP, latent_task, f);
}

static void sort_pairs(struct sl_fused *f)
{
    const size_t pairs = f->n * (size_t)f->c->top_k, E = (size_t)f->c->n_experts;
    memset(f->first, 0, (E + 2) * sizeof *f->first);
    for (size_t e = 0; e < E; e++) f->first[e + 2] = f->first[e + 1] + f->counts[e];
    for (size_t i = 0; i < pairs; i++) f->pair[f->first[f->routed[i] + 1]++] = (uint32_t)i;
}

static int begin(void *ctx, int layer, struct sl_err *err)
{
    struct sl_fused *f = ctx;
    const struct sl_config *c = f->c;
    const size_t H = (size_t)c->hidden_size, L = (size_t)c->latent_size;
    const bool moe = sl_config_is_moe(c, layer);
    const int before = banked_before(c, layer), after = banked_before(c, layer + 1);
    struct sl_layer_place p;
    struct sl_weight_source from = sl_layer_weights_source(&f->weights);
    sl_layer_weights_free(&f->weights);
    int rc = sl_model_bind_layer(&f->model.layers[layer], layer, c, &from, f->folded, err);
    if (!rc && after > before && f->bank[before] < 0) rc = open_bank(f, before, true, err);
    if (moe) {
        memset(f->counts, 0, (size_t)c->n_experts * sizeof *f->counts);
        memset(f->latent_sum, 0, L * L * sizeof *f->latent_sum);
    }
    sl_graph_layer_place(f->graph, &p);
    struct sl_progress *bar = sl_progress_open("calibrate", "tokens", f->n, 0);
    for (size_t at = 0; at < f->n && !rc; at += f->window) {
        const size_t n = window_tokens(f, at);
        int banked = before;
        sl_state_reset(f->state);
        rc = load_window(f, f->stream[layer % 2], before, at, n, &p, err);
        if (!rc) rc = sl_graph_layer_begin(f->graph, f->state, layer, (int)n, &banked, err);
        if (!rc && after > before)
            rc = save_rows(f, f->bank[before], H + 1, at, n, before, &p, err);
        if (!rc) rc = save_rows(f, f->stream[(layer + 1) % 2], H, at, n, after, &p, err);
        if (!rc && moe) keep_window(f, at, n, &p);
        if (!rc && sl_interrupted()) rc = sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
        sl_progress_add(bar, n, 0);
    }
    sl_progress_close(bar);
    if (!rc && moe) sort_pairs(f);
    return rc;
}

/* Each window from where begin left it, with the outputs of its experts. */
static int finish_mixture(struct sl_fused *f, int layer, struct sl_err *err)
{
    const size_t H = (size_t)f->c->hidden_size, L = (size_t)f->c->latent_size;
    const size_t k = (size_t)f->c->top_k;
    const int banked = banked_before(f->c, layer + 1), sums = f->stream[(layer + 1) % 2];
    struct sl_layer_place p;
    int rc = 0;
    sl_graph_layer_place(f->graph, &p);
    for (size_t at = 0; at < f->n && !rc; at += f->window) {
        const size_t n = window_tokens(f, at);
        rc = load_window(f, sums, banked, at, n, &p, err);
        if (!rc)
            rc = sl_graph_layer_end(f->graph, f->state, layer, (int)n, banked, f->share + at * k,
                                    f->pairs.at + at * k * L, err);
        if (!rc) rc = save_rows(f, sums, H, at, n, banked, &p, err);
        if (!rc && sl_interrupted()) rc = sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
    }
    return rc;
}

static int end(void *ctx, int layer, struct sl_err *err)
{
    struct sl_fused *f = ctx;
    const int before = banked_before(f->c, layer), after = banked_before(f->c, layer + 1);
    int rc = sl_config_is_moe(f->c, layer) ? finish_mixture(f, layer, err) : 0;
    if (!rc && fdatasync(f->stream[(layer + 1) % 2]))
        rc = sl_fail_errno(err, SL_E_IO, errno, f->work, "sync");
    if (!rc && after > before && fdatasync(f->bank[before]))
        rc = sl_fail_errno(err, SL_E_IO, errno, f->work, "sync");
    if (!rc) rc = sl_sync_dir(f->work, err);
    sl_layer_weights_free(&f->weights);
    return rc;
}

/* ---- experts */

static void shared(void *ctx, const double **latent, const uint64_t **counts)
{
    struct sl_fused *f = ctx;
    *latent = f->latent_sum;
    *counts = f->counts;
}

/* One worker's memory for one expert. */
struct rows {
    float *x, *gate, *up, *y, *gram;
};

static int rows_open(struct rows *r, const struct sl_fused *f, struct sl_err *err)
{
    const size_t L = (size_t)f->c->latent_size, W = (size_t)f->c->moe_intermediate_size;
    const size_t n = f->window, wide = L > W ? L : W;
    float *at = malloc((n * L + SL_GRAPH_PAIRS * (2 * W + L)) * sizeof *at);
    *r = (struct rows){.x = at};
    r->gram = malloc(sl_gram_work_floats((int)n, (int)wide) * sizeof *r->gram);
    if (!at || !r->gram) {
        free(at);
        free(r->gram);
        return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    }
    r->gate = at + n * L;
    r->up = r->gate + SL_GRAPH_PAIRS * W;
    r->y = r->up + SL_GRAPH_PAIRS * W;
    return 0;
}

/* n pairs of one window: gate and up, SiTU, sums of what w2 reads, w2. */
static void run_pairs(const struct sl_fused *f, const struct rows *r, const float *x,
                      const uint32_t *pair, int n, const struct sl_mat mats[SL_N_MATS],
                      float *hidden_e)
{
    const struct sl_kernels *k = &f->kernels;
    const int L = f->c->latent_size, W = f->c->moe_intermediate_size;
    const size_t ldx = (size_t)L, ldh = (size_t)W;
    k->mul(&mats[SL_GATE], 0, W, x, ldx, n, r->gate, ldh);
    k->mul(&mats[SL_UP], 0, W, x, ldx, n, r->up, ldh);
    for (int i = 0; i < n; i++) {
        const struct sl_seg s = {.y = r->gate, .y2 = r->up, .ldy = ldh};
        sl_graph_situ(f->graph, &s, i, 0, W);
    }
    if (hidden_e) {
        sl_gram_pack(r->gram, r->gate, ldh, n, W);
        sl_gram_add_f32(hidden_e, r->gram, n, W, 0, W, k);
    }
    k->mul(&mats[SL_DOWN], 0, L, r->gate, ldh, n, r->y, ldx);
    for (int i = 0; i < n; i++)
        memcpy(f->pairs.at + (size_t)pair[i] * ldx, r->y + (size_t)i * ldx, ldx * sizeof(float));
}

static int run_expert(void *ctx, int expert, const struct sl_mat mats[SL_N_MATS], float *latent_e,
                      float *hidden_e, struct sl_err *err)
{
    const struct sl_fused *f = ctx;
    const size_t L = (size_t)f->c->latent_size, k = (size_t)f->c->top_k;
    const uint32_t *pair = f->pair + f->first[expert], *stop = f->pair + f->first[expert + 1];
    struct rows r;
    if (pair == stop) return 0;
    int rc = rows_open(&r, f, err);
    if (rc) return rc;
    while (pair < stop) {
        const size_t window = *pair / k / f->window;
        int n = 0;
        for (; pair + n < stop && pair[n] / k / f->window == window; n++)
            memcpy(r.x + (size_t)n * L, f->latent.at + pair[n] / k * L, L * sizeof(float));
        if (latent_e) {
            sl_gram_pack(r.gram, r.x, L, n, (int)L);
            sl_gram_add_f32(latent_e, r.gram, n, (int)L, 0, (int)L, &f->kernels);
        }
        for (int at = 0; at < n; at += SL_GRAPH_PAIRS)
            run_pairs(f, &r, r.x + (size_t)at * L, pair + at,
                      n - at < SL_GRAPH_PAIRS ? n - at : SL_GRAPH_PAIRS, mats, hidden_e);
        pair += n;
    }
    free(r.x);
    free(r.gram);
    return 0;
}

/* ---- open and close */

int sl_fused_open(struct sl_fused **out, const struct sl_fused_opts *o, struct sl_err *err)
{
    struct sl_fused *f = calloc(1, sizeof *f);
    if (!f) return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    f->o = *o;
    f->calls = (struct sl_live_calib){.ctx = f,
                                      .prepare = prepare,
                                      .start = start,
                                      .begin = begin,
                                      .shared = shared,
                                      .expert = run_expert,
                                      .end = end};
    f->stream[0] = f->stream[1] = -1;
    for (int j = 0; j < SL_MAX_LAYERS; j++) f->bank[j] = -1;
    *out = f;
    return 0;
}

void sl_fused_close(struct sl_fused *f)
{
    if (!f) return;
    sl_layer_weights_free(&f->weights);
    sl_arena_free(&f->arena);
    if (f->latent.at) munmap(f->latent.at, f->latent.bytes);
    if (f->pairs.at) munmap(f->pairs.at, f->pairs.bytes);
    for (int i = 0; i < 2; i++)
        if (f->stream[i] >= 0) close(f->stream[i]);
    for (int j = 0; j < SL_MAX_LAYERS; j++)
        if (f->bank[j] >= 0) close(f->bank[j]);
    sl_ids_free(&f->ids);
    free(f->rows);
    free(f->routed);
    free(f->share);
    free(f->pair);
    free(f->first);
    free(f->counts);
    free(f->latent_sum);
    free(f->gram);
    free(f->folded);
    free(f->model.layers);
    free(f);
}

const struct sl_live_calib *sl_fused_calls(struct sl_fused *f)
{
    return &f->calls;
}
