/* Targets that are binary files: a sound one is made by the program's own writer (GGUF: by the test's),
 * edited, its checksums made good, and opened. What opens is read through. */
#define _GNU_SOURCE
#include "tests/fuzz/fuzz_targets.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "convert/convert.h"
#include "convert/gguf_model.h"
#include "convert/gguf_vocab.h"
#include "offload/bank.h"
#include "offload/trace.h"
#include "quant/stats_file.h"
#include "runtime/sluice.h"
#include "tests/convert/gguf_maker.h"

/* ---- GGUF ------------------------------------------------------------------------------------------ */

static uint8_t *gguf_base(size_t *n)
{
    static struct gm_bytes b;
    if (!b.p) {
        struct gm_model m;
        gm_model(&m, 1, 0, 0);
        gm_file(&m, 0, &b);
        gm_model_free(&m);
    }
    *n = b.n;
    return b.p;
}

void fz_gguf(const uint8_t *data, size_t size)
{
    size_t n;
    size_t base_n;
    int fix;
    struct sl_gguf *g = NULL;
    struct sl_config c;
    struct sl_err err = {0};
    const uint8_t *base = gguf_base(&base_n);
    uint8_t *p = fz_content(data, size, base, base_n, &n, &fix);
    const char *path = fz_path("fuzz.gguf");
    fz_write(path, p, n);
    free(p);
    int rc = sl_gguf_open(&g, path, &err);
    fz_check(rc, &err);
    if (rc) return;
    rc = sl_gguf_config_read(&c, g, &err);
    fz_check(rc, &err);
    char *model;
    char *config;
    size_t a;
    size_t b;
    rc = sl_gguf_vocab_read(g, &model, &a, &config, &b, &err);
    fz_check(rc, &err);
    if (!rc) {
        free(model);
        free(config);
    }
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct sl_gguf_tensor *t = &g->tensors[i];
        uint8_t byte;
        FZ_ASSERT(t->offset <= n && t->bytes <= n - t->offset);
        if (t->bytes) FZ_ASSERT(!sl_gguf_read(g, t, t->bytes - 1, &byte, 1, &err));
    }
    sl_gguf_close(g);
}

uint8_t *fz_gguf_seed(int i, size_t *size)
{
    size_t n;
    const uint8_t *base = gguf_base(&n);
    static const uint8_t edits[] = {8, 0, 0, 6, 63, 0, 0, 0};
    if (i == 0) return fz_seed(0, base, n, size);
    return i == 1 ? fz_seed(1, edits, sizeof edits, size) : NULL;
}

/* ---- bank ------------------------------------------------------------------------------------------ */

enum { BANK_EXPERTS = 5, LATENT = 96, WIDTH = 64 };

static uint8_t *bank_base(size_t *n)
{
    static uint8_t *base;
    static size_t bytes;
    if (!base) {
        struct sl_bank_entry e[BANK_EXPERTS];
        static const enum sl_fmt fmt[2][3] = {{SL_FMT_M4, SL_FMT_MXFP4, SL_FMT_M4},
                                              {SL_FMT_P36, SL_FMT_P36, SL_FMT_P36}};
        bytes = sl_bank_first_record(BANK_EXPERTS);
        for (int i = 0; i < BANK_EXPERTS; i++) {
            FZ_ASSERT(!sl_record_layout(&e[i], fmt[i % 2], LATENT, WIDTH, NULL));
            e[i].offset = bytes;
            bytes += e[i].bytes;
        }
        base = calloc(1, bytes);
        FZ_ASSERT(base);
        struct sl_bank_header h = {.magic = SL_BANK_MAGIC,
                                   .version = SL_BANK_VERSION,
                                   .n_experts = BANK_EXPERTS,
                                   .index_offset = SL_PAGE,
                                   .entry_bytes = sizeof *e,
                                   .file_bytes = bytes};
        memcpy(base, &h, sizeof h);
        memcpy(base + SL_PAGE, e, sizeof e);
    }
    *n = bytes;
    return base;
}

static void fix_bank(uint8_t *p, size_t n)
{
    struct sl_bank_header h;
    if (n < sizeof h) return;
    memcpy(&h, p, sizeof h);
    uint64_t index = (uint64_t)h.n_experts * h.entry_bytes;
    if (h.index_offset <= n && index <= n - h.index_offset)
        h.index_crc32 = sl_crc32(0, p + h.index_offset, index);
    h.header_crc32 = sl_crc32(0, &h, sizeof h - sizeof h.header_crc32);
    memcpy(p, &h, sizeof h);
}

