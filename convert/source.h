/* A released-layout checkpoint on disk: config, shards, and every tensor's place, all validated.
 *
 * Accepts a snapshot folder (regular files) or the cache layout (symbolic links to blobs), any shard
 * count, with or without model.safetensors.index.json. Nothing is mapped; weights are read with pread.
 * Opening checks, in this order and naming file, field and value: config of this family (another
 * model is refused by what its config says, before anything else is read), shards present, header
 * sizes, offsets (in range, not overlapping, no holes, file neither short nor longer than its data),
 * names unique and in the file the index says, dtypes and shapes against the inventory that the config
 * implies, nothing missing, nothing unknown. All errors are SL_E_SOURCE.
 * Memory: about 120 bytes a tensor (497,220 in the release). */
#ifndef SL_CONVERT_SOURCE_H
#define SL_CONVERT_SOURCE_H

#include <stdint.h>
#include "base/strmap.h"
#include "offload/config.h"

/* T8: rows of kernels/block_t8.h, what Q8_0 of a GGUF file becomes; no checkpoint holds it. */
enum sl_dtype { SL_DT_BF16 = 1, SL_DT_F32, SL_DT_F16, SL_DT_U8, SL_DT_OTHER, SL_DT_T8 };

struct sl_shard {
    char *name;            /* "model-00001-of-000096.safetensors" */
    char *path;            /* as opened, link not resolved */
    uint64_t bytes;        /* file size */
    uint64_t header_bytes; /* 8 + JSON length: where data begins */
    int fd;                /* open read-only, -1 when freed by an earlier run */
    char *names;           /* its tensors' names, end to end */
};

struct sl_src_tensor {
    const char *name; /* as in the file, prefix included */
    uint32_t shard;
    uint8_t dtype; /* enum sl_dtype */
    uint8_t n_dims;
    int64_t shape[4];
    uint64_t offset, bytes; /* absolute in the shard file */
};

struct sl_source {
    char *dir;
    struct sl_config cfg;
    char prefix[32]; /* "language_model." or "" */
    /* Identity: over config.json, then name, u64 LE size and header of each shard, in name order. */
    char sha256[65];
    struct sl_shard *shards;
    int n_shards;
    struct sl_src_tensor *tensors; /* by shard, then by offset */
    uint32_t n_tensors;
    struct sl_strmap *by_name; /* full name -> index */
    uint64_t payload_bytes;    /* sum of tensor bytes: metadata.total_size */
    /* Small files to carry into PACK/tokenizer: config.json, tiktoken.model, *.json, *.py, licence.
     * Names in dir, sorted; no index, no shards. */
    char **extra_files;
    int n_extra_files;
};

struct sl_source_opts {
    /* Headers saved by an earlier run for shards it has freed (--free-source); NULL otherwise. A file
     * SAVED_DIR/NAME.header holds the first header_bytes of the shard, then u64 file size. */
    const char *saved_headers_dir;
};

int sl_source_open(struct sl_source **out, const char *dir, const struct sl_source_opts *opts,
                   struct sl_err *err);
void sl_source_close(struct sl_source *s);

/* Config alone, from DIR/config.json: what `inspect` and refusals use. */
int sl_source_read_config(struct sl_config *c, const char *dir, struct sl_err *err);

/* By the name without prefix ("model.layers.3.self_attn.q_proj.weight", "vision_tower..."). NULL. */
const struct sl_src_tensor *sl_source_find(const struct sl_source *s, const char *name);
/* The six tensors of one routed expert: w1 packed, w1 scale, w3 packed, w3 scale, w2 packed, w2 scale. */
void sl_source_expert(const struct sl_source *s, int layer, int expert,
                      const struct sl_src_tensor *out[6]);

/* Vision tensors ("vision_tower...", "mm_projector...") are carried verbatim and have no prefix. */
bool sl_source_is_vision(const char *name);

/* n bytes at `at` within the tensor's data. */
int sl_source_read(const struct sl_source *s, const struct sl_src_tensor *t, uint64_t at, void *buf,
                   uint64_t n, struct sl_err *err);

#endif
