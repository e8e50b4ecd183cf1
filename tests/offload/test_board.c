/* Board files: every file of boards/ reads, the schema and the reader agree key by key, and each
 * mistake is refused with the file and the key named. */
#define _GNU_SOURCE
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/json.h"
#include "offload/board.h"
#include "tests/offload/pack_maker.h"

static cJSON *load(const char *path)
{
    cJSON *root = NULL;
    struct sl_err err = {0};
    if (sl_json_read(&root, path, 1 << 20, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
    return root;
}

/* A board with every optional part. */
static cJSON *full_board(void)
{
    cJSON *b = load("boards/desktop-64.json");
    cJSON *cpu = cJSON_GetObjectItem(b, "cpu");
    cJSON *memory = cJSON_GetObjectItem(b, "memory");
    cJSON_AddItemToObject(
        cpu, "mul",
        cJSON_Parse(
            "[{\"fmt\":\"m4\",\"decode_gweights_per_s\":80,\"prefill_gweights_per_s\":64}]"));
    cJSON_AddNumberToObject(memory, "copy_gbps", 70.5);
    cJSON_AddStringToObject(cJSON_GetArrayItem(cJSON_GetObjectItem(b, "drives"), 0), "path",
                            "/data");
    cJSON_AddNumberToObject(cJSON_GetObjectItem(b, "recipe"), "vram_bytes", 2e10);
    return b;
}

/* Expects a refusal that names the file and `word`; frees root. */
static void refused(cJSON *root, const char *word)
{
    struct sl_board b;
    struct sl_err err = {0};
    int rc = sl_board_from_json(&b, root, "x.json", &err);
    cJSON_Delete(root);
    if (rc != SL_E_SOURCE) fail_msg("accepted, or another code %d, for '%s'", rc, word);
    if (!strstr(err.text, "x.json") || !strstr(err.text, word))
        fail_msg("'%s' does not name '%s'", err.text, word);
}

static void every_file_of_boards_reads(void **state)
{
    (void)state;
    int n = 0;
    DIR *d = opendir("boards");
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (len < 6 || strcmp(e->d_name + len - 5, ".json") != 0 ||
            strcmp(e->d_name, "schema.json") == 0)
            continue;
        char name[80];
        snprintf(name, sizeof name, "%.*s", (int)(len - 5), e->d_name);
        struct sl_board b;
        struct sl_err err = {0};
        if (sl_board_open(&b, name, &err)) fail_msg("%s", err.text);
        assert_string_equal(b.name, name);
        assert_false(b.measured); /* only a probe writes measured boards */
        assert_true(b.recipe.given && b.source[0]);
        assert_true(sl_board_drives_gbps(&b) > 0);
        n++;
    }
    closedir(d);
    assert_true(n >= 7);
}

static void written_and_read_back_is_the_same(void **state)
{
    (void)state;
    struct sl_board a;
    struct sl_board b;
    struct sl_err err = {0};
    cJSON *root = full_board();
    if (sl_board_from_json(&a, root, "full", &err)) fail_msg("%s", err.text);
    cJSON *again = sl_board_to_json(&a);
    assert_non_null(again);
    if (sl_board_from_json(&b, again, "again", &err)) fail_msg("%s", err.text);
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(cJSON_Compare(root, again, 1));
    cJSON_Delete(root);
    cJSON_Delete(again);
}

/* Objects of the schema and of the full board, walked side by side: what the schema requires must be
 * required here, what it allows must be in the board (so both have all keys). */
static int n_walked;
static void walk(const cJSON *schema, const cJSON *board, const char *path[], int depth)
{
    const cJSON *props = cJSON_GetObjectItem(schema, "properties");
    const cJSON *required = cJSON_GetObjectItem(schema, "required");
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(schema, "additionalProperties")));
    for (const cJSON *p = props->child; p; p = p->next) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(board, p->string);
        if (!value) fail_msg("schema.json has '%s', the reader's full board has not", p->string);
        path[depth] = p->string;
        bool needed = false;
        for (const cJSON *r = required->child; r; r = r->next)
            needed = needed || strcmp(r->valuestring, p->string) == 0;
        for (int with = 0; with < 3; with++) { /* absent; of the wrong type; an unknown twin */
            cJSON *root = full_board();
            cJSON *at = root;
            for (int i = 0; i < depth; i++) {
                at = cJSON_GetObjectItem(at, path[i]);
                if (cJSON_IsArray(at)) at = cJSON_GetArrayItem(at, 0);
            }
            if (with == 2) {
                cJSON_AddNumberToObject(at, "no_such_key", 1);
                refused(root, "no_such_key");
                continue;
            }
            cJSON_DeleteItemFromObject(at, p->string);
            if (with == 1) cJSON_AddNullToObject(at, p->string);
            if (with == 1 || needed) {
                refused(root, p->string);
                continue;
            }
            struct sl_board b;
            struct sl_err err = {0};
            if (sl_board_from_json(&b, root, "x", &err))
                fail_msg("optional '%s': %s", p->string, err.text);
            cJSON_Delete(root);
        }
        n_walked++;
        const cJSON *items = cJSON_GetObjectItem(p, "items");
        const cJSON *inner = items ? items : p;
        if (cJSON_GetObjectItem(inner, "properties"))
            walk(inner, cJSON_IsArray(value) ? cJSON_GetArrayItem(value, 0) : value, path,
                 depth + 1);
    }
    for (const cJSON *v = board->child; v; v = v->next)
        if (!cJSON_GetObjectItemCaseSensitive(props, v->string))
            fail_msg("the reader takes '%s', schema.json does not know it", v->string);
}

