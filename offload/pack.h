/* An open pack: manifest read and validated against file sizes before anything is trusted.
 *
 * Open reads pack.json, bank headers and bank indexes, never a weight.
 * Immutable after open; safe to share between threads. Errors are SL_E_PACK and name the file and
 * key; missing or cut files are named with wanted and found sizes. */
#ifndef SL_OFFLOAD_PACK_H
#define SL_OFFLOAD_PACK_H

#include "base/strmap.h"
#include "kernels/mat.h"
#include "offload/config.h"
#include "offload/pack_layout.h"
#include "offload/rank_plan.h"

struct sl_tensor {
    const char *name; /* without the "language_model." prefix */
    enum sl_fmt fmt;
    int n_dims;
    int64_t shape[4];
    uint64_t offset, bytes; /* in trunk.bin or vision.bin */
    uint32_t crc32;         /* of bytes, padding not included */
};

/* The same bank in one more folder. */
struct sl_bank_copy {
    int fd; /* plain and read-only, as sl_bank.fd */
    char *path;
};

struct sl_bank {
    int fd; /* plain read-only descriptor; the store opens its own O_DIRECT one */
    char *path;
    char *label; /* for messages: "experts/L003.bank", or the path when outside the pack */
    uint32_t n_experts;
    uint64_t file_bytes;
    struct sl_bank_entry *entries; /* [n_experts], validated: bounds, formats, plane offsets */
    struct sl_bank_copy *copies;   /* [n_copies]: same size, header and so record checksums */
    int n_copies;
};

struct sl_pack {
    char *dir;
    struct sl_config cfg;
    char *source_sha256;
    bool synthetic;      /* made-up weights (convert/synth.h): figures of speed, none of quality */
    char *source_prefix; /* "language_model." or "" : what export puts back */
    uint64_t source_payload_bytes;
    char *tool_version;
    enum sl_fmt experts_fmt, trunk_fmt; /* as asked for; single tensors and matrices may differ */
    int trunk_fd, vision_fd;            /* vision_fd -1 when dropped */
    uint64_t trunk_bytes, vision_bytes;
    struct sl_tensor *tensors; /* trunk, in file order */
    int n_tensors;
    struct sl_tensor *vision;
    int n_vision;
    struct {
        uint64_t offset, bytes;
    } layer_range[SL_MAX_LAYERS]; /* trunk range of a layer */
    struct {
        uint64_t offset, bytes;
    } globals_range;            /* embedding, head, final norms */
    int bank_of[SL_MAX_LAYERS]; /* index into banks, -1 for a dense layer */
    struct sl_bank *banks;
    int n_banks;
    uint32_t slot_bytes;        /* largest record of the pack */
    struct sl_rank_plan *ranks; /* where refinements pay, NULL: not measured */
    struct sl_strmap *by_name;  /* name with its NUL -> tensor; use sl_pack_find */
};

/* extra_dirs[n_extra]: --bank-dir folders searched before the recorded one; may be NULL. One that does
 * not exist is an error: its drive is missing. A bank that lies in several of the folders is one bank
 * with copies. */
int sl_pack_open(struct sl_pack **out, const char *dir, const char *const *extra_dirs, int n_extra,
                 struct sl_err *err);
void sl_pack_close(struct sl_pack *p);
const struct sl_tensor *sl_pack_find(const struct sl_pack *p, const char *name); /* trunk; NULL */
const struct sl_tensor *sl_pack_find_vision(const struct sl_pack *p, const char *name); /* NULL */

/* Total bytes of all distinct banks; bytes of weights; for reports. */
uint64_t sl_pack_bank_bytes(const struct sl_pack *p);

/* Views into a record that lies at `record`: planes -> matrices. base_only is for two-plane formats. */
void sl_record_views(const struct sl_bank_entry *e, const uint8_t *record, int latent, int width,
                     struct sl_mat out[SL_N_MATS]);

/* verify: structure and sizes are sl_pack_open's work; this reads every byte of trunk, vision and banks
 * once, in pieces of at most 32 MiB a worker, in parallel on `pool` (may be NULL), and checks every
 * crc and that padding is zero. Each fault is one line, "experts/L003.bank: expert 17: crc32 ...,
 * expected ..." or "trunk.bin: TENSOR: ...", handed to on_fault from the calling thread in file order.
 * With on_fault NULL it stops at the first. Any fault: SL_E_PACK (SL_E_IO when the drive failed) with
 * the first line in err. Progress goes to the terminal; SL_E_INTR within a piece a worker. */
struct sl_pool;
struct sl_verify_report {
    uint64_t bytes_read, records, tensors, faults;
    double seconds;
};
int sl_pack_verify(const struct sl_pack *p, struct sl_pool *pool,
                   void (*on_fault)(void *ctx, const char *line), void *ctx,
                   struct sl_verify_report *report, struct sl_err *err);

#endif
