/* The plan of a pack: every output byte's place, before the first is written.
 *
 * Built in three steps: tensors (from the inventory), scan (which matrices m4 cannot hold, which fixes
 * record sizes), sizes (banks, manifest). After that it is read-only but for the checksums, which the
 * writers fill in; the manifest renders to the same length with or without them. */
#ifndef SL_CONVERT_PLAN_PACK_H
#define SL_CONVERT_PLAN_PACK_H

#include "convert/convert.h"
#include "convert/input.h"

/* Memory for all jobs' buffers together; with the tables of a source of 497,220 tensors the process
 * stays under 2 GiB. */
#define SL_JOB_BUDGET ((uint64_t)1280 << 20)
/* The same with statistics taken on the way, the pass itself included. */
#define SL_LIVE_BUDGET ((uint64_t)3584 << 20)
/* Writers cut work into tasks of about this size: small enough that Ctrl-C takes effect within a
 * second on a slow drive, large enough that a task is one long write. */
#define SL_TASK_BYTES ((uint64_t)16 << 20)

#define SL_PLAN_LAYOUTS 27 /* three formats to the power of three matrices */

struct sl_jobs;
struct sl_calib_file;

/* One tensor of trunk.bin or vision.bin. Its bytes are `units` runs: src_unit bytes of the input become
 * dst_unit bytes of the file (a row of t8; single bytes where it is carried verbatim). */
struct sl_plan_tensor {
    struct sl_in_tensor src;
    enum sl_fmt fmt;
    uint64_t offset; /* in the file, multiple of SL_PAGE */
    uint64_t bytes;  /* without padding */
    uint64_t units, src_unit, dst_unit;
    int cols; /* of a t8 matrix, 0 otherwise */
    uint32_t crc32;
};

/* A run of tensors that is written, synced and journaled as one. */
struct sl_plan_range {
    int first, n;           /* tensors */
    uint64_t offset, bytes; /* in the file, padding included */
};

struct sl_plan_bank {
    int layer;
    char *dir;  /* as pack.json names it: "experts", or an absolute path */
    char *path; /* of the bank file */
    uint64_t file_bytes;
    /* [n_experts] layout code. m4: bit m, matrix m is stored as mxfp4 because m4 cannot hold it; mix: the
     * formats of its matrices (convert/mix_plan.h); 0 for the others. */
    uint8_t *escape;
};

struct sl_plan_file {
    struct sl_plan_tensor *tensors;
    int n_tensors;
    uint64_t bytes;
};

struct sl_w_device; /* quant/w_device.h */
struct sl_plan {
    const struct sl_input *in;
    enum sl_fmt experts, trunk_fmt;
    uint8_t trunk_of[SL_N_GROUPS];    /* SL_FMT_NONE: as trunk_fmt */
    double mix_bits;                  /* target when experts are SL_FMT_MIX */
    struct sl_calib_file *calib;      /* NULL: not calibrated from a file; owned */
    const struct sl_live_calib *live; /* NULL: no statistics are taken on the way */
    struct sl_live_price live_price;
    struct sl_w_device *device; /* encodes experts; NULL: the CPU; owned */
    uint64_t task_bytes;
    char *dst;
    struct sl_plan_file trunk, vision;
    struct sl_plan_range *layers; /* [n_layers] */
    struct sl_plan_range globals;
    struct sl_plan_range vision_range; /* n 0 when there is none */
    struct sl_plan_bank *banks;        /* one a MoE layer, by layer */
    int n_banks;
    int *bank_of;                                 /* [n_layers], -1 for a dense layer */
    struct sl_bank_entry layout[SL_PLAN_LAYOUTS]; /* by layout code */
    int n_layouts;
    uint32_t record_max; /* largest record the scan can lead to */
    uint32_t slot_bytes;
    uint64_t *extra_bytes; /* [in->n_extra] */
    uint64_t manifest_bytes;
    uint64_t escapes; /* matrices */
    char *manifest;   /* the last text made by sl_plan_manifest */
};

/* Steps of the plan. dst is the pack's folder, o->bank_dirs are absolute; nothing is written. */
int sl_plan_open(struct sl_plan **out, const struct sl_input *in, const char *dst,
                 const struct sl_convert_opts *o, struct sl_err *err);
void sl_plan_close(struct sl_plan *p); /* NULL is fine */

/* Reads every scale byte of every routed expert, in parallel: 255 is refused (SL_E_SOURCE naming
 * shard, tensor and row), and banks[].escape is filled when experts are m4. */
int sl_plan_scan(struct sl_plan *p, struct sl_jobs *jobs, struct sl_err *err);

/* Fixes bank sizes, slot_bytes and the manifest's length from banks[].escape. */
int sl_plan_fix_sizes(struct sl_plan *p, struct sl_err *err);

/* pack.json as text, owned by the plan and valid until the next call. */
int sl_plan_manifest(struct sl_plan *p, const char **text, size_t *len, struct sl_err *err);

/* Memory one job needs for this plan: scan, trunk strips and bank groups use the same buffer. */
uint64_t sl_plan_job_bytes(const struct sl_plan *p);
/* Experts of a bank that one task writes. */
int sl_plan_group(const struct sl_plan *p);

/* Sum of all output files, and of those beside trunk, vision and banks. */
uint64_t sl_plan_total_bytes(const struct sl_plan *p);
uint64_t sl_plan_sums_bytes(const struct sl_plan *p); /* of SHA256SUMS */
uint64_t sl_plan_other_bytes(const struct sl_plan *p);
uint64_t sl_plan_bank_bytes(const struct sl_plan *p);

/* The work, in the order it is done: trunk and bank of each layer, globals, vision. A unit is
 * finished as a whole or not at all. */
enum sl_unit_kind { SL_UNIT_NONE, SL_UNIT_TRUNK, SL_UNIT_BANK, SL_UNIT_VISION };
struct sl_unit {
    enum sl_unit_kind kind;
    char name[24];             /* "trunk 3", "bank 3", "globals", "vision": the journal's key */
    struct sl_plan_file *file; /* trunk or vision */
    const struct sl_plan_range *range;
    struct sl_plan_bank *bank;
    uint64_t bytes; /* written by it */
};
int sl_plan_n_units(const struct sl_plan *p);
void sl_plan_unit(struct sl_plan *p, int i, struct sl_unit *u);
/* last[n_shards]: the last unit that reads each shard, -1 for a shard that none reads. */
void sl_plan_shard_use(struct sl_plan *p, int *last);

#endif
