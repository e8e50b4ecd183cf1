/* Where a checkpoint may lie and how its files may be named; which files are missed and which are in
 * excess. Contents stay those of tiny-a. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "tests/convert/checkpoint_copy.h"

#define INDEX "model.safetensors.index.json"

static struct sl_source *open_ok(const char *dir, const struct sl_source_opts *opts)
{
    struct sl_err err = {0};
    struct sl_source *s = NULL;
    if (sl_source_open(&s, dir, opts, &err)) fail_msg("%s", err.text);
    return s;
}

static void plain_folder(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    struct sl_source *s = open_ok(c.dir, NULL);
    assert_int_equal(s->n_shards, 10);
    assert_int_equal(s->n_tensors, 1386);
    assert_string_equal(s->prefix, "language_model.");
    assert_int_equal(strlen(s->sha256), 64);
    /* The index says the same about the sum. */
    cJSON *index = cc_load(&c, INDEX);
    cJSON *meta = cJSON_GetObjectItemCaseSensitive(index, "metadata");
    assert_int_equal(s->payload_bytes,
                     cJSON_GetObjectItemCaseSensitive(meta, "total_size")->valuedouble);
    cJSON_Delete(index);
    for (int i = 0; i < s->n_shards; i++) {
        assert_string_equal(s->shards[i].name, cc_shard_name(i + 1));
        assert_true(s->shards[i].fd >= 0);
    }
    static const char *const extras[] = {"README.md", "config.json", "generation_config.json",
                                         "tiktoken.model", "tokenizer_config.json"};
    assert_int_equal(s->n_extra_files, 5);
    for (int i = 0; i < 5; i++) assert_string_equal(s->extra_files[i], extras[i]);
    for (uint32_t i = 1; i < s->n_tensors; i++) {
        const struct sl_src_tensor *a = &s->tensors[i - 1];
        const struct sl_src_tensor *b = &s->tensors[i];
        assert_true(a->shard < b->shard || (a->shard == b->shard && a->offset < b->offset));
    }
    sl_source_close(s);
    char slashes[400];
    snprintf(slashes, sizeof slashes, "%s//", c.dir);
    s = open_ok(slashes, NULL);
    assert_string_equal(s->dir, c.dir);
    sl_source_close(s);
    cc_close(&c);
}

/* Every tensor's bytes, read by name, equal the bytes at the header's offsets. */
static void tensors_are_read_by_name(void **state)
{
    (void)state;
    struct cc_copy c;
    struct sl_err err = {0};
    cc_open(&c);
    struct sl_source *s = open_ok(c.dir, NULL);
    for (int i = 0; i < s->n_shards; i++) {
        struct cc_shard sh;
        cc_shard_load(&c, s->shards[i].name, &sh);
        for (cJSON *v = sh.header->child; v; v = v->next) {
            if (!strcmp(v->string, "__metadata__")) continue;
            const cJSON *pair = cJSON_GetObjectItemCaseSensitive(v, "data_offsets");
            size_t from = (size_t)pair->child->valuedouble;
            size_t to = (size_t)pair->child->next->valuedouble;
            const struct sl_src_tensor *t = sl_source_find(s, v->string + strlen(s->prefix));
            assert_non_null(t);
            assert_string_equal(t->name, v->string);
            assert_int_equal(t->bytes, to - from);
            uint8_t *buf = malloc(t->bytes);
            assert_non_null(buf);
            assert_int_equal(sl_source_read(s, t, 0, buf, t->bytes, &err), 0);
            assert_memory_equal(buf, sh.data + from, t->bytes);
            uint64_t half = t->bytes / 2;
            assert_int_equal(sl_source_read(s, t, half, buf, t->bytes - half, &err), 0);
            assert_memory_equal(buf, sh.data + from + half, t->bytes - half);
            free(buf);
        }
        cJSON_Delete(sh.header);
        free(sh.data);
    }
    assert_null(sl_source_find(s, "model.layers.9.input_layernorm.weight"));
    assert_null(sl_source_find(s, "language_model.model.norm.weight"));
    sl_source_close(s);
    cc_close(&c);
}

