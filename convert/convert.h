/* Conversion of a checkpoint into a pack: plan, run, resume (design section 2 and 8).
 *
 * The plan fixes every output byte's place before the first is written: same source, formats and
 * version give the same bytes for every --jobs and after any kill. Before anything is written the
 * source is checked whole, scale bytes included (a matrix that m4 cannot hold changes its record's
 * size; an E8M0 byte of 255 is refused), and free space is checked. Working memory stays under 2 GiB
 * for any number of jobs. */
#ifndef SL_CONVERT_CONVERT_H
#define SL_CONVERT_CONVERT_H

#include <stdbool.h>
#include <stdio.h>
#include "convert/live_calib.h"
#include "convert/source.h"
#include "kernels/format.h"

struct sl_convert_opts {
    enum sl_fmt experts; /* SL_FMT_M4 (default), MXFP4, or a trellis format (lossy) */
    enum sl_fmt trunk;   /* SL_FMT_BF16, T8, T6 or T4 */
    /* [SL_N_GROUPS] of convert/inventory.h: the matrices of a group instead; SL_FMT_NONE: as trunk. */
    uint8_t trunk_of[SL_N_GROUPS];
    int jobs;          /* 0: one per core */
    const char *calib; /* statistics file for trellis formats, NULL: none */
    /* Statistics taken on the way instead (live_calib.h); NULL: none. Its price goes to the report. */
    const struct sl_live_calib *live;
    double mix_bits;              /* experts SL_FMT_MIX: mean bits a weight, stored */
    const char *sensitivity;      /* of calibrate --sensitivity, for a mix; NULL: layers alike */
    const char *const *bank_dirs; /* NULL/0: DST/experts */
    int n_bank_dirs;
    bool dry_run, free_source, drop_vision;
    bool cuda; /* experts w26 or w36 without statistics: encoded on the first GPU, the same bytes */
    /* Says whether the tokenizer files in dir suit the model; called before anything is written. Code:
     * what an unusable one is, SL_E_SOURCE or SL_E_PACK. NULL: not checked, carried as they are. (The
     * tokenizer belongs to the runtime, which this folder does not know.) */
    int (*check_tokenizer)(const char *dir, const struct sl_config *cfg, int code,
                           struct sl_err *err);
    uint64_t task_bytes; /* how finely work is cut; 0: 16 MiB. No byte depends on it (tests) */
};

struct sl_mix_report;
struct sl_convert_report {
    uint64_t source_bytes; /* shard files, headers included */
    uint64_t trunk_bytes, bank_bytes, vision_bytes, other_bytes,
        total_bytes;                    /* exact output sizes */
    uint64_t free_bytes, missing_bytes; /* on the target; missing 0 when it fits */
    uint64_t freed_bytes;
    int n_layers, n_banks;
    uint64_t experts, m4_escapes; /* matrices stored as mxfp4 because m4 cannot hold them */
    bool resumed;
    int jobs;                  /* after the cap by memory */
    uint64_t buffer_bytes;     /* of all jobs together */
    struct sl_live_price live; /* tokens 0: no statistics are taken on the way */
    double seconds;
    struct sl_mix_report
        *mix; /* what a mix chose (convert/mix_plan.h), the caller's; NULL: no mix, or
                                  resumed */
};

/* src: a checkpoint folder, or a lossless pack of ours (SL_E_SOURCE when it is lossy). dst: a new or
 * empty folder, or one where the same conversion was interrupted.
 * Exit code 5 (SL_E_NOSPACE) with the missing bytes when the target is too small; a dry run fills the
 * report and succeeds. An existing finished pack at dst is an error (SL_E_ARG) that says so. */
int sl_convert(const char *src, const char *dst, const struct sl_convert_opts *o,
               struct sl_convert_report *report, struct sl_err *err);

/* export --format hf: writes a released-layout folder (one shard a layer, one for the globals, vision
 * shards, index, the source's own files). A lossy pack is refused (SL_E_SOURCE, exit 3) naming the
 * first tensor that cannot be given back. */
struct sl_pack;
int sl_export_hf(const struct sl_pack *p, const char *dst, int jobs, struct sl_err *err);
/* The same, cut as task_bytes says. */
int sl_export_hf_cut(const struct sl_pack *p, const char *dst, int jobs, uint64_t task_bytes,
                     struct sl_err *err);

#endif
