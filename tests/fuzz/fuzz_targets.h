/* Fuzzing: one function a kind of input, run by libFuzzer (make fuzz) and, over the kept inputs, by
 * test_fuzz_replay in make test.
 *
 *   input   first byte even: the rest is the file or the text itself
 *           first byte odd: the rest is a list of edits of a sound file that the target makes, 8 bytes an
 *           edit: u24 place, u8 kind, u32 value. Checksums are made good after the edits when bit 1 of the
 *           first byte is set, so that what lies behind them is reached.
 *
 * A target returns nothing to judge: it fails by crashing, by a sanitizer's report, or by an assertion
 * (an error without a line of text, an accepted file that breaks its reader's promise). */
#ifndef SL_TESTS_FUZZ_TARGETS_H
#define SL_TESTS_FUZZ_TARGETS_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct fz_target {
    const char *name;
    void (*run)(const uint8_t *data, size_t size);
    /* What a starting corpus holds: i-th sound input, NULL when there are no more; free() it. */
    uint8_t *(*seed)(int i, size_t *size);
};
extern const struct fz_target fz_targets[];
extern const int fz_n_targets;
const struct fz_target *fz_find(const char *name); /* NULL: none */

/* For the targets. */

/* The input as file content, edits applied to base: malloc'ed with a NUL behind it. *fix: checksums are to
 * be made good. */
uint8_t *fz_content(const uint8_t *data, size_t size, const uint8_t *base, size_t base_size,
                    size_t *out_size, int *fix);
/* A folder of this process in memory, made once and removed at exit; path of a name in it, in one of a
 * few static buffers. */
const char *fz_dir(void);
const char *fz_path(const char *name);
void fz_write(const char *path, const void *data, size_t size);
uint8_t *fz_read(const char *path, size_t *size);
/* An error is one printable line and has a code. */
void fz_check(int rc, const struct sl_err *err);
/* data with a first byte of `mode`. */
uint8_t *fz_seed(int mode, const void *data, size_t size, size_t *out_size);
#define FZ_ASSERT(x)                                                                               \
    do {                                                                                           \
        if (!(x)) __builtin_trap();                                                                \
    } while (0)

void fz_gguf(const uint8_t *data, size_t size);
void fz_bank(const uint8_t *data, size_t size);
void fz_stats(const uint8_t *data, size_t size);
void fz_state(const uint8_t *data, size_t size);
void fz_trace(const uint8_t *data, size_t size);
void fz_safetensors(const uint8_t *data, size_t size);
void fz_index(const uint8_t *data, size_t size);
void fz_config(const uint8_t *data, size_t size);
void fz_manifest(const uint8_t *data, size_t size);
void fz_board(const uint8_t *data, size_t size);
void fz_tokenizer_model(const uint8_t *data, size_t size);
void fz_tokenizer_config(const uint8_t *data, size_t size);
void fz_text(const uint8_t *data, size_t size);
void fz_chat(const uint8_t *data, size_t size);
void fz_request(const uint8_t *data, size_t size);

uint8_t *fz_gguf_seed(int i, size_t *size);
uint8_t *fz_bank_seed(int i, size_t *size);
uint8_t *fz_stats_seed(int i, size_t *size);
uint8_t *fz_state_seed(int i, size_t *size);
uint8_t *fz_trace_seed(int i, size_t *size);
uint8_t *fz_safetensors_seed(int i, size_t *size);
uint8_t *fz_index_seed(int i, size_t *size);
uint8_t *fz_config_seed(int i, size_t *size);
uint8_t *fz_manifest_seed(int i, size_t *size);
uint8_t *fz_board_seed(int i, size_t *size);
uint8_t *fz_tokenizer_model_seed(int i, size_t *size);
uint8_t *fz_tokenizer_config_seed(int i, size_t *size);
uint8_t *fz_text_seed(int i, size_t *size);
uint8_t *fz_chat_seed(int i, size_t *size);
uint8_t *fz_request_seed(int i, size_t *size);

#endif
