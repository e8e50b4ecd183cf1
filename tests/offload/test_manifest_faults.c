/* A pack.json that lies or lacks something is refused with the place and the reason; the same pack
 * without the change opens. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/offload/pack_maker.h"

/* The node at "tensors/NAME/shape/0"; *parent holds it. NULL when it is not there. */
static cJSON *at_path(cJSON *root, const char *path, cJSON **parent, char last[128])
{
    char copy[256];
    char *save = NULL;
    cJSON *node = root;
    *parent = NULL;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *step = strtok_r(copy, "/", &save); step; step = strtok_r(NULL, "/", &save)) {
        assert_non_null(node);
        *parent = node;
        snprintf(last, 128, "%s", step);
        node = cJSON_IsArray(node) ? cJSON_GetArrayItem(node, atoi(step))
                                   : cJSON_GetObjectItemCaseSensitive(node, step);
    }
    return node;
}

/* fresh in the place of node, or added where there is none. */
static void replace(cJSON *parent, const char *key, cJSON *node, cJSON *fresh)
{
    assert_non_null(fresh);
    if (node && cJSON_IsArray(parent))
        assert_true(cJSON_ReplaceItemInArray(parent, atoi(key), fresh));
    else if (node)
        assert_true(cJSON_ReplaceItemInObjectCaseSensitive(parent, key, fresh));
    else
        assert_true(cJSON_AddItemToObject(parent, key, fresh));
}

/* change: NULL deletes, "+N" adds to a number, "=NAME" renames, else JSON that replaces. */
static void change_json(cJSON *root, const char *path, const char *change)
{
    cJSON *parent;
    char key[128];
    cJSON *node = at_path(root, path, &parent, key);
    if (!change) {
        assert_non_null(node);
        cJSON_Delete(cJSON_DetachItemViaPointer(parent, node));
    } else if (*change == '+') {
        assert_true(cJSON_IsNumber(node));
        replace(parent, key, node,
                cJSON_CreateNumber(cJSON_GetNumberValue(node) + atof(change + 1)));
    } else if (*change == '=') {
        assert_non_null(node);
        cJSON_AddItemToObject(parent, change + 1, cJSON_DetachItemViaPointer(parent, node));
    } else {
        replace(parent, key, node, cJSON_Parse(change));
    }
}

#define NORM "tensors/model.norm.weight"
#define HEAD "tensors/lm_head.weight"
#define QPRJ "tensors/model.layers.2.self_attn.q_proj.weight"

