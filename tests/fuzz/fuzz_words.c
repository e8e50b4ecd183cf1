/* Targets that are text: JSON files, vocabularies, prompts, answers, requests. */
#define _GNU_SOURCE
#include "tests/fuzz/fuzz_targets.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "convert/hf_config.h"
#include "convert/safetensors.h"
#include "convert/safetensors_index.h"
#include "offload/board.h"
#include "offload/pack.h"
#include "runtime/chat_parse.h"
#include "runtime/serve_request.h"
#include "runtime/tokenizer.h"
#include "tests/offload/pack_maker.h"

#define TINY "tests/fixtures/tiny-a/"

/* A file of the tree, read once. */
struct kept {
    const char *path;
    uint8_t *p;
    size_t n;
};
static const uint8_t *keep(struct kept *k, size_t *n)
{
    if (!k->p) k->p = fz_read(k->path, &k->n);
    *n = k->n;
    return k->p;
}

/* Content 0 and no edit 1: the seeds of every text. */
static uint8_t *two_seeds(struct kept *k, int i, size_t *size)
{
    size_t n;
    const uint8_t *p = keep(k, &n);
    if (i == 0) return fz_seed(0, p, n, size);
    return i == 1 ? fz_seed(1, p, 0, size) : NULL;
}

static uint8_t *content(struct kept *k, const uint8_t *data, size_t size, size_t *n)
{
    size_t base_n;
    int fix;
    const uint8_t *base = keep(k, &base_n);
    return fz_content(data, size, base, base_n, n, &fix);
}

/* ---- checkpoint ------------------------------------------------------------------------------------ */

static struct kept shard = {.path = TINY "model-00001-of-000010.safetensors"};

static const uint8_t *header(size_t *n)
{
    size_t all;
    const uint8_t *p = keep(&shard, &all);
    *n = (size_t)sl_le64(p);
    return p + 8;
}

void fz_safetensors(const uint8_t *data, size_t size)
{
    size_t n;
    size_t base_n;
    int fix;
    struct sl_src_tensor *t = NULL;
    uint32_t n_tensors = 0;
    char *names = NULL;
    struct sl_err err = {0};
    const uint8_t *base = header(&base_n);
    uint8_t *p = fz_content(data, size, base, base_n, &n, &fix);
    uint64_t file = shard.n + n - base_n; /* data as long as the sound header's */
    int rc = sl_safetensors_parse(&t, &n_tensors, &names, (const char *)p, n, 8 + n, file, 0,
                                  "fuzz.safetensors", &err);
    fz_check(rc, &err);
    for (uint32_t i = 0; !rc && i < n_tensors; i++) {
        FZ_ASSERT(t[i].offset >= 8 + n && t[i].offset <= file);
        FZ_ASSERT(t[i].bytes <= file - t[i].offset && strlen(t[i].name) <= SL_TENSOR_NAME_MAX);
    }
    if (!rc) {
        free(t);
        free(names);
    }
    free(p);
}

uint8_t *fz_safetensors_seed(int i, size_t *size)
{
    size_t n;
    const uint8_t *p = header(&n);
    if (i == 0) return fz_seed(0, p, n, size);
    if (i == 1) return fz_seed(1, p, 0, size);
    static const char small[] =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[1,3],\"data_offsets\":[8,14]}}";
    return i == 2 ? fz_seed(0, small, sizeof small - 1, size) : NULL;
}

static struct kept index_file = {.path = TINY "model.safetensors.index.json"};

void fz_index(const uint8_t *data, size_t size)
{
    size_t n;
    struct sl_index ix;
    struct sl_err err = {0};
    uint8_t *p = content(&index_file, data, size, &n);
    const char *path = fz_path("index.json");
    fz_write(path, p, n);
    free(p);
    memset(&ix, 0, sizeof ix);
    int rc = sl_index_read(&ix, path, 8 << 20, &err);
    fz_check(rc, &err);
    if (!rc) sl_index_free(&ix);
}

uint8_t *fz_index_seed(int i, size_t *size)
{
    static const char small[] = "{\"metadata\":{\"total_size\":12},\"weight_map\":"
                                "{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}";
    if (i == 0) return fz_seed(0, small, sizeof small - 1, size);
    return i == 1 ? fz_seed(1, small, 0, size) : NULL;
}

static struct kept config_file = {.path = TINY "config.json"};

void fz_config(const uint8_t *data, size_t size)
{
    size_t n;
    struct sl_config c;
    struct sl_err err = {0};
    uint8_t *p = content(&config_file, data, size, &n);
    int rc = sl_hf_config_parse(&c, (const char *)p, n, "config.json", &err);
    fz_check(rc, &err);
    if (!rc) FZ_ASSERT(!sl_config_check(&c, "config.json", SL_E_SOURCE, NULL));
    free(p);
}

uint8_t *fz_config_seed(int i, size_t *size)
{
    return two_seeds(&config_file, i, size);
}

/* ---- pack ------------------------------------------------------------------------------------------ */

static struct pm_pack pack;
static struct kept manifest;

static void free_pack(void)
{
    pm_free(&pack);
}

