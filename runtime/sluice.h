/* sluice: run Kimi K3 packs on one machine. The whole public C API; the CLI uses nothing else of the
 * engine.
 *
 *     sluice_pack *p; sluice_session *s; sluice_error e = {0};
 *     if (sluice_pack_open(&p, "k3.pack", NULL, &e)) { fprintf(stderr, "%s\n", e.text); return e.exit_status; }
 *     if (sluice_session_open(&s, p, NULL, &e)) ...
 *     sluice_feed(s, ids, n, NULL, &e);               prompt
 *     while (!sluice_next(s, NULL, &id, &e)) ...       tokens
 *
 * Functions return 0 or a negative code; *_error then holds one line for a person. Handles are not
 * thread-safe; different sessions of one pack may be used from different threads. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sluice_pack sluice_pack;
typedef struct sluice_session sluice_session;

typedef struct {
    int code;        /* 0, or negative: groups as in the exit codes */
    int exit_status; /* what the CLI would exit with: 2 usage, 3 input, 4 pack or drive, 5 does not fit, 6 device, 130 interrupted */
    char text[1024];
} sluice_error;

/* Zero-initialise; 0 and NULL mean the default. */
typedef struct {
    const char *device;      /* "cpu" */
    int exact;               /* 1: the exact path. It is the only path in this version, so also the default */
    int threads;             /* 0: one per core */
    uint64_t ram_bytes;      /* ceiling on host memory; 0: what the machine allows */
    uint64_t ctx;            /* positions of context; 0: 4096 or the model's maximum */
    uint64_t chunk;          /* prefill chunk in tokens; 0: as memory allows, at most 512 */
    const char *io;          /* "auto", "pread" */
    const char *const *bank_dirs;
    int n_bank_dirs;
    int check_crc;           /* check records and tensors as they are read */
} sluice_options;

typedef struct {
    const char *name; /* "trunk", "expert slots", ... ; static */
    uint64_t planned_bytes;
    uint64_t measured_bytes; /* 0 where a group has no measure of its own */
} sluice_group;

typedef struct {
    uint64_t limit_bytes;  /* smallest of physical memory, cgroup limits and ram_bytes, less the reserve */
    uint64_t planned_peak_bytes;
    uint64_t n_slots, slot_bytes;
    uint64_t chunk, ctx;
    int n_groups;
    sluice_group groups[24];
} sluice_plan_info;

typedef struct {
    uint64_t planned_peak_bytes, measured_peak_bytes; /* process peak (VmHWM) */
    uint64_t expert_bytes_read, expert_hits, expert_misses;
    uint64_t prefill_tokens, decode_tokens;
    double prefill_seconds, decode_seconds, stall_seconds;
    int direct_io;
    int threads;
    const char *isa;
} sluice_stats;

typedef struct {
    double temperature; /* 0: greedy. Defaults of the CLI: 1.0 and 0.95 */
    double top_p;       /* (0, 1] */
    uint64_t seed;
    int ignore_eos;     /* do not end at a stop token */
} sluice_sampling;

const char *sluice_version(void); /* "0.1.0 (commit, flags, isa)" ; static */

int sluice_pack_open(sluice_pack **out, const char *path, const sluice_options *opts, sluice_error *err);
void sluice_pack_close(sluice_pack *p);
int sluice_vocab_size(const sluice_pack *p);

/* Prices a session without allocating it. Fills info also when it does not fit (code 5 group). */
int sluice_plan(const sluice_pack *p, const sluice_options *opts, sluice_plan_info *info, sluice_error *err);

/* Allocates everything the session will ever use. opts NULL: those given to sluice_pack_open. */
int sluice_session_open(sluice_session **out, sluice_pack *p, const sluice_options *opts, sluice_error *err);
void sluice_session_close(sluice_session *s);
void sluice_session_reset(sluice_session *s); /* empty state, position 0 */
uint64_t sluice_position(const sluice_session *s);

/* Appends n tokens. on_logits (may be NULL: then only the last row is computed and kept) is called
 * for every position in order with logits[vocab_size], valid during the call; a non-zero return stops
 * with that value. Code 5 group when position + n exceeds ctx: nothing is fed then. */
typedef int (*sluice_logits_fn)(void *ctx, uint64_t position, const float *logits);
int sluice_feed(sluice_session *s, const int32_t *ids, size_t n, sluice_error *err);
int sluice_feed_logits(sluice_session *s, const int32_t *ids, size_t n, sluice_logits_fn on_logits, void *ctx, sluice_error *err);
/* Logits after the last token fed, [vocab_size]; NULL before the first. */
const float *sluice_logits(const sluice_session *s);

/* Picks the next token from the current logits and feeds it. Returns 0 with *id; 1 when *id is a stop
 * token (not fed); negative on error. sampling NULL: greedy. Same seed, same text. */
int sluice_next(sluice_session *s, const sluice_sampling *sampling, int32_t *id, sluice_error *err);

void sluice_get_stats(const sluice_session *s, sluice_stats *out);
void sluice_interrupt(void); /* async-signal-safe: the call in progress returns code -60 within a layer */

/* Tokenizer of the pack. Encoders allocate *ids (free with sluice_free). */
int sluice_encode(const sluice_pack *p, const char *text, size_t len, int markup, int32_t **ids, size_t *n, sluice_error *err);
/* Bytes of one token (control tokens: their name); never NULL for a valid id. */
const char *sluice_token_bytes(const sluice_pack *p, int32_t id, size_t *len);
/* Id of a control token by name, -1 when there is none. */
int32_t sluice_control_id(const sluice_pack *p, const char *name);
int sluice_is_stop(const sluice_pack *p, int32_t id);
void sluice_free(void *ptr);

#ifdef __cplusplus
}
#endif
#endif