static void experts_come_in_the_stated_order(void **state)
{
    (void)state;
    static const char *const ends[6] = {"w1.weight_packed", "w1.weight_scale",  "w3.weight_packed",
                                        "w3.weight_scale",  "w2.weight_packed", "w2.weight_scale"};
    struct cc_copy c;
    cc_open(&c);
    struct sl_source *s = open_ok(c.dir, NULL);
    for (int e = 0; e < s->cfg.n_experts; e++) {
        const struct sl_src_tensor *t[6];
        sl_source_expert(s, 5, e, t);
        for (int i = 0; i < 6; i++) {
            char name[160];
            snprintf(name, sizeof name,
                     "language_model.model.layers.5.block_sparse_moe.experts.%d.%s", e, ends[i]);
            assert_string_equal(t[i]->name, name);
        }
    }
    sl_source_close(s);
    cc_close(&c);
}

static void names_without_prefix(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    cc_remove(&c, INDEX);
    for (int i = 1; i <= 10; i++) {
        struct cc_shard s;
        cc_shard_load(&c, cc_shard_name(i), &s);
        for (cJSON *v = s.header->child; v; v = v->next)
            if (!strncmp(v->string, "language_model.", 15))
                memmove(v->string, v->string + 15, strlen(v->string + 15) + 1);
        cc_shard_save(&c, cc_shard_name(i), &s);
    }
    struct sl_source *s = open_ok(c.dir, NULL);
    assert_string_equal(s->prefix, "");
    assert_non_null(sl_source_find(s, "model.norm.weight"));
    sl_source_close(s);
    cc_close(&c);
}

