/* A machine as the planner sees it: one JSON file a machine class (boards/), or one that `probe` wrote.
 *
 * Only what the cost model uses is in it. Figures of public specifications carry measured = false and
 * a source; a probe's carry measured = true and say how they were taken. Unknown keys are refused: a
 * misspelt bandwidth must not become a default. boards/schema.json states the same for editors; the
 * test of this module holds the two together. */
#ifndef SL_OFFLOAD_BOARD_H
#define SL_OFFLOAD_BOARD_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "kernels/format.h"

enum { SL_BOARD_DRIVES = 8, SL_BOARD_DEPTHS = 8, SL_BOARD_MULS = 8, SL_BOARD_TEXT = 640 };

struct sl_board_drive {
    char name[64];
    char path[512];        /* "" when the file names none */
    uint64_t record_bytes; /* at which the figures hold */
    int n_depths;
    struct {
        int depth;   /* reads in flight, ascending */
        double gbps; /* 10^9 bytes a second */
    } read[SL_BOARD_DEPTHS];
};

/* Matrix products of this build, all cores together, 10^9 weights a second. */
struct sl_board_mul {
    enum sl_fmt fmt;
    double decode;  /* one token a call */
    double prefill; /* a weight counts once a token, many tokens a call */
};

struct sl_board {
    char name[64], title[160], source[SL_BOARD_TEXT];
    bool measured;
    struct {
        int cores;
        char isa[64];
        int n_muls; /* 0: not measured, the cost model assumes a rate a core and says so */
        struct sl_board_mul mul[SL_BOARD_MULS];
    } cpu;
    struct {
        uint64_t bytes;
        double read_gbps;
        double copy_gbps; /* bytes read plus written, 0: not known */
        int numa_nodes;
        bool unified; /* one pool for CPU and GPU */
    } memory;
    int n_drives;
    struct sl_board_drive drive[SL_BOARD_DRIVES];
    struct {
        char name[96]; /* "" without a GPU */
        uint64_t vram_bytes;
        double vram_gbps, link_gbps; /* 0: not known; of a unified board both are its memory's */
    } gpu;
    double power_w; /* of the whole machine under load, 0: not known */
    struct {
        bool given;
        enum sl_fmt experts, trunk;
        uint64_t ram_bytes, vram_bytes; /* 0: what the machine allows; none */
        uint64_t ctx;
    } recipe;
};

/* file is named in errors (SL_E_SOURCE): key, wanted and found. */
int sl_board_from_json(struct sl_board *b, const cJSON *root, const char *file, struct sl_err *err);
cJSON *sl_board_to_json(const struct sl_board *b); /* NULL: no memory */

/* A path (it holds '/' or ends in ".json"), or a name looked for as NAME.json in $SLUICE_BOARDS,
 * boards/ here, boards/ beside the program's folder and ../share/sluice/boards. SL_E_SOURCE lists the
 * names there are. */
int sl_board_open(struct sl_board *b, const char *name_or_path, struct sl_err *err);

/* Best figure over all depths of one drive, and of all drives together. */
double sl_board_drive_gbps(const struct sl_board_drive *d);
double sl_board_drives_gbps(const struct sl_board *b);

#endif
