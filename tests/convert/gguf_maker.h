/* A small K3 model in GGUF, written byte by byte from the format's description and by nothing of the
 * program's: two layers (KDA with a dense FFN, MLA with experts), every type of tensor that is read.
 *
 * Weights are functions of their index, so that a test can say what any number must be. Helpers assert
 * (cmocka). */
#ifndef SL_TESTS_GGUF_MAKER_H
#define SL_TESTS_GGUF_MAKER_H

#include <stddef.h>
#include <stdint.h>

enum {
    GM_HIDDEN = 32,
    GM_HEADS = 2,
    GM_KDA_DIM = 32,
    GM_LORA = 32,
    GM_NOPE = 16,
    GM_ROPE = 8,
    GM_V = 24,
    GM_DENSE = 64,
    GM_EXPERTS = 3,
    GM_WIDTH = 64,
    GM_LATENT = 32,
    GM_VOCAB = 264,
    GM_ORDINARY = 260,
};

struct gm_bytes {
    uint8_t *p;
    size_t n, room;
};
void gm_u8(struct gm_bytes *b, unsigned v);
void gm_u32(struct gm_bytes *b, uint32_t v);
void gm_u64(struct gm_bytes *b, uint64_t v);
void gm_f32(struct gm_bytes *b, float v);
void gm_str(struct gm_bytes *b, const char *s);
void gm_free(struct gm_bytes *b);

struct gm_tensor {
    char name[64];
    uint32_t type; /* 0 F32, 1 F16, 8 Q8_0, 30 BF16, 39 MXFP4 */
    int n_dims;
    uint64_t ne[4];
    uint64_t offset; /* in the data of its file */
    int file;
    struct gm_bytes data;
};

struct gm_model {
    struct gm_tensor t[64];
    int n;
    int splits;                /* 1 or 2 */
    int joint_qkv, whole_kv_b; /* spellings that occur */
    const char *arch;
    int drop_value; /* leaves out the i-th value of the model, -1: none */
};

/* Number i of the tensor called `name`, exact in bf16 (and in the type that it is stored in). */
float gm_weight(const char *name, uint64_t i);
/* E2M1 code and E8M0 byte of element i of an expert tensor. */
unsigned gm_code(const char *name, uint64_t i);
unsigned gm_scale(const char *name, uint64_t block);

void gm_model(struct gm_model *m, int splits, int joint_qkv, int whole_kv_b);
void gm_model_free(struct gm_model *m);
struct gm_tensor *gm_find(struct gm_model *m, const char *name);
/* One file (i of m->splits) as bytes. */
void gm_file(const struct gm_model *m, int i, struct gm_bytes *out);
/* DIR/tiny.gguf, or DIR/tiny-0000N-of-00002.gguf; path[512] is that of the first. */
void gm_write(const struct gm_model *m, const char *dir, char *path);

#endif