/* Moves every file to blobs/N and links it from snapshots/REV, as a download cache does. */
static void make_cache(struct cc_copy *c, char cache[300], char snapshot[400])
{
    struct sl_err err = {0};
    struct sl_source *s = open_ok(c->dir, NULL);
    snprintf(cache, 300, "%s/models--org--tiny", c->root);
    snprintf(snapshot, 400, "%s/snapshots/0123abcd", cache);
    char dir[400];
    snprintf(dir, sizeof dir, "%s/blobs", cache);
    assert_int_equal(sl_make_dirs(dir, &err), 0);
    assert_int_equal(sl_make_dirs(snapshot, &err), 0);
    snprintf(dir, sizeof dir, "%s/refs", cache);
    assert_int_equal(sl_make_dirs(dir, &err), 0);
    int n = s->n_shards + s->n_extra_files + 1;
    for (int i = 0; i < n; i++) {
        const char *name = i < s->n_shards ? s->shards[i].name
                           : i < n - 1     ? s->extra_files[i - s->n_shards]
                                           : INDEX;
        char blob[400];
        char link[800];
        char target[64];
        snprintf(blob, sizeof blob, "%s/blobs/%d", cache, i);
        snprintf(link, sizeof link, "%s/%s", snapshot, name);
        snprintf(target, sizeof target, "../../blobs/%d", i);
        assert_int_equal(rename(cc_path(c, name), blob), 0);
        assert_int_equal(symlink(target, link), 0);
    }
    sl_source_close(s);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void expect_refused_dir(const char *dir, const char *part)
{
    struct sl_err err = {0};
    struct sl_source *s = NULL;
    assert_int_equal(sl_source_open(&s, dir, NULL, &err), SL_E_SOURCE);
    cc_expect_text(&err, SL_E_SOURCE, (const char *const[]){part, NULL});
}

static void cache_folder_with_links(void **state)
{
    (void)state;
    struct cc_copy c;
    char cache[300];
    char snapshot[400];
    char path[800];
    cc_open(&c);
    struct sl_source *plain = open_ok(c.dir, NULL);
    char sha[65];
    memcpy(sha, plain->sha256, sizeof sha);
    sl_source_close(plain);
    make_cache(&c, cache, snapshot);

    struct sl_source *s = open_ok(snapshot, NULL); /* the snapshot itself */
    assert_string_equal(s->sha256, sha);           /* links change nothing */
    assert_int_equal(s->n_extra_files, 5);
    sl_source_close(s);

    s = open_ok(cache, NULL); /* one snapshot, no refs/main */
    assert_string_equal(s->dir, snapshot);
    sl_source_close(s);

    snprintf(path, sizeof path, "%s/snapshots/ffff", cache);
    assert_int_equal(mkdir(path, 0777), 0);
    expect_refused_dir(cache, "2 snapshots and no refs/main");

    write_text(cache, "refs/main", "0123abcd\n");
    s = open_ok(cache, NULL);
    assert_string_equal(s->dir, snapshot);
    assert_string_equal(s->sha256, sha);
    sl_source_close(s);

    write_text(cache, "refs/main", "../../etc");
    expect_refused_dir(cache, "does not name a snapshot");
    write_text(cache, "refs/main", "gone");
    expect_refused_dir(cache, "snapshots/gone: refs/main names this snapshot, but it is missing");
    write_text(cache, "refs/main", "ffff");
    expect_refused_dir(cache, "holds no config.json");

    /* A link whose blob was never downloaded. */
    snprintf(path, sizeof path, "%s/blobs/3", cache);
    assert_int_equal(unlink(path), 0);
    expect_refused_dir(snapshot, "1 of 10 shards missing: model-00004-of-000010.safetensors");
    cc_close(&c);
}

static void index_is_optional(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    struct sl_source *with = open_ok(c.dir, NULL);
    cc_remove(&c, INDEX);
    struct sl_source *without = open_ok(c.dir, NULL);
    assert_string_equal(with->sha256, without->sha256);
    assert_int_equal(with->n_tensors, without->n_tensors);
    sl_source_close(with);
    sl_source_close(without);
    cc_close(&c);
}

static void one_file_holds_all(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    cc_remove(&c, INDEX);
    struct cc_shard all;
    cc_shard_load(&c, cc_shard_name(1), &all);
    for (int i = 2; i <= 10; i++) {
        struct cc_shard s;
        cc_shard_load(&c, cc_shard_name(i), &s);
        cJSON_DeleteItemFromObjectCaseSensitive(s.header, "__metadata__");
        while (s.header->child) {
            cJSON *v = cJSON_DetachItemViaPointer(s.header, s.header->child);
            const cJSON *pair = cJSON_GetObjectItemCaseSensitive(v, "data_offsets");
            double base = (double)all.bytes;
            char name[200];
            snprintf(name, sizeof name, "%s", v->string);
            cc_set_offsets(v, base + pair->child->valuedouble,
                           base + pair->child->next->valuedouble);
            assert_true(cJSON_AddItemToObject(all.header, name, v));
        }
        all.data = realloc(all.data, all.bytes + s.bytes);
        assert_non_null(all.data);
        memcpy(all.data + all.bytes, s.data, s.bytes);
        all.bytes += s.bytes;
        cJSON_Delete(s.header);
        free(s.data);
    }
    for (int i = 1; i <= 10; i++) cc_remove(&c, cc_shard_name(i));
    cc_shard_save(&c, "model.safetensors", &all);
    struct sl_source *s = open_ok(c.dir, NULL);
    assert_int_equal(s->n_shards, 1);
    assert_int_equal(s->n_tensors, 1386);
    sl_source_close(s);
    cc_close(&c);
}

static void missing_shards_are_listed(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    cc_expect_ok(&c);
    cc_remove(&c, cc_shard_name(4));
    cc_expect_refused(&c, c.dir, "1 of 10 shards missing: model-00004-of-000010.safetensors", NULL);
    cc_remove(&c, cc_shard_name(10));
    cc_remove(&c, cc_shard_name(1));
    const char *three = "3 of 10 shards missing: model-00001-of-000010.safetensors, "
                        "model-00004-of-000010.safetensors, model-00010-of-000010.safetensors";
    cc_expect_refused(&c, three, NULL);
    cc_remove(&c, INDEX); /* the numbers in the names say the same */
    cc_expect_refused(&c, three, NULL);
    for (int i = 1; i <= 10; i++)
        if (i != 4 && i != 10 && i != 1) cc_remove(&c, cc_shard_name(i));
    cc_expect_refused(&c, "holds no *.safetensors file", NULL);
    cc_close(&c);
}

static void long_lists_are_cut_with_a_count(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    cc_remove(&c, INDEX);
    for (int i = 1; i <= 10; i++) cc_remove(&c, cc_shard_name(i));
    cc_write(&c, "model-00001-of-00500.safetensors", "x", 1);
    cc_expect_refused(&c, "499 of 500 shards missing: model-00002-of-00500.safetensors, ", " and ",
                      " more", NULL);
    cc_close(&c);
}

static void files_in_excess(void **state)
{
    (void)state;
    struct cc_copy c;
    size_t len;
    cc_open(&c);
    char *shard = cc_read(&c, cc_shard_name(3), &len);
    cc_write(&c, "extra.safetensors", shard, len);
    cc_expect_refused(&c, "1 file that " INDEX " does not name: extra.safetensors", NULL);
    cc_remove(&c, INDEX);
    cc_expect_refused(&c, "does not belong to the set", NULL);
    cc_remove(&c, "extra.safetensors");
    cc_write(&c, "model-00011-of-000010.safetensors", shard, len);
    cc_expect_refused(&c, "model-00011-of-000010.safetensors", "does not belong to the set", NULL);
    cc_remove(&c, "model-00011-of-000010.safetensors");
    cc_write(&c, ".cache.safetensors", shard, len); /* hidden files are nobody's shards */
    cc_expect_ok(&c);
    free(shard);
    cc_close(&c);
}

static void not_regular_files(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    cc_remove(&c, cc_shard_name(2));
    assert_int_equal(mkfifo(cc_path(&c, cc_shard_name(2)), 0666), 0);
    cc_expect_refused(&c, "1 of 10 shards missing: model-00002", NULL); /* and does not hang */
    cc_remove(&c, cc_shard_name(2));
    assert_int_equal(mkdir(cc_path(&c, cc_shard_name(2)), 0777), 0);
    cc_expect_refused(&c, "1 of 10 shards missing: model-00002", NULL);
    cc_close(&c);
}

static void not_a_checkpoint(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    expect_refused_dir("build/no-such-folder", "No such file or directory");
    expect_refused_dir(cc_path(&c, "config.json"), "is not a folder");
    expect_refused_dir(c.root, "holds no config.json");
    cc_close(&c);
}

/* A shard freed by an earlier run is opened from its saved header: same tensors, same identity. */
static void saved_headers_stand_in(void **state)
{
    (void)state;
    struct cc_copy c;
    struct sl_err err = {0};
    char saved[300];
    cc_open(&c);
    snprintf(saved, sizeof saved, "%s/saved", c.root);
    assert_int_equal(mkdir(saved, 0777), 0);
    const struct sl_source_opts opts = {.saved_headers_dir = saved};
    struct sl_source *before = open_ok(c.dir, &opts);
    uint8_t byte;
    for (int pass = 0; pass < 2; pass++) { /* with the index, then without */
        int number = pass ? 9 : 2;
        const struct sl_shard *sh = &before->shards[number - 1];
        size_t len;
        char *file = cc_read(&c, sh->name, &len);
        char path[700];
        snprintf(path, sizeof path, "%s/%s.header", saved, sh->name);
        for (int i = 0; i < 8; i++) /* size goes where the data began */
            file[sh->header_bytes + (uint64_t)i] = (char)((uint64_t)len >> (8 * i));
        assert_int_equal(sl_write_file(path, file, sh->header_bytes + 8, &err), 0);
        free(file);
        cc_remove(&c, sh->name);
        cc_expect_refused(&c, "shards missing", sh->name, NULL); /* without the saved headers */
        struct sl_source *s = open_ok(c.dir, &opts);
        assert_string_equal(s->sha256, before->sha256);
        assert_int_equal(s->n_tensors, before->n_tensors);
        assert_int_equal(s->shards[number - 1].fd, -1);
        assert_int_equal(s->shards[number - 1].bytes, sh->bytes);
        const struct sl_src_tensor *gone = NULL;
        for (uint32_t i = 0; i < s->n_tensors && !gone; i++)
            if ((int)s->tensors[i].shard == number - 1) gone = &s->tensors[i];
        assert_non_null(gone);
        assert_int_equal(sl_source_read(s, gone, 0, &byte, 1, &err), SL_E_SOURCE);
        assert_non_null(strstr(err.text, "freed by an earlier run"));
        sl_source_close(s);
        if (!pass) cc_remove(&c, INDEX);
    }
    char path[700];
    snprintf(path, sizeof path, "%s/%s.header", saved, cc_shard_name(9));
    assert_int_equal(truncate(path, 100), 0);
    struct sl_source *s = NULL;
    assert_int_equal(sl_source_open(&s, c.dir, &opts, &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "is not a saved header"));
    sl_source_close(before);
    cc_close(&c);
}

/* The identity notices the config, a header, a size and a name; not the weights. */
static void identity(void **state)
{
    (void)state;
    struct cc_copy c;
    size_t len;
    cc_open(&c);
    struct sl_source *s = open_ok(c.dir, NULL);
    char sha[65];
    memcpy(sha, s->sha256, sizeof sha);
    sl_source_close(s);

    char *shard = cc_read(&c, cc_shard_name(1), &len);
    shard[len - 1] ^= 1;
    cc_write(&c, cc_shard_name(1), shard, len);
    s = open_ok(c.dir, NULL);
    assert_string_equal(s->sha256, sha);
    sl_source_close(s);
    free(shard);

    char *config = cc_read(&c, "config.json", &len);
    config[len] = '\n';
    cc_write(&c, "config.json", config, len + 1);
    s = open_ok(c.dir, NULL);
    assert_string_not_equal(s->sha256, sha);
    sl_source_close(s);
    cc_write(&c, "config.json", config, len);
    free(config);

    struct cc_shard sh; /* the same tensors under a header with other metadata */
    cc_shard_load(&c, cc_shard_name(2), &sh);
    cJSON *meta = cJSON_GetObjectItemCaseSensitive(sh.header, "__metadata__");
    assert_non_null(cJSON_AddStringToObject(meta, "note", "another"));
    cc_shard_save(&c, cc_shard_name(2), &sh);
    s = open_ok(c.dir, NULL);
    assert_string_not_equal(s->sha256, sha);
    sl_source_close(s);
    cc_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_folder),
        cmocka_unit_test(tensors_are_read_by_name),
        cmocka_unit_test(experts_come_in_the_stated_order),
        cmocka_unit_test(names_without_prefix),
        cmocka_unit_test(cache_folder_with_links),
        cmocka_unit_test(index_is_optional),
        cmocka_unit_test(one_file_holds_all),
        cmocka_unit_test(missing_shards_are_listed),
        cmocka_unit_test(long_lists_are_cut_with_a_count),
        cmocka_unit_test(files_in_excess),
        cmocka_unit_test(not_regular_files),
        cmocka_unit_test(not_a_checkpoint),
        cmocka_unit_test(saved_headers_stand_in),
        cmocka_unit_test(identity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