void fz_bank(const uint8_t *data, size_t size)
{
    size_t n;
    size_t base_n;
    int fix;
    struct sl_bank b;
    struct sl_err err = {0};
    const uint8_t *base = bank_base(&base_n);
    uint8_t *p = fz_content(data, size, base, base_n, &n, &fix);
    const char *path = fz_path("fuzz.bank");
    if (fix) fix_bank(p, n);
    fz_write(path, p, n);
    free(p);
    const struct sl_bank_shape shape = {
        .n_experts = BANK_EXPERTS, .latent = LATENT, .width = WIDTH, .slot_bytes = 1 << 20};
    memset(&b, 0, sizeof b);
    int rc = sl_bank_open(&b, path, "fuzz.bank", &shape, &err);
    fz_check(rc, &err);
    if (rc) return;
    for (int i = 0; i < BANK_EXPERTS; i++)
        FZ_ASSERT(b.entries[i].offset <= n && b.entries[i].bytes <= n - b.entries[i].offset);
    FZ_ASSERT(sl_bank_max_record(&b) <= shape.slot_bytes);
    sl_bank_close(&b);
}

uint8_t *fz_bank_seed(int i, size_t *size)
{
    size_t n;
    static const uint8_t edits[] = {0x08, 0x10, 0, 2, 1, 0, 0, 0};
    uint8_t *p;
    switch (i) {
    case 0:
        p = bank_base(&n);
        return fz_seed(2, p, sl_bank_first_record(BANK_EXPERTS), size);
    case 1:
        return fz_seed(3, edits, 0, size);
    case 2:
        return fz_seed(3, edits, sizeof edits, size);
    default:
        return NULL;
    }
}

/* ---- calibration ----------------------------------------------------------------------------------- */

/* The container's layout, from docs/formats/stats.md. */
enum { STATS_HEAD = 64, STATS_ENTRY = 72 };

static uint8_t *stats_base(size_t *n)
{
    static uint8_t *base;
    static size_t bytes;
    if (!base) {
        struct sl_stats_out *o;
        float data[64];
        struct sl_err err = {0};
        const char *path = fz_path("base.stats");
        for (int i = 0; i < 64; i++) data[i] = (float)i / 7;
        FZ_ASSERT(!sl_stats_create(&o, path, &err));
        FZ_ASSERT(!sl_stats_put(o, "meta", "{\"a\":1}", 7, &err));
        FZ_ASSERT(!sl_stats_put(o, "L001.latent", data, sizeof data, &err));
        FZ_ASSERT(!sl_stats_publish(o, &err));
        base = fz_read(path, &bytes);
    }
    *n = bytes;
    return base;
}

static void put_le32(uint8_t *p, uint32_t v)
{
    for (int b = 0; b < 4; b++) p[b] = (uint8_t)(v >> 8 * b);
}

static void fix_stats(uint8_t *p, size_t n)
{
    if (n < STATS_HEAD) return;
    uint64_t sections = sl_le32(p + 12);
    uint64_t at = sl_le64(p + 16);
    if (at <= n && sections <= (n - at) / STATS_ENTRY) {
        for (uint64_t i = 0; i < sections; i++) {
            uint8_t *e = p + at + i * STATS_ENTRY;
            uint64_t from = sl_le64(e + 40);
            uint64_t len = sl_le64(e + 48);
            if (from <= n && len <= n - from) put_le32(e + 64, sl_crc32(0, p + from, len));
        }
        put_le32(p + 32, sl_crc32(0, p + at, sections * STATS_ENTRY));
    }
    put_le32(p + 60, sl_crc32(0, p, 60));
}

void fz_stats(const uint8_t *data, size_t size)
{
    size_t n;
    size_t base_n;
    int fix;
    struct sl_stats_in *in;
    struct sl_err err = {0};
    const uint8_t *base = stats_base(&base_n);
    uint8_t *p = fz_content(data, size, base, base_n, &n, &fix);
    const char *path = fz_path("fuzz.stats");
    if (fix) fix_stats(p, n);
    fz_write(path, p, n);
    free(p);
    int rc = sl_stats_open(&in, path, &err);
    fz_check(rc, &err);
    if (rc) return;
    static const char *const names[] = {"meta", "L001.latent", "none"};
    for (int k = 0; k < 3; k++) {
        uint64_t bytes = sl_stats_bytes(in, names[k]);
        if (bytes > 1 << 20) continue;
        char *to = malloc(bytes + 1);
        FZ_ASSERT(to);
        rc = sl_stats_get(in, names[k], to, bytes, &err);
        fz_check(rc, &err);
        free(to);
    }
    sl_stats_close(in);
}

