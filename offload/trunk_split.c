/* Which part of a trunk is held when not all of it fits.
 *
 * A byte of trunk that is held saves one byte from the drive for every token. A byte of an expert slot
 * saves less: with 16 of 896 experts a token, 16/896 of a byte where experts are chosen evenly, and what
 * is known of real routing gives 0.3 of a byte at best (25 GB of slots, one token's experts, find 29.5 %
 * of the next token's 25 GB). So the trunk comes first, and slots get what it leaves.
 *
 * Among matrices every byte is worth the same; the order is about when the drive is free. One kind of
 * matrix after the other, over all layers, so that what streams is spread over the layers: in each of
 * them the drive then has trunk to read while the router's answer is not known. First those that are used
 * while a layer's experts are being read (latent projections, shared experts): a piece that is needed then
 * would stand behind them. Last the head, which nothing has to wait for but the end of the token. Layers
 * of a kind that fits only in part are taken in bit-reversed order: spread again.
 *
 * Never streamed: vectors; the router, because look-ahead reads the next layer's out of turn; the
 * projections of decay and beta, which are small and go into a head's own loop. The embedding is not worth
 * holding while anything streams: a token needs one row. */
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "offload/stream.h"
#include "offload/trunk_parts.h"

#define RING_PIECES 16
#define RING_PIECE  (8u << 20) /* and less for a small trunk: RING_SHARE rings make one pass */
#define RING_SHARE  8

struct candidate {
    int kind;
    uint32_t spread;
    int tensor;
};

/* In the order in which they are held; names inside a layer. */
static const char *const kinds[] = {"block_sparse_moe.routed_expert_",
                                    "block_sparse_moe.shared_experts.",
                                    "self_attn.q_a_proj.",
                                    "self_attn.kv_a_proj_with_mqa.",
                                    "self_attn.kv_b_proj.",
                                    "self_attn.q_b_proj.",
                                    "self_attn.o_proj.",
                                    "self_attn.g_proj.",
                                    "self_attn.v_proj.",
                                    "self_attn.k_proj.",
                                    "self_attn.q_proj.",
                                    "mlp."};
enum { N_KINDS = sizeof kinds / sizeof kinds[0], KIND_HEAD = N_KINDS, KIND_NONE = -1 };

/* "model.layers.12.NAME" -> 12 and NAME; -1 outside of layers. */
static int layer_of(const char *name, const char **inside)
{
    static const char layers[] = "model.layers.";
    *inside = name;
    if (strncmp(name, layers, sizeof layers - 1) != 0) return -1;
    char *end;
    long l = strtol(name + sizeof layers - 1, &end, 10);
    if (*end != '.' || l < 0 || l >= SL_MAX_LAYERS) return -1;
    *inside = end + 1;
    return (int)l;
}

static bool is_embedding(const struct sl_tensor *t)
{
    return strcmp(t->name, "model.embed_tokens.weight") == 0;
}

/* A matrix whose rows may come apart from each other. */
static bool has_rows(const struct sl_tensor *t)
{
    return t->n_dims == 2 && t->shape[0] > 1 && t->shape[0] <= INT32_MAX && t->bytes > SL_PAGE &&
           t->fmt != SL_FMT_U8 && !sl_trunk_is_widened(t) && t->bytes % (uint64_t)t->shape[0] == 0;
}

int sl_trunk_row_group(const struct sl_pack *p, const struct sl_tensor *t)
{
    const char *inside;
    (void)layer_of(t->name, &inside);
    if (strcmp(inside, "self_attn.kv_b_proj.weight") != 0) return 1;
    return p->cfg.qk_nope_dim + p->cfg.v_head_dim;
}

static int kind_of(const struct sl_pack *p, const struct sl_tensor *t, int *layer)
{
    const char *inside;
    *layer = layer_of(t->name, &inside);
    if (!has_rows(t)) return KIND_NONE;
    const int group = sl_trunk_row_group(p, t);
    if (group < 1 || t->shape[0] % group ||
        sl_stream_least_piece(t->bytes / (uint64_t)t->shape[0] * (uint64_t)group) > SL_PIECE_BYTES)
        return KIND_NONE;
    if (*layer < 0) return strcmp(t->name, "lm_head.weight") == 0 ? KIND_HEAD : KIND_NONE;
    for (int k = 0; k < N_KINDS; k++)
        if (strncmp(inside, kinds[k], strlen(kinds[k])) == 0) return k;
    return KIND_NONE;
}

static uint32_t reversed(uint32_t x)
{
    uint32_t r = 0;
    for (int i = 0; i < 16; i++) r |= (x >> i & 1) << (15 - i);
    return r;
}

static int compare(const void *a, const void *b)
{
    const struct candidate *x = a;
    const struct candidate *y = b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->spread != y->spread) return x->spread < y->spread ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

int sl_trunk_split(const struct sl_pack *p, uint64_t budget, struct sl_trunk_split *out,
                   uint8_t *where, struct sl_err *err)
{
    const uint64_t all = sl_trunk_bytes(p);
    *out = (struct sl_trunk_split){.held_bytes = all};
    if (where) memset(where, SL_TRUNK_HELD, (size_t)p->n_tensors);
    if (budget >= all) return 0;
    struct candidate *list = calloc((size_t)p->n_tensors + 1, sizeof *list);
    if (!list) return sl_fail(err, SL_E_NOMEM, NULL, "trunk", "out of memory");
    int n = 0;
    uint64_t held = all;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sl_tensor *t = &p->tensors[i];
        int layer;
        const int kind = kind_of(p, t, &layer);
        if (kind == KIND_NONE && !(is_embedding(t) && has_rows(t))) continue;
        held -= sl_trunk_held_bytes(t);
        if (where) where[i] = kind == KIND_NONE ? SL_TRUNK_BY_ROW : SL_TRUNK_STREAMED;
        out->rows_apart |= kind == KIND_NONE;
        if (kind == KIND_NONE) continue;
        out->streamed_bytes += t->bytes;
        list[n++] = (struct candidate){kind, reversed(layer < 0 ? 0 : (uint32_t)layer), i};
    }
    qsort(list, (size_t)n, sizeof *list, compare);
    out->n_streamed = n;
    for (int i = 0; i < n; i++) {
        const struct sl_tensor *t = &p->tensors[list[i].tensor];
        if (held + sl_trunk_held_bytes(t) > budget) break;
        held += sl_trunk_held_bytes(t);
        out->streamed_bytes -= t->bytes;
        out->n_streamed--;
        if (where) where[list[i].tensor] = SL_TRUNK_HELD;
    }
    free(list);
    out->held_bytes = held;
    return 0;
}

void sl_trunk_ring(const struct sl_pack *p, uint32_t *piece_bytes, uint32_t *n_pieces)
{
    uint64_t bytes = 0;
    uint64_t least = 0;
    *piece_bytes = *n_pieces = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sl_tensor *t = &p->tensors[i];
        int layer;
        if (kind_of(p, t, &layer) == KIND_NONE) continue;
        const uint64_t row = t->bytes / (uint64_t)t->shape[0];
        const uint64_t piece = sl_stream_least_piece(row * (uint64_t)sl_trunk_row_group(p, t));
        if (piece > least) least = piece;
        bytes += t->bytes;
    }
    if (!bytes) return;
    uint64_t piece = sl_align_up(bytes / ((uint64_t)RING_SHARE * RING_PIECES) + 1, SL_PAGE);
    if (piece > RING_PIECE) piece = RING_PIECE;
    *piece_bytes = (uint32_t)(piece > least ? piece : least);
    *n_pieces = RING_PIECES;
}