static void pack_setup(void)
{
    if (manifest.p) return;
    pm_make(&pack, &(struct pm_spec){.vision = true});
    atexit(free_pack);
    manifest.p = fz_read(pm_path(&pack, "pack.json"), &manifest.n);
}

void fz_manifest(const uint8_t *data, size_t size)
{
    size_t n;
    struct sl_pack *p;
    struct sl_err err = {0};
    pack_setup();
    uint8_t *text = content(&manifest, data, size, &n);
    fz_write(pm_path(&pack, "pack.json"), text, n);
    free(text);
    int rc = sl_pack_open(&p, pack.dir, NULL, 0, &err);
    fz_check(rc, &err);
    if (rc) return;
    for (int i = 0; i < p->n_tensors; i++)
        FZ_ASSERT(p->tensors[i].offset <= p->trunk_bytes &&
                  p->tensors[i].bytes <= p->trunk_bytes - p->tensors[i].offset);
    sl_pack_close(p);
}

uint8_t *fz_manifest_seed(int i, size_t *size)
{
    pack_setup();
    return two_seeds(&manifest, i, size);
}

static struct kept board_file = {.path = "boards/desktop-64.json"};

void fz_board(const uint8_t *data, size_t size)
{
    size_t n;
    cJSON *root;
    struct sl_board b;
    struct sl_err err = {0};
    uint8_t *p = content(&board_file, data, size, &n);
    int rc = sl_json_parse(&root, (const char *)p, n, "board.json", SL_E_SOURCE, &err);
    fz_check(rc, &err);
    if (!rc) {
        rc = sl_board_from_json(&b, root, "board.json", &err);
        fz_check(rc, &err);
        cJSON_Delete(root);
    }
    free(p);
}

uint8_t *fz_board_seed(int i, size_t *size)
{
    return two_seeds(&board_file, i, size);
}

/* ---- vocabulary and text --------------------------------------------------------------------------- */

static struct kept model_file = {.path = TINY "tiktoken.model"};
static struct kept names_file = {.path = TINY "tokenizer_config.json"};

/* Ids of a text give the text back. */
static void encode(const struct sl_tokenizer *t, const char *text, size_t n)
{
    for (int markup = 0; markup < 2; markup++) {
        struct sl_ids ids = {0};
        struct sl_err err = {0};
        char *back = NULL;
        size_t len = 0;
        int rc = markup ? sl_tokenizer_encode_markup(t, text, n, &ids, &err)
                        : sl_tokenizer_encode_plain(t, text, n, &ids, &err);
        FZ_ASSERT(!rc);
        FZ_ASSERT(!sl_tokenizer_decode(t, ids.v, ids.n, &back, &len, &err));
        FZ_ASSERT(len == n && !memcmp(back, text, n));
        for (size_t i = 0; i < ids.n && !markup; i++)
            FZ_ASSERT(!sl_tokenizer_is_control(t, ids.v[i]));
        free(back);
        sl_ids_free(&ids);
    }
}

static void open_vocab(const uint8_t *model, size_t model_n, const uint8_t *names, size_t names_n)
{
    struct sl_tokenizer *t;
    struct sl_err err = {0};
    fz_write(fz_path("tiktoken.model"), model, model_n);
    fz_write(fz_path("tokenizer_config.json"), names, names_n);
    int rc = sl_tokenizer_open(&t, fz_dir(), SL_TOKENIZER_VOCAB_AUTO, SL_E_SOURCE, &err);
    fz_check(rc, &err);
    if (rc) return;
    static const char text[] = "The [BOS] kernel's <|open|>12345\xe6\xbc\xa2 \xff";
    encode(t, text, sizeof text - 1);
    sl_tokenizer_close(t);
}

void fz_tokenizer_model(const uint8_t *data, size_t size)
{
    size_t n;
    size_t names_n;
    uint8_t *p = content(&model_file, data, size, &n);
    const uint8_t *names = keep(&names_file, &names_n);
    open_vocab(p, n, names, names_n);
    free(p);
}

uint8_t *fz_tokenizer_model_seed(int i, size_t *size)
{
    return two_seeds(&model_file, i, size);
}

void fz_tokenizer_config(const uint8_t *data, size_t size)
{
    size_t n;
    size_t model_n;
    uint8_t *p = content(&names_file, data, size, &n);
    const uint8_t *model = keep(&model_file, &model_n);
    open_vocab(model, model_n, p, n);
    free(p);
}

uint8_t *fz_tokenizer_config_seed(int i, size_t *size)
{
    return two_seeds(&names_file, i, size);
}

static struct sl_tokenizer *nano;

static void close_nano(void)
{
    sl_tokenizer_close(nano);
}

static void nano_setup(void)
{
    struct sl_err err = {0};
    if (nano) return;
    FZ_ASSERT(!sl_tokenizer_open(&nano, "models/k3-nano", 4096, SL_E_SOURCE, &err));
    atexit(close_nano);
}

void fz_text(const uint8_t *data, size_t size)
{
    nano_setup();
    encode(nano, (const char *)data, size);
}