static const struct {
    const char *path, *change; /* change_json() */
    const char *w1, *w2;       /* words of the refusal */
} lies[] = {
    {"format", "\"other\"", "format", "other"},
    {"version", "2", "version", "2, this build reads version 1"},
    {"version", "0", "version", "0"},
    {"source/sha256", "\"beef\"", "source.sha256", "beef"},
    {"experts", "\"q9\"", "experts", "q9"},
    {"trunk", "7", "trunk", "string"},
    {"config/top_k", NULL, "top_k", "missing"},
    {"config/top_k", "6", "top_k", "6 of 5"},
    {"config/n_experts", "6", "experts/L001.bank: n_experts", "5, expected 6"},
    {"config/latent_size", "128", "experts/L001.bank: expert 0", "bytes 12288, expected"},
    {"layers/3", NULL, "layers", "3 entries for 4"},
    {"layers/2/offset", "1e15", "layers[2]", "trunk.bin has"},
    {"layers/2/offset", "100", "layers[2]", "multiple of 4096"},
    {"layers/2/bytes", "1e15", "layers[2]", "trunk.bin has"},
    {"layers/2/bytes", "4096", "outside the range of its layer", "model.layers.2."},
    {"layers/2/offset", "+4096", "outside the range of its layer", "model.layers.2.input"},
    {"layers/2", "[]", "offset", "missing"},
    {"globals/bytes", "1e15", "globals", "trunk.bin has"},
    {"globals/bytes", "+-4096", "outside the range of the globals", "lm_head.weight"},
    {"banks/3", NULL, "banks", "3 entries for 4"},
    {"banks/2", "null", "banks[2]", "layer 2 has routed experts"},
    {"banks/2", "2", "banks[2]", "object"},
    {"banks/0", "{\"dir\":\"experts\",\"file\":\"L001.bank\"}", "banks[0]", "no routed experts"},
    {"banks/2/file", "\"../../L002.bank\"", "banks[2]", "not a file name"},
    {"banks/2/file", "\"..\"", "banks[2]", "not a file name"},
    {"banks/2/file", "\"\"", "banks[2]", "not a file name"},
    {"banks/2/file", "\"L777.bank\"", "1 bank file not found", "experts/L777.bank"},
    {NORM, "5", "model.norm.weight", "object"},
    {NORM "/fmt", "\"bf17\"", "model.norm.weight", "bf17"},
    {NORM "/fmt", "\"m4\"", "model.norm.weight", "m4"},
    {NORM "/fmt", "\"f32\"", "model.norm.weight",
     "bytes 160, but its shape in format f32 takes 320"},
    {QPRJ "/shape/0", "49", "q_proj", "takes 7840"},
    {QPRJ "/shape/0", "0", "q_proj", "shape[0]"},
    {QPRJ "/shape/0", "-48", "q_proj", "shape[0]"},
    {QPRJ "/shape/0", "48.5", "q_proj", "shape[0]"},
    {QPRJ "/shape/0", "\"48\"", "q_proj", "shape[0]"},
    {QPRJ "/shape/0", "1e300", "q_proj", "shape[0]"},
    {QPRJ "/shape", "[]", "q_proj", "empty"},
    {QPRJ "/shape", "[1,1,1,48,80]", "q_proj", "more than 4"},
    /* (2^31-1)^4 leaves 64 bits; the next product is 2^64, which is 0 when nobody checks. */
    {QPRJ "/shape", "[2147483647,2147483647,2147483647,2147483647]", "q_proj", "impossible"},
    {QPRJ "/shape", "[65536,65536,1073741824,2]", "q_proj", "impossible"},
    {NORM "/offset", "+64", "model.norm.weight", "multiple of 4096"},
    {NORM "/offset", "+-4096", "lies inside", "model.embed_tokens.weight"},
    {HEAD "/offset", "+40960", "lm_head.weight", "trunk.bin has"},
    {HEAD "/offset", "9007199254736896", "lm_head.weight", "trunk.bin has"},
    {HEAD "/offset", "9007199254740994", "offset", "9007199254740994"},
    {HEAD "/offset", "0", "lm_head.weight", "lies inside"},
    {HEAD "/bytes", "-1", "lm_head.weight", "bytes"},
    {NORM "/crc32", "\"1234567\"", "model.norm.weight", "8 lower-case hex"},
    {NORM "/crc32", "\"ABCDEF01\"", "model.norm.weight", "8 lower-case hex"},
    {NORM "/crc32", "\" 1234567\"", "model.norm.weight", "8 lower-case hex"},
    {NORM "/crc32", "5", "crc32", "string"},
    {QPRJ, "=model.layers.4.q", "model.layers.4.q", "the model has 4"},
    {QPRJ, "=model.layers.x.q", "model.layers.x.q", "no such layer"},
    {QPRJ, "=model.layers.02.q", "model.layers.02.q", "no such layer"},
    {QPRJ, "=model.layers.99999999999.q", "no such layer", "the model has 4"},
    {QPRJ, "=other", "other", "outside the range of the globals"},
    {"trunk_bytes", "+4096", "trunk.bin", "it is cut"},
    {"trunk_bytes", "+-4096", "globals", "trunk.bin has"},
    {"slot_bytes", "8192", "experts/L001.bank: expert 0", "slot_bytes of the pack is 8192"},
    {"slot_bytes", "16384", "slot_bytes", "largest record of the banks has 12288"},
    {"vision_bytes", "+-4096", "vision", "vision.bin has"},
    {"vision_bytes", "+1", "vision.bin", "it is cut"},
    {"vision/mm_projector.proj.0.weight/fmt", "\"t8\"", "mm_projector", "vision.bin may hold"},
    {"vision/model.norm.weight",
     "{\"fmt\":\"f16\",\"shape\":[80],\"offset\":8192,\"bytes\":160,\"crc32\":\"00000000\"}",
     "model.norm.weight", "8192"},
};

static void lies_are_named(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &(struct pm_spec){.vision = true});
    size_t len;
    uint8_t *good = pm_read(pm_path(&m, "pack.json"), &len);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char what[300];
        snprintf(what, sizeof what, "%s -> %s", lies[i].path,
                 lies[i].change ? lies[i].change : "deleted");
        cJSON *root = pm_load(&m);
        change_json(root, lies[i].path, lies[i].change);
        pm_save(&m, root);
        pm_expect_refusal(m.dir, what, lies[i].w1, lies[i].w2);
        pm_write(pm_path(&m, "pack.json"), good, len);
    }
    sl_pack_close(pm_open(&m)); /* the control */
    free(good);
    pm_free(&m);
}

