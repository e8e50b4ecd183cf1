/* Where a conversion or an export takes its tensors from: a checkpoint, GGUF files, or a lossless pack.
 *
 * All give the same names, shapes, bytes and identity, so `convert PACK` writes what `convert SRC`
 * would have written, and `export` gives back what was converted. Names are those of the checkpoint
 * without its prefix. Safe to share between threads once open; reads go to the caller's memory. */
#ifndef SL_CONVERT_INPUT_H
#define SL_CONVERT_INPUT_H

#include <stdbool.h>
#include <stdint.h>
#include "convert/inventory.h"
#include "offload/pack_layout.h"

struct sl_pack;
struct sl_gguf_input;

/* One tensor that is not part of a routed expert. */
struct sl_in_tensor {
    const char *name; /* without prefix; lives as long as the input */
    uint8_t dtype;    /* enum sl_dtype */
    uint8_t n_dims;
    bool has_crc; /* the input knows the crc32 of the bytes */
    uint32_t crc32;
    int64_t shape[4]; /* as in the checkpoint, padding of A_log included */
    uint64_t bytes;
    int shard;       /* index of the shard that holds it, -1 for a pack or GGUF */
    const void *ref; /* the input's own handle */
};

/* One routed expert as mxfp4 planes (kernels/block_mxfp4.h): gate and up are [width][latent], down is
 * [latent][width]. Pointers lie in the reader's scratch memory. */
struct sl_in_expert {
    const uint8_t *codes[SL_N_MATS];
    const uint8_t *scales[SL_N_MATS];
};

struct sl_input {
    const struct sl_input_ops *ops;
    struct sl_config cfg;
    enum sl_form form; /* which trunk tensors there are */
    char prefix[32];
    char sha256[65];
    char *source_json;   /* the "source" object of pack.json, on one line */
    uint64_t file_bytes; /* of the files behind it: shards, or trunk, vision and banks */
    char **extra_names;  /* small files that travel in PACK/tokenizer, sorted */
    char **extra_paths;
    int n_extra;
    int n_vision;
    uint64_t scratch_bytes; /* for read_expert and read_scales */

    struct sl_source *source; /* a checkpoint, owned; or */
    uint32_t *vision;         /* [n_vision] its tensors' indices */
    const struct sl_pack *pack;
    struct sl_pack *own_pack;   /* pack when this input opened it */
    struct sl_gguf_input *gguf; /* GGUF files, owned */
    const char *files_dir;      /* folder of the small files; the tokenizer is read from it */
};

struct sl_input_ops {
    /* A text tensor by name; false when there is none. */
    bool (*find)(const struct sl_input *in, const char *name, struct sl_in_tensor *t);
    /* i-th vision tensor, i < n_vision, in the order of the checkpoint. */
    void (*vision)(const struct sl_input *in, int i, struct sl_in_tensor *t);
    /* n bytes at `at` of a tensor. */
    int (*read)(const struct sl_input *in, const struct sl_in_tensor *t, uint64_t at, void *buf,
                uint64_t n, struct sl_err *err);
    /* One whole expert; scratch[scratch_bytes]. A pack's record is checked against its crc32. */
    int (*read_expert)(const struct sl_input *in, int layer, int expert, uint8_t *scratch,
                       struct sl_in_expert *out, struct sl_err *err);
    /* Scale bytes of one matrix, [rows][cols/32], at *scales in scratch[scratch_bytes]. NULL there: the
     * range is a hole of a sparse file, all zero, and was not read. */
    int (*read_scales)(const struct sl_input *in, int layer, int expert, int mat, uint8_t *scratch,
                       const uint8_t **scales, struct sl_err *err);
    /* File and tensor of those scales, for messages; n bytes each. */
    void (*name_scales)(const struct sl_input *in, int layer, int expert, int mat, char *file,
                        char *tensor, size_t n);
    /* Asks the kernel to start reading an expert; no promise. */
    void (*prefetch_expert)(const struct sl_input *in, int layer, int expert);
};

/* PATH is a pack when it holds pack.json, GGUF when sl_gguf_is() says so, else a checkpoint. saved_headers_dir as in sl_source_opts, may be NULL.
 * SL_E_SOURCE when a pack is lossy, naming its first tensor that cannot be given back; SL_E_PACK when
 * a pack is damaged. */
int sl_input_open(struct sl_input **out, const char *path, const char *saved_headers_dir,
                  struct sl_err *err);
int sl_input_open_source(struct sl_input **out, const char *path, const char *saved_headers_dir,
                         struct sl_err *err);
/* Over a pack that stays the caller's, or (own) becomes the input's once this succeeds. */
int sl_input_open_pack(struct sl_input **out, const struct sl_pack *p, struct sl_pack *own,
                       struct sl_err *err);
int sl_input_open_gguf(struct sl_input **out, const char *path, struct sl_err *err);
void sl_gguf_input_close(struct sl_gguf_input *g); /* NULL is fine; for sl_input_close */
const char *sl_gguf_input_file(const struct sl_input *in, const struct sl_in_tensor *t);
/* Over a pack whose experts are lossless, whatever its trunk holds: for the export to GGUF. */
int sl_input_open_pack_experts(struct sl_input **out, const struct sl_pack *p, struct sl_err *err);
void sl_input_close(struct sl_input *in); /* NULL is fine */

/* Adds one small file; false: no memory. For the two openers. */
bool sl_input_add_extra(struct sl_input *in, const char *dir, const char *name);

/* Entries of a folder besides ".", ".." and `other` (may be NULL); -1 with errno when it cannot be
 * read. */
int sl_count_entries(const char *dir, const char *other);

/* The file that a tensor is read from, for messages: a shard's name, or the pack's folder. */
const char *sl_input_file(const struct sl_input *in, const struct sl_in_tensor *t);

/* Copies the small files into a folder that exists. */
int sl_input_copy_extras(const struct sl_input *in, const char *dir, struct sl_err *err);

/* Name of the field "w1", "w3", "w2" of gate, up, down. */
const char *sl_mat_name(int mat);
static inline int sl_mat_rows(const struct sl_config *c, int mat)
{
    return mat == SL_DOWN ? c->latent_size : c->moe_intermediate_size;
}
static inline int sl_mat_cols(const struct sl_config *c, int mat)
{
    return mat == SL_DOWN ? c->moe_intermediate_size : c->latent_size;
}
static inline uint64_t sl_mat_codes_bytes(const struct sl_config *c, int mat)
{
    return (uint64_t)sl_mat_rows(c, mat) * (uint64_t)(sl_mat_cols(c, mat) / 2);
}
static inline uint64_t sl_mat_scales_bytes(const struct sl_config *c, int mat)
{
    return (uint64_t)sl_mat_rows(c, mat) * (uint64_t)(sl_mat_cols(c, mat) / 32);
}
/* Bytes of one expert in the checkpoint. */
static inline uint64_t sl_expert_bytes(const struct sl_config *c)
{
    uint64_t n = 0;
    for (int m = 0; m < SL_N_MATS; m++) n += sl_mat_codes_bytes(c, m) + sl_mat_scales_bytes(c, m);
    return n;
}

/* The format that keeps a dtype verbatim and back; SL_FMT_NONE and 0 where there is none. */
enum sl_fmt sl_fmt_of_dtype(int dtype);
int sl_dtype_of_fmt(enum sl_fmt fmt);

#endif