uint8_t *fz_text_seed(int i, size_t *size)
{
    static const char *const texts[] = {
        "HelloWorld \xe6\xbc\xa2\xe5\xad\x97\xe3\x83\x86 12345 it's", "  leading\r\n\n\ttrailing  ",
        "<|open|>message role=\"user\"<|sep|>",
        "====aaaa\xf0\x9f\x98\x80\xcc\x81\xc2\xa0 \xff\xfe"};
    if (i >= 4) return NULL;
    return fz_seed('a', texts[i], strlen(texts[i]), size);
}

/* ---- answers --------------------------------------------------------------------------------------- */

struct joined {
    size_t reasoning, content;
    int calls;
};

static int count_event(void *ctx, const struct sl_chat_event *e)
{
    struct joined *j = ctx;
    if (e->kind == SL_CHAT_EV_CALL) {
        FZ_ASSERT(e->call && e->call_index == j->calls);
        j->calls++;
        return 0;
    }
    FZ_ASSERT(e->text.n > 0);
    *(e->kind == SL_CHAT_EV_REASONING ? &j->reasoning : &j->content) += e->text.n;
    return 0;
}

/* data: two bytes an id, low numbers stand for what an answer is made of. */
static void feed(const struct sl_chat_format *f, const uint8_t *data, size_t size, bool whole,
                 struct joined *j)
{
    static const char *const words[] = {
        "think",  "response", "tools", "call",   "argument", "message", " tool", "=\"",    "\"",
        " index", " key",     " type", "string", "object",   "{}",      "1",     "number", "json"};
    enum { N_WORDS = sizeof words / sizeof *words };
    const int32_t control[] = {f->open, f->close, f->sep, f->eom};
    struct sl_chat_parser *p;
    struct sl_err err = {0};
    struct sl_ids ids = {0};
    memset(j, 0, sizeof *j);
    FZ_ASSERT(!sl_chat_parser_open(&p, f, size && data[0] & 1, count_event, j, &err));
    for (size_t i = 1; i + 1 < size; i += 2) {
        unsigned v = (unsigned)data[i] | (unsigned)data[i + 1] << 8;
        if (v < 64)
            FZ_ASSERT(!sl_ids_push(&ids, control[v % 4], &err));
        else if (v < 512)
            FZ_ASSERT(!sl_tokenizer_encode_plain(f->t, words[v % N_WORDS],
                                                 strlen(words[v % N_WORDS]), &ids, &err));
        else
            FZ_ASSERT(!sl_ids_push(&ids, (int32_t)(v % 4096), &err));
    }
    for (size_t i = 0; i < ids.n; i += whole ? ids.n : 1)
        FZ_ASSERT(!sl_chat_parse(p, ids.v + i, whole ? ids.n : 1, &err));
    FZ_ASSERT(!sl_chat_parse_end(p, &err));
    FZ_ASSERT(sl_chat_parser_message(p));
    sl_chat_parser_close(p);
    sl_ids_free(&ids);
}

void fz_chat(const uint8_t *data, size_t size)
{
    struct sl_chat_format f;
    struct sl_err err = {0};
    struct joined a;
    struct joined b;
    nano_setup();
    FZ_ASSERT(!sl_chat_format_init(&f, nano, &err));
    if (size > 4096) size = 4096;
    feed(&f, data, size, false, &a);
    feed(&f, data, size, true, &b);
    FZ_ASSERT(!memcmp(&a, &b, sizeof a)); /* however it is cut */
}

uint8_t *fz_chat_seed(int i, size_t *size)
{
    /* CLOSE think SEP OPEN response SEP; then tools and a call. Words are 64 + a multiple of 18. */
    static const uint8_t answer[] = {1,  0, 72, 0, 2,  0, 0,  0, 73, 0, 2, 0, 0, 3,
                                     1,  0, 73, 0, 2,  0, 0,  0, 74, 0, 2, 0, 0, 0,
                                     75, 0, 78, 0, 79, 0, 77, 0, 80, 0, 2, 0};
    if (i == 0) return fz_seed(1, answer, sizeof answer, size);
    return i == 1 ? fz_seed(0, answer, 14, size) : NULL;
}

/* ---- requests -------------------------------------------------------------------------------------- */

void fz_request(const uint8_t *data, size_t size)
{
    (void)sl_serve_request_fuzz(data, size);
}

uint8_t *fz_request_seed(int i, size_t *size)
{
    static const char *const bodies[] = {
        "{\"model\":\"k3\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,"
        "\"max_tokens\":5,\"temperature\":0.5,\"top_p\":0.9,\"stop\":[\"a\",\"b\"],\"seed\":7}",
        "{\"prompt\":[1,2,3],\"max_tokens\":1,\"logprobs\":2}",
        "{\"prompt\":\"text\",\"stop\":\"x\",\"n\":1}",
        "{\"messages\":[],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\",\"schema\":"
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}"
        "}"};
    if (i >= 4) return NULL;
    return fz_seed(i == 0 || i == 3 ? 0 : 1, bodies[i], strlen(bodies[i]), size);
}