static void one_name_in_both_tables_is_refused(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &(struct pm_spec){.vision = true});
    cJSON *root = pm_load(&m);
    change_json(root, "vision/mm_projector.proj.0.weight", "=lm_head.weight");
    pm_save(&m, root);
    pm_expect_refusal(m.dir, "twice", "lm_head.weight", "twice");
    pm_free(&m);
}

/* Every key that readers may rely on is needed, at the top and inside. */
static void every_key_is_needed(void **state)
{
    (void)state;
    static const char *const keys[] = {"format",
                                       "version",
                                       "tool",
                                       "source",
                                       "source/sha256",
                                       "source/prefix",
                                       "source/payload_bytes",
                                       "config",
                                       "experts",
                                       "trunk",
                                       "slot_bytes",
                                       "trunk_bytes",
                                       "vision_bytes",
                                       "tensors",
                                       "vision",
                                       "layers",
                                       "globals",
                                       "globals/offset",
                                       "globals/bytes",
                                       "banks",
                                       "tensors/model.norm.weight/fmt",
                                       "tensors/model.norm.weight/shape",
                                       "tensors/model.norm.weight/offset",
                                       "tensors/model.norm.weight/bytes",
                                       "tensors/model.norm.weight/crc32",
                                       "layers/1/offset",
                                       "layers/1/bytes",
                                       "banks/1/dir",
                                       "banks/1/file"};
    struct pm_pack m;
    pm_make(&m, NULL);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        cJSON *root = pm_load(&m);
        cJSON *whole = cJSON_Duplicate(root, 1);
        change_json(root, keys[i], NULL);
        pm_save(&m, root);
        const char *key = strrchr(keys[i], '/');
        pm_expect_refusal(m.dir, keys[i], key ? key + 1 : keys[i], "missing");
        pm_save(&m, whole);
    }
    sl_pack_close(pm_open(&m));
    pm_free(&m);
}

static void folders_that_are_no_pack_are_explained(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, NULL);
    pm_expect_refusal(pm_path(&m, "none"), "no folder", "none", "no such folder");
    pm_expect_refusal(pm_path(&m, "trunk.bin"), "a file", "trunk.bin", "not a folder");
    pm_expect_refusal(pm_path(&m, "experts"), "no pack.json", "pack.json", "not a pack");
    pm_write(pm_path(&m, "experts/config.json"), "{}", 2);
    pm_expect_refusal(pm_path(&m, "experts"), "a checkpoint", "a checkpoint, not a pack",
                      "convert");
    assert_int_equal(mkdir(pm_path(&m, "experts/.convert"), 0777), 0);
    pm_expect_refusal(pm_path(&m, "experts"), "half converted", "not finished", "again");
    pm_free(&m);
}

static void what_is_no_json_is_refused(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, NULL);
    size_t len;
    uint8_t *good = pm_read(pm_path(&m, "pack.json"), &len);
    static const char *const texts[] = {"", "[]", "3", "{", "{}x", "null"};
    for (int i = 0; i < 6; i++) {
        pm_write(pm_path(&m, "pack.json"), texts[i], strlen(texts[i]));
        pm_expect_refusal(m.dir, texts[i], "pack.json", "");
    }
    for (size_t n = 0; n < len; n += 1 + n / 40) {
        pm_write(pm_path(&m, "pack.json"), good, n);
        pm_expect_refusal(m.dir, "cut", "pack.json", "");
    }
    /* A depth that would exhaust the stack of a careless parser. */
    char *deep = malloc(200000);
    assert_non_null(deep);
    memset(deep, '[', 200000);
    pm_write(pm_path(&m, "pack.json"), deep, 200000);
    pm_expect_refusal(m.dir, "deep", "pack.json", "");
    free(deep);
    /* Too large to be one: refused by its size. */
    pm_truncate(pm_path(&m, "pack.json"), (uint64_t)65 << 20);
    pm_expect_refusal(m.dir, "large", "pack.json", "larger than");
    free(good);
    pm_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_are_named),
        cmocka_unit_test(one_name_in_both_tables_is_refused),
        cmocka_unit_test(every_key_is_needed),
        cmocka_unit_test(folders_that_are_no_pack_are_explained),
        cmocka_unit_test(what_is_no_json_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