uint8_t *fz_stats_seed(int i, size_t *size)
{
    size_t n;
    uint8_t *p = stats_base(&n);
    if (i == 0) return fz_seed(2, p, n, size);
    return i == 1 ? fz_seed(3, p, 0, size) : NULL;
}

/* ---- state ----------------------------------------------------------------------------------------- */

static struct {
    sluice_pack *pack;
    sluice_session *session;
    uint8_t *base;
    size_t bytes;
} st;

static void state_setup(void)
{
    struct sl_convert_opts o = {.experts = SL_FMT_M4, .trunk = SL_FMT_BF16, .jobs = 1};
    struct sl_err err = {0};
    sluice_error e = {0};
    sluice_options opts = {.ctx = 16, .threads = 1};
    const int32_t ids[] = {1, 2, 3, 4, 5};
    if (st.base) return;
    const char *dir = fz_path("tiny.pack");
    FZ_ASSERT(!sl_convert("tests/fixtures/tiny-a", dir, &o, NULL, &err));
    FZ_ASSERT(!sluice_pack_open(&st.pack, dir, &opts, &e));
    FZ_ASSERT(!sluice_session_open(&st.session, st.pack, NULL, &e));
    FZ_ASSERT(!sluice_feed(st.session, ids, 5, &e));
    const char *path = fz_path("base.state");
    FZ_ASSERT(!sluice_state_save_note(st.session, path, "note", 4, &e));
    st.base = fz_read(path, &st.bytes);
}

static void state_end(void)
{
    sluice_session_close(st.session);
    sluice_pack_close(st.pack);
    free(st.base);
}

void fz_state(const uint8_t *data, size_t size)
{
    size_t n;
    int fix;
    sluice_error e = {0};
    if (!st.base) {
        state_setup();
        atexit(state_end);
    }
    uint8_t *p = fz_content(data, size, st.base, st.bytes, &n, &fix);
    const char *path = fz_path("fuzz.state");
    if (fix && n >= 4) put_le32(p + n - 4, sl_crc32(0, p, n - 4));
    fz_write(path, p, n);
    free(p);
    void *note = NULL;
    size_t note_bytes = 0;
    int rc = sluice_state_load_note(st.session, path, &note, &note_bytes, &e);
    if (rc) FZ_ASSERT(e.text[0]);
    if (!rc) sluice_free(note);
}

uint8_t *fz_state_seed(int i, size_t *size)
{
    static const uint8_t edits[] = {16, 0, 0, 0, 4, 0, 0, 0};
    if (i == 0) return fz_seed(3, edits, 0, size);
    return i == 1 ? fz_seed(3, edits, sizeof edits, size) : NULL;
}

/* ---- trace ----------------------------------------------------------------------------------------- */

static uint8_t *trace_base(size_t *n)
{
    static uint8_t *base;
    static size_t bytes;
    if (!base) {
        struct sl_trace_writer *w;
        struct sl_err err = {0};
        const char *path = fz_path("base.trace");
        const int ids[] = {3, 1, 2};
        const float weights[] = {0.5f, 0.25f, 0.25f};
        FZ_ASSERT(!sl_trace_create(&w, path, 4, 8, 3, &err));
        for (uint64_t pos = 0; pos < 3; pos++)
            for (int l = 1; l < 4; l++) sl_trace_add(w, pos, l, 3, ids, weights);
        FZ_ASSERT(!sl_trace_finish(w, true, &err));
        base = fz_read(path, &bytes);
    }
    *n = bytes;
    return base;
}

void fz_trace(const uint8_t *data, size_t size)
{
    size_t n;
    size_t base_n;
    int fix;
    struct sl_trace *t;
    struct sl_err err = {0};
    const uint8_t *base = trace_base(&base_n);
    uint8_t *p = fz_content(data, size, base, base_n, &n, &fix);
    const char *path = fz_path("fuzz.trace");
    fz_write(path, p, n);
    free(p);
    int rc = sl_trace_read(&t, path, &err);
    fz_check(rc, &err);
    if (rc) return;
    for (uint64_t i = 0; i < t->n_ids; i++) {
        FZ_ASSERT(t->ids[i] < t->n_experts);
        FZ_ASSERT(isfinite(t->weights[i]));
    }
    for (uint64_t i = 0; i < t->n_records; i++)
        FZ_ASSERT(t->records[i].first + t->records[i].k <= t->n_ids &&
                  t->records[i].layer < t->n_layers);
    sl_trace_free(t);
}

uint8_t *fz_trace_seed(int i, size_t *size)
{
    size_t n;
    uint8_t *p = trace_base(&n);
    if (i == 0) return fz_seed(0, p, n, size);
    return i == 1 ? fz_seed(1, p, 0, size) : NULL;
}