static void schema_and_reader_agree(void **state)
{
    (void)state;
    const char *path[8];
    cJSON *schema = load("boards/schema.json");
    cJSON *board = full_board();
    walk(schema, board, path, 0);
    cJSON_Delete(schema);
    cJSON_Delete(board);
    assert_true(n_walked > 30);
}

static void values_outside_their_range_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *at[3]; /* path, NULL-terminated */
        const char *value, *word;
    } cases[] = {
        {{"schema"}, "2", "schema"},
        {{"name"}, "\"\"", "name"},
        {{"cpu", "cores"}, "0", "cores"},
        {{"cpu", "cores"}, "1.5", "cores"},
        {{"memory", "bytes"}, "-1", "bytes"},
        {{"memory", "bytes"}, "1e300", "bytes"},
        {{"memory", "read_gbps"}, "0", "read_gbps"},
        {{"memory", "read_gbps"}, "\"fast\"", "read_gbps"},
        {{"memory", "numa_nodes"}, "0", "numa_nodes"},
        {{"memory", "unified"}, "1", "unified"},
        {{"drives"}, "[]", "drives"},
        {{"drives"}, "[1]", "drives"},
        {{"drives"}, "[{\"name\":\"a\",\"record_bytes\":4096,\"read\":[]}]", "read"},
        {{"drives"},
         "[{\"name\":\"a\",\"record_bytes\":1,\"read\":[{\"depth\":1,\"gbps\":1}]}]",
         "record_bytes"},
        {{"drives"},
         "[{\"name\":\"a\",\"record_bytes\":4096,\"read\":[{\"depth\":2,\"gbps\":1},{\"depth\":2,"
         "\"gbps\":1}]}]",
         "depth 2 after 2"},
        {{"cpu", "mul"},
         "[{\"fmt\":\"q4\",\"decode_gweights_per_s\":1,\"prefill_gweights_per_s\":1}]",
         "q4"},
        {{"recipe", "experts"}, "\"nothing\"", "nothing"},
        {{"recipe", "ram_bytes"}, "1000000000000", "ram_bytes"},
        {{"power_w"}, "-5", "power_w"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *root = full_board();
        cJSON *at = root;
        int k = 0;
        for (; cases[i].at[k + 1]; k++) at = cJSON_GetObjectItem(at, cases[i].at[k]);
        assert_true(cJSON_ReplaceItemInObject(at, cases[i].at[k], cJSON_Parse(cases[i].value)));
        refused(root, cases[i].word);
    }
    cJSON *nine = full_board();
    cJSON *drives = cJSON_GetObjectItem(nine, "drives");
    for (int i = 0; i < SL_BOARD_DRIVES; i++)
        cJSON_AddItemToArray(drives, cJSON_Duplicate(cJSON_GetArrayItem(drives, 0), 1));
    refused(nine, "more than 8 drives");
    refused(cJSON_CreateArray(), "must be an object");
}

static void names_and_paths(void **state)
{
    (void)state;
    struct sl_board b;
    struct sl_err err = {0};
    assert_int_equal(sl_board_open(&b, "no-such-board", &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "desktop-192, desktop-64, jetson-")); /* sorted */
    assert_null(strstr(err.text, "schema"));
    assert_int_equal(sl_board_open(&b, "boards/none.json", &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "boards/none.json"));
    assert_int_equal(sl_board_open(&b, "boards/desktop-64.json", &err), 0);

    char dir[256];
    char path[300];
    pm_make_dir(dir);
    snprintf(path, sizeof path, "%s/mine.json", dir);
    size_t len;
    uint8_t *text = pm_read("boards/desktop-192.json", &len);
    pm_write(path, text, len);
    assert_int_equal(setenv("SLUICE_BOARDS", dir, 1), 0);
    if (sl_board_open(&b, "mine", &err)) fail_msg("%s", err.text);
    assert_int_equal(b.n_drives, 2);
    assert_true(sl_board_drives_gbps(&b) == 2 * sl_board_drive_gbps(&b.drive[0]));
    pm_write(path, text, len / 2); /* cut */
    assert_int_equal(sl_board_open(&b, "mine", &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "mine.json"));
    unsetenv("SLUICE_BOARDS");
    free(text);
    pm_free_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_of_boards_reads),
        cmocka_unit_test(written_and_read_back_is_the_same),
        cmocka_unit_test(schema_and_reader_agree),
        cmocka_unit_test(values_outside_their_range_are_refused),
        cmocka_unit_test(names_and_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
