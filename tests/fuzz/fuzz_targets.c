/* The table of targets, the edits, and what all targets share. FUZZ_TARGET picks one for libFuzzer;
 * FUZZ_SEEDS=FOLDER first writes its starting inputs there. */
#define _GNU_SOURCE
#include "tests/fuzz/fuzz_targets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define CONTENT_MAX ((size_t)8 << 20)

const struct fz_target fz_targets[] = {
    {"gguf", fz_gguf, fz_gguf_seed},
    {"bank", fz_bank, fz_bank_seed},
    {"stats", fz_stats, fz_stats_seed},
    {"state", fz_state, fz_state_seed},
    {"trace", fz_trace, fz_trace_seed},
    {"safetensors", fz_safetensors, fz_safetensors_seed},
    {"index", fz_index, fz_index_seed},
    {"config", fz_config, fz_config_seed},
    {"manifest", fz_manifest, fz_manifest_seed},
    {"board", fz_board, fz_board_seed},
    {"tokenizer_model", fz_tokenizer_model, fz_tokenizer_model_seed},
    {"tokenizer_config", fz_tokenizer_config, fz_tokenizer_config_seed},
    {"text", fz_text, fz_text_seed},
    {"chat", fz_chat, fz_chat_seed},
    {"request", fz_request, fz_request_seed},
};
const int fz_n_targets = (int)(sizeof fz_targets / sizeof *fz_targets);

const struct fz_target *fz_find(const char *name)
{
    for (int i = 0; i < fz_n_targets; i++)
        if (!strcmp(fz_targets[i].name, name)) return &fz_targets[i];
    return NULL;
}

/* ---- edits ----------------------------------------------------------------------------------------- */

static size_t edit(uint8_t *p, size_t n, const uint8_t *e)
{
    size_t at = (size_t)e[0] | (size_t)e[1] << 8 | (size_t)e[2] << 16;
    uint8_t value[8] = {e[4], e[5], e[6], e[7]};
    int kind = e[3] % 8;
    size_t width = kind == 0 ? 1 : kind == 1 ? 2 : kind == 2 ? 4 : 8;
    if (kind == 4) return n ? at % n : 0; /* cut */
    if (kind == 5) memset(value + 4, 0xff, 4);
    if (kind == 6) { /* values about a power of two */
        uint64_t v = ((uint64_t)1 << (e[4] & 63)) + (uint64_t)(int8_t)e[5];
        for (int b = 0; b < 8; b++) value[b] = (uint8_t)(v >> 8 * b);
    }
    if (kind == 7) width = 4;
    at = n ? at % n : 0;
    for (size_t b = 0; b < width && at + b < n; b++) p[at + b] = value[b];
    return n;
}

uint8_t *fz_content(const uint8_t *data, size_t size, const uint8_t *base, size_t base_size,
                    size_t *out_size, int *fix)
{
    int mode = size ? data[0] : 0;
    bool edits = mode & 1 && base;
    if (size) {
        data++;
        size--;
    }
    if (size > CONTENT_MAX) size = CONTENT_MAX;
    size_t n = edits ? base_size : size;
    uint8_t *p = malloc(n + 1);
    FZ_ASSERT(p);
    if (n) memcpy(p, edits ? base : data, n);
    for (size_t i = 0; edits && i + 8 <= size && i < 64 * 8; i += 8) n = edit(p, n, data + i);
    p[n] = 0;
    *out_size = n;
    *fix = mode >> 1 & 1;
    return p;
}

uint8_t *fz_seed(int mode, const void *data, size_t size, size_t *out_size)
{
    uint8_t *p = malloc(size + 1);
    FZ_ASSERT(p);
    p[0] = (uint8_t)mode;
    if (size) memcpy(p + 1, data, size);
    *out_size = size + 1;
    return p;
}

/* ---- files ----------------------------------------------------------------------------------------- */

static char folder[64];

static void remove_folder(void)
{
    sl_remove_tree(folder);
}

const char *fz_dir(void)
{
    if (folder[0]) return folder;
    snprintf(folder, sizeof folder, "%s/sluice-fuzz.XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    FZ_ASSERT(mkdtemp(folder));
    atexit(remove_folder);
    return folder;
}

const char *fz_path(const char *name)
{
    static char path[4][256];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", fz_dir(), name);
    return p;
}

void fz_write(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wbe");
    FZ_ASSERT(f);
    FZ_ASSERT(fwrite(data, 1, size, f) == size);
    FZ_ASSERT(!fclose(f));
}

uint8_t *fz_read(const char *path, size_t *size)
{
    char *text = NULL;
    struct sl_err err = {0};
    if (sl_read_file(&text, size, path, 64 << 20, SL_E_SOURCE, &err)) {
        fprintf(stderr, "%s\n", err.text);
        __builtin_trap();
    }
    return (uint8_t *)text;
}

void fz_check(int rc, const struct sl_err *err)
{
    if (!rc) return;
    FZ_ASSERT(rc < 0);
    FZ_ASSERT(err->code == rc);
    FZ_ASSERT(err->text[0]);
    for (const char *s = err->text; *s; s++) FZ_ASSERT((unsigned char)*s >= 0x20);
}

/* ---- libFuzzer ------------------------------------------------------------------------------------- */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct fz_target *chosen;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    const char *name = getenv("FUZZ_TARGET");
    const char *dir = getenv("FUZZ_SEEDS");
    chosen = name ? fz_find(name) : NULL;
    if (!chosen) {
        fprintf(stderr, "FUZZ_TARGET must be one of:");
        for (int i = 0; i < fz_n_targets; i++) fprintf(stderr, " %s", fz_targets[i].name);
        fprintf(stderr, "\n");
        exit(2);
    }
    size_t size;
    uint8_t *p;
    for (int i = 0; dir && (p = chosen->seed(i, &size)); i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/seed-%d", dir, i);
        fz_write(path, p, size);
        free(p);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    chosen->run(data, size);
    return 0;
}
