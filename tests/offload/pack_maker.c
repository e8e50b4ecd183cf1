/* Writes packs by the layout in offload/pack_layout.h and the contract of pack.json. Deliberately
 * plain: one buffer a file, so that a mistake here is visible. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/size.h"
#include "base/version.h"
#include "tests/offload/pack_maker.h"

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

static void fill(uint8_t *to, size_t n, uint64_t key)
{
    for (size_t i = 0; i < n; i++) to[i] = (uint8_t)mix(key * 0x9e3779b97f4a7c15u + i);
}

/* ------------------------------------------------------------------ folders and files */

void pm_make_dir(char dir[256])
{
    const char *base = getenv("BUILD");
    /* On a real file system where there is one: /tmp is often memory, where O_DIRECT means nothing. */
    if (!base || access(base, W_OK)) base = access("build", W_OK) ? "/tmp" : "build";
    assert_true(snprintf(dir, 256, "%s/offload-XXXXXX", base) < 256);
    assert_non_null(mkdtemp(dir));
}

void pm_free_dir(const char *dir)
{
    sl_remove_tree(dir);
}

const char *pm_path(const struct pm_pack *p, const char *name)
{
    static char ring[8][600];
    static int at;
    char *buf = ring[at++ % 8];
    snprintf(buf, sizeof ring[0], "%s/%s", p->dir, name);
    return buf;
}

const char *pm_bank_name(const struct pm_pack *p, int layer)
{
    static char ring[4][64];
    static int at;
    char *buf = ring[at++ % 4];
    snprintf(buf, sizeof ring[0], "experts/L%03d.bank", p->spec.alias_banks ? 1 : layer);
    return buf;
}

uint8_t *pm_read(const char *path, size_t *len)
{
    char *data;
    struct sl_err err = {0};
    assert_int_equal(sl_read_file(&data, len, path, 1 << 28, SL_E_IO, &err), 0);
    return (uint8_t *)data;
}

void pm_write(const char *path, const void *data, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(sl_pwrite_all(fd, data, len, 0, path, NULL), 0);
    assert_int_equal(close(fd), 0);
}

void pm_flip(const char *path, uint64_t at, uint8_t mask)
{
    uint8_t b;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &b, 1, (off_t)at), 1);
    b ^= mask;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)at), 1);
    assert_int_equal(close(fd), 0);
}

void pm_truncate(const char *path, uint64_t bytes)
{
    assert_int_equal(truncate(path, (off_t)bytes), 0);
}

