/* Small packs written by the tests themselves: no converter, no model, known bytes.
 *
 * Contents are a function of layer, expert and seed, so a test can say what a record must hold. Every
 * helper asserts (cmocka) on failure: a test that could not set up its scene has failed. */
#ifndef SL_TESTS_PACK_MAKER_H
#define SL_TESTS_PACK_MAKER_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "offload/pack.h"
#include "offload/store.h"

struct pm_spec {
    int n_layers;      /* 4: layer 0 is dense */
    int n_experts;     /* 5 */
    int top_k;         /* 2 */
    int latent, width; /* 96, 64: records of 3 pages, an odd number */
    bool vision;
    bool two_planes;  /* experts are p36, but for every third, which is w26 */
    bool alias_banks; /* all layers name the bank of layer 1 */
    bool alias_trunk; /* layers from 2 on name the trunk range of layer 1 */
    bool big;         /* one more global tensor of 35 MB: more than one piece */
    unsigned seed;
};

struct pm_pack {
    char dir[256]; /* the pack; removed by pm_free */
    struct pm_spec spec;
};

/* Zero fields of spec (may be NULL) take the defaults above. */
void pm_make(struct pm_pack *p, const struct pm_spec *spec);
void pm_free(struct pm_pack *p);
/* An empty folder beside it (another drive, say); removed by pm_free_dir. */
void pm_make_dir(char dir[256]);
void pm_free_dir(const char *dir);

/* "DIR/name" in one of a few static buffers. */
const char *pm_path(const struct pm_pack *p, const char *name);
/* experts/L00N.bank of a layer, with the alias resolved. */
const char *pm_bank_name(const struct pm_pack *p, int layer);

/* Formats of one expert without two_planes: m4, except up of every third expert, which is mxfp4. */
void pm_formats(int expert, enum sl_fmt fmt[SL_N_MATS]);
/* The padded record (layer, expert) must hold; free() it. */
uint8_t *pm_record(const struct pm_pack *p, int layer, int expert, uint32_t *bytes);
/* Bytes of a trunk or vision tensor; free() it. */
uint8_t *pm_tensor(const struct pm_pack *p, const struct sl_tensor *t);

/* Files as they are. */
uint8_t *pm_read(const char *path, size_t *len);
void pm_write(const char *path, const void *data, size_t len);
void pm_flip(const char *path, uint64_t at, uint8_t mask);
void pm_truncate(const char *path, uint64_t bytes);
uint64_t pm_size(const char *path);

/* pack.json as a tree. */
cJSON *pm_load(const struct pm_pack *p);
void pm_save(const struct pm_pack *p, cJSON *root); /* frees root */

/* Header and index of a bank, read, and written back with fresh crcs, so that what stands behind the
 * crcs can be tested too. The index is malloc'ed. */
void pm_read_index(const char *path, struct sl_bank_header *h, struct sl_bank_entry **index);
void pm_write_index(const char *path, const struct sl_bank_header *h,
                    const struct sl_bank_entry *index, uint32_t n_entries);

struct sl_pack *pm_open(const struct pm_pack *p); /* asserts success */
/* Whether a store can read that way in this build, on this kernel; prints "SKIP reason" if not. */
bool pm_can_read(enum sl_io io);
/* Asserts that `dir` is refused with SL_E_PACK and that the line holds both words. */
void pm_expect_refusal(const char *dir, const char *what, const char *w1, const char *w2);

#endif
