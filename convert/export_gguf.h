/* export --format gguf: a pack whose experts are lossless as one GGUF file (spec 9), for llama.cpp and
 * what builds on it.
 *
 *   values (hyper-parameters, vocabulary) | tensor table | trunk in inventory order | experts by layer
 *
 * Exact: experts are the released MXFP4 in the block order of GGUF; bf16 and f16 matrices stay what they
 * are, t8 becomes Q8_0 (f32 where its columns are not whole blocks), vectors, routers and taps become
 * f32. The products that GGUF stores instead of their factors are those the runtime computes, bit for
 * bit. t6 and t4 trunks are refused: GGUF has no such types. Vision tensors are left out. */
#ifndef SL_CONVERT_EXPORT_GGUF_H
#define SL_CONVERT_EXPORT_GGUF_H

#include "convert/gguf_vocab.h"
#include "offload/pack.h"

struct sl_export_gguf_opts {
    const struct sl_gguf_vocab *vocab;
    int jobs; /* 0: one per core */
    bool dry_run;
    uint64_t task_bytes; /* 0: 16 MiB; no byte depends on it (tests) */
};

struct sl_export_gguf_report {
    uint64_t header_bytes, trunk_bytes, expert_bytes, total_bytes;
    uint64_t free_bytes, missing_bytes; /* on the target */
    uint32_t n_tensors;
    double seconds;
};

/* dst must not exist. The file appears by rename once all of it is on the drive; checksums of the pack
 * are compared on the way. SL_E_SOURCE for a pack that cannot be given back, naming the tensor;
 * SL_E_NOSPACE with the missing bytes (a dry run reports them and succeeds). */
int sl_export_gguf(const struct sl_pack *p, const char *dst, const struct sl_export_gguf_opts *o,
                   struct sl_export_gguf_report *report, struct sl_err *err);

#endif