uint64_t pm_size(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

/* ------------------------------------------------------------------ banks */

void pm_formats(int expert, enum sl_fmt fmt[SL_N_MATS])
{
    for (int m = 0; m < SL_N_MATS; m++) fmt[m] = SL_FMT_M4;
    if (expert % 3 == 2) fmt[SL_UP] = SL_FMT_MXFP4;
}

static struct sl_bank_entry layout_of(const struct pm_spec *s, int expert)
{
    struct sl_bank_entry e;
    enum sl_fmt fmt[SL_N_MATS];
    pm_formats(expert, fmt);
    for (int m = 0; m < SL_N_MATS && s->two_planes; m++)
        fmt[m] = expert % 3 == 2 ? SL_FMT_W26 : SL_FMT_P36;
    assert_int_equal(sl_record_layout(&e, fmt, s->latent, s->width, NULL), 0);
    return e;
}

uint8_t *pm_record(const struct pm_pack *p, int layer, int expert, uint32_t *bytes)
{
    struct sl_bank_entry e = layout_of(&p->spec, expert);
    uint64_t bank = p->spec.alias_banks ? 1 : (uint64_t)layer;
    uint8_t *r = calloc(1, e.bytes);
    assert_non_null(r);
    for (int m = 0; m < SL_N_MATS; m++) {
        struct sl_planes z;
        int rows = m == SL_DOWN ? p->spec.latent : p->spec.width;
        int cols = m == SL_DOWN ? p->spec.width : p->spec.latent;
        assert_true(sl_fmt_planes((enum sl_fmt)e.fmt[m], (uint64_t)rows, (uint64_t)cols, &z));
        const struct sl_plane_offsets *o = &e.planes[m][0];
        uint64_t key = mix(p->spec.seed + 1) ^ (bank << 32 | (uint64_t)expert << 8 | (uint64_t)m);
        fill(r + o->codes, (size_t)z.codes, key);
        if (z.scales) fill(r + o->scales, (size_t)z.scales, key ^ 1u << 20);
        if (z.row_scales) fill(r + o->row_scales, (size_t)z.row_scales, key ^ 2u << 20);
        if (z.table) fill(r + o->table, (size_t)z.table, key ^ 3u << 20);
        sl_fmt_fine_planes((enum sl_fmt)e.fmt[m], (uint64_t)rows, (uint64_t)cols, &z);
        if (z.codes) fill(r + e.planes[m][1].codes, (size_t)z.codes, key ^ 4u << 20);
        if (z.codes) fill(r + e.planes[m][1].table, (size_t)z.table, key ^ 5u << 20);
    }
    *bytes = e.bytes;
    return r;
}

void pm_read_index(const char *path, struct sl_bank_header *h, struct sl_bank_entry **index)
{
    size_t len;
    uint8_t *file = pm_read(path, &len);
    memcpy(h, file, sizeof *h);
    size_t n = h->n_experts * sizeof **index;
    assert_true(len >= SL_PAGE + n);
    *index = malloc(n);
    assert_non_null(*index);
    memcpy(*index, file + SL_PAGE, n);
    free(file);
}

void pm_write_index(const char *path, const struct sl_bank_header *header,
                    const struct sl_bank_entry *index, uint32_t n_entries)
{
    struct sl_bank_header h = *header; /* its n_experts may lie: the entries are counted apart */
    size_t n = n_entries * sizeof *index;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    h.index_crc32 = sl_crc32(0, index, n);
    h.header_crc32 = sl_crc32(0, &h, offsetof(struct sl_bank_header, header_crc32));
    assert_int_equal(sl_pwrite_all(fd, &h, sizeof h, 0, path, NULL), 0);
    assert_int_equal(sl_pwrite_all(fd, index, n, SL_PAGE, path, NULL), 0);
    assert_int_equal(close(fd), 0);
}

static void write_bank(const struct pm_pack *p, int layer, uint32_t *most)
{
    int n = p->spec.n_experts;
    uint64_t at = sl_bank_first_record((uint32_t)n);
    struct sl_bank_entry *index = calloc((size_t)n, sizeof *index);
    char path[600];
    snprintf(path, sizeof path, "%s", pm_path(p, pm_bank_name(p, layer)));
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    assert_non_null(index);
    assert_true(fd >= 0);
    for (int x = 0; x < n; x++) {
        uint32_t bytes;
        uint8_t *r = pm_record(p, layer, x, &bytes);
        index[x] = layout_of(&p->spec, x);
        index[x].offset = at;
        sl_record_checksums(&index[x], r);
        assert_int_equal(sl_pwrite_all(fd, r, bytes, at, "bank", NULL), 0);
        if (bytes > *most) *most = bytes;
        at += bytes;
        free(r);
    }
    struct sl_bank_header h = {.magic = SL_BANK_MAGIC,
                               .version = SL_BANK_VERSION,
                               .n_experts = (uint32_t)n,
                               .index_offset = SL_PAGE,
                               .entry_bytes = sizeof *index,
                               .file_bytes = at};
    assert_int_equal(close(fd), 0);
    pm_write_index(path, &h, index, (uint32_t)n);
    free(index);
}

/* ------------------------------------------------------------------ trunk, vision, manifest */

struct item {
    const char *name; /* within a layer, or global */
    const char *fmt;
    int n_dims, shape[4];
};

/* Shapes that exercise every rule of the trunk: matrices, one-row matrices, vectors, convolution taps
 * in both spellings, padded vectors, sizes that do not fill a page. */
static const struct item layer_items[] = {
    {"input_layernorm.weight", "bf16", 1, {80}},
    {"self_attn.q_proj.weight", "bf16", 2, {48, 80}},
    {"self_attn.q_conv1d.weight", "f32", 3, {48, 1, 4}},
    {"self_attn.k_conv1d.weight", "bf16", 2, {48, 4}},
    {"self_attn.A_log", "f32", 1, {16}},
    {"self_attention_res_proj.weight", "bf16", 2, {1, 80}},
    {"mlp.gate_proj.weight", "t8", 2, {33, 80}},
};
static const struct item global_items[] = {
    {"model.embed_tokens.weight", "bf16", 2, {100, 80}},
    {"model.norm.weight", "f16", 1, {80}},
    {"lm_head.weight", "f32", 2, {100, 80}},
};
static const struct item big_item = {"model.big.weight", "bf16", 2, {17000, 1030}};
static const struct item vision_items[] = {
    {"vision_tower.patch_embed.proj.weight", "bf16", 4, {8, 3, 2, 2}},
    {"mm_projector.proj.0.weight", "bf16", 2, {8, 8}},
};
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static uint64_t item_bytes(const struct item *it)
{
    uint64_t rows = 1;
    for (int i = 0; i < it->n_dims - 1; i++) rows *= (uint64_t)it->shape[i];
    return rows * sl_fmt_row_bytes(sl_fmt_by_name(it->fmt), (uint64_t)it->shape[it->n_dims - 1]);
}

/* Bytes of a tensor follow from where it lies. bf16, f16 and f32 get ordinary numbers, so that
 * comparisons of floats mean something. */
static void tensor_content(const struct pm_pack *p, enum sl_fmt fmt, uint64_t offset, uint8_t *to,
                           size_t n)
{
    fill(to, n, mix(p->spec.seed + 77) ^ offset);
    if (fmt == SL_FMT_BF16 || fmt == SL_FMT_F16)
        for (size_t i = 1; i < n; i += 2) to[i] = (uint8_t)((to[i] & 0x81) | 0x38);
    if (fmt == SL_FMT_F32)
        for (size_t i = 3; i < n; i += 4) to[i] = (uint8_t)((to[i] & 0x81) | 0x3e);
}

uint8_t *pm_tensor(const struct pm_pack *p, const struct sl_tensor *t)
{
    uint8_t *data = malloc((size_t)t->bytes);
    assert_non_null(data);
    tensor_content(p, t->fmt, t->offset, data, (size_t)t->bytes);
    return data;
}

/* Describes `it` at `offset` in obj, writes its bytes when fd >= 0; returns the next free page. */
static uint64_t put_tensor(const struct pm_pack *p, cJSON *obj, int fd, const char *name,
                           const struct item *it, uint64_t offset)
{
    uint64_t n = item_bytes(it);
    uint8_t *data = malloc((size_t)n);
    char hex[9];
    assert_non_null(data);
    tensor_content(p, sl_fmt_by_name(it->fmt), offset, data, (size_t)n);
    assert_int_equal(sl_pwrite_all(fd, data, (size_t)n, offset, "tensor", NULL), 0);
    snprintf(hex, sizeof hex, "%08x", sl_crc32(0, data, (size_t)n));
    free(data);
    cJSON *t = cJSON_AddObjectToObject(obj, name);
    cJSON_AddStringToObject(t, "fmt", it->fmt);
    cJSON_AddItemToObject(t, "shape", cJSON_CreateIntArray(it->shape, it->n_dims));
    cJSON_AddNumberToObject(t, "offset", (double)offset);
    cJSON_AddNumberToObject(t, "bytes", (double)n);
    cJSON_AddStringToObject(t, "crc32", hex);
    return sl_align_up(offset + n, SL_PAGE);
}

static cJSON *range(uint64_t offset, uint64_t bytes)
{
    cJSON *r = cJSON_CreateObject();
    cJSON_AddNumberToObject(r, "offset", (double)offset);
    cJSON_AddNumberToObject(r, "bytes", (double)bytes);
    return r;
}

static void write_trunk(const struct pm_pack *p, cJSON *root)
{
    int fd = open(pm_path(p, "trunk.bin"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    cJSON *tensors = cJSON_AddObjectToObject(root, "tensors");
    cJSON *layers = cJSON_AddArrayToObject(root, "layers");
    uint64_t at = 0;
    uint64_t shared = 0;
    for (int l = 0; l < p->spec.n_layers; l++) {
        uint64_t start = p->spec.alias_trunk && l > 1 ? shared : at;
        uint64_t end = start;
        if (l == 1) shared = start;
        for (int i = 0; i < COUNT(layer_items); i++) {
            char name[128];
            snprintf(name, sizeof name, "model.layers.%d.%s", l, layer_items[i].name);
            end = put_tensor(p, tensors, fd, name, &layer_items[i], end);
        }
        cJSON_AddItemToArray(layers, range(start, end - start));
        if (end > at) at = end;
    }
    uint64_t start = at;
    for (int i = 0; i < COUNT(global_items); i++)
        at = put_tensor(p, tensors, fd, global_items[i].name, &global_items[i], at);
    if (p->spec.big) at = put_tensor(p, tensors, fd, big_item.name, &big_item, at);
    cJSON_AddItemToObject(root, "globals", range(start, at - start));
    cJSON_AddNumberToObject(root, "trunk_bytes", (double)at);
    assert_int_equal(ftruncate(fd, (off_t)at), 0);
    assert_int_equal(close(fd), 0);
}

static void write_vision(const struct pm_pack *p, cJSON *root)
{
    cJSON *tensors = cJSON_AddObjectToObject(root, "vision");
    uint64_t at = 0;
    if (p->spec.vision) {
        int fd = open(pm_path(p, "vision.bin"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        assert_true(fd >= 0);
        for (int i = 0; i < COUNT(vision_items); i++)
            at = put_tensor(p, tensors, fd, vision_items[i].name, &vision_items[i], at);
        assert_int_equal(ftruncate(fd, (off_t)at), 0);
        assert_int_equal(close(fd), 0);
    }
    cJSON_AddNumberToObject(root, "vision_bytes", (double)at);
}

static cJSON *config_json(const struct pm_spec *s)
{
    struct sl_config *c = calloc(1, sizeof *c);
    assert_non_null(c);
    sl_config_k3(c);
    c->n_layers = s->n_layers;
    c->n_experts = s->n_experts;
    c->top_k = s->top_k;
    c->latent_size = s->latent;
    c->moe_intermediate_size = s->width;
    c->hidden_size = 80;
    c->vocab_size = 100;
    c->bos_id = c->eos_id = c->pad_id = -1;
    cJSON *obj = sl_config_to_json(c);
    assert_non_null(obj);
    free(c);
    return obj;
}

cJSON *pm_load(const struct pm_pack *p)
{
    cJSON *root;
    struct sl_err err = {0};
    assert_int_equal(sl_json_read(&root, pm_path(p, "pack.json"), 1 << 24, SL_E_PACK, &err), 0);
    return root;
}

void pm_save(const struct pm_pack *p, cJSON *root)
{
    char *text = cJSON_PrintUnformatted(root);
    assert_non_null(text);
    pm_write(pm_path(p, "pack.json"), text, strlen(text));
    free(text);
    cJSON_Delete(root);
}

void pm_make(struct pm_pack *p, const struct pm_spec *spec)
{
    static const struct pm_spec none;
    struct pm_spec s = spec ? *spec : none;
    if (!s.n_layers) s.n_layers = 4;
    if (!s.n_experts) s.n_experts = 5;
    if (!s.top_k) s.top_k = 2;
    if (!s.latent) s.latent = 96;
    if (!s.width) s.width = 64;
    p->spec = s;
    pm_make_dir(p->dir);
    assert_int_equal(mkdir(pm_path(p, "experts"), 0777), 0);
    cJSON *root = cJSON_CreateObject();
    assert_non_null(root);
    cJSON_AddStringToObject(root, "format", "sluice-pack");
    cJSON_AddNumberToObject(root, "version", SL_PACK_VERSION);
    cJSON_AddStringToObject(root, "tool", SL_VERSION);
    cJSON *source = cJSON_AddObjectToObject(root, "source");
    char sha[65];
    memset(sha, 'a', 64);
    sha[64] = '\0';
    cJSON_AddStringToObject(source, "sha256", sha);
    cJSON_AddStringToObject(source, "prefix", "language_model.");
    cJSON_AddNumberToObject(source, "payload_bytes", 123456);
    cJSON_AddItemToObject(root, "config", config_json(&s));
    cJSON_AddStringToObject(root, "experts", "m4");
    cJSON_AddStringToObject(root, "trunk", "bf16");
    write_trunk(p, root);
    write_vision(p, root);
    uint32_t most = 0;
    cJSON *banks = cJSON_AddArrayToObject(root, "banks");
    cJSON_AddItemToArray(banks, cJSON_CreateNull());
    for (int l = 1; l < s.n_layers; l++) {
        if (l == 1 || !s.alias_banks) write_bank(p, l, &most);
        cJSON *b = cJSON_CreateObject();
        cJSON_AddStringToObject(b, "dir", "experts");
        cJSON_AddStringToObject(b, "file", strrchr(pm_bank_name(p, l), '/') + 1);
        cJSON_AddItemToArray(banks, b);
    }
    cJSON_AddNumberToObject(root, "slot_bytes", most);
    pm_save(p, root);
}

void pm_free(struct pm_pack *p)
{
    sl_remove_tree(p->dir);
}

struct sl_pack *pm_open(const struct pm_pack *p)
{
    struct sl_pack *pack;
    struct sl_err err = {0};
    if (sl_pack_open(&pack, p->dir, NULL, 0, &err)) fail_msg("%s", err.text);
    return pack;
}

void pm_expect_refusal(const char *dir, const char *what, const char *w1, const char *w2)
{
    struct sl_pack *p = NULL;
    struct sl_err err = {0};
    int rc = sl_pack_open(&p, dir, NULL, 0, &err);
    if (!rc) {
        sl_pack_close(p);
        fail_msg("%s: opened", what);
    }
    if (rc != SL_E_PACK || err.code != rc || !strstr(err.text, w1) || !strstr(err.text, w2))
        fail_msg("%s: code %d \"%s\", wanted \"%s\" and \"%s\"", what, rc, err.text, w1, w2);
    assert_null(p);
}

bool pm_can_read(enum sl_io io)
{
    struct pm_pack m;
    struct sl_store *s;
    struct sl_err err = {0};
    pm_make(&m, NULL);
    struct sl_pack *p = pm_open(&m);
    bool can = !sl_store_open(&s, p, &(struct sl_store_opts){.io = io}, &err);
    if (!can) printf("SKIP %s: %s\n", sl_io_name(io), err.text);
    sl_store_close(s);
    sl_pack_close(p);
    pm_free(&m);
    return can;
}
