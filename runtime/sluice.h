/* sluice: run Kimi K3 packs on one machine. The whole public C API; run, logits, eval and bench of the
 * command line use nothing else of the engine.
 *
 *     sluice_pack *p; sluice_session *s; sluice_error e = {0}; int32_t id;
 *     if (sluice_pack_open(&p, "k3.pack", NULL, &e)) { fprintf(stderr, "%s\n", e.text); return e.exit_status; }
 *     if (sluice_session_open(&s, p, NULL, &e)) ...
 *     sluice_feed(s, ids, n, &e);                       prompt
 *     while (sluice_next(s, NULL, &id, &e) == 0) ...     tokens
 *
 * Several sequences at once: options.seats, sluice_session_join(), sluice_step().
 *
 * Functions return 0 or a negative code; *err (may be NULL) then holds one line for a person. Handles
 * are not thread-safe; sessions of one pack that were opened (not joined) may be used from different
 * threads, and share the trunk. Sessions are closed before their pack. */
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
    int code; /* 0, or negative */
    /* What the CLI would exit with: 2 usage, 3 input, 4 pack or drive, 5 does not fit, 6 device,
     * 130 interrupted. */
    int exit_status;
    char text[1024];
} sluice_error;

#define SLUICE_LOOKAHEAD_ON (-1)
#define SLUICE_MAX_SEATS    16
#define SLUICE_MAX_GUESSES  16

/* Zero-initialise; 0 and NULL mean the default. Strings and lists are copied. */
typedef struct {
    const char *device; /* "cpu" */
    /* 1: the exact path, f32 and a function of the tokens alone. -1: the fast one, with integer activations;
     * same options and build give the same result. 0: the default, the fast one. */
    int exact;
    int threads;        /* 0: one per core this process may use */
    uint64_t ram_bytes; /* ceiling on host memory; 0: what the machine allows */
    uint64_t ctx;       /* positions of context; 0: 4096 or the model's maximum */
    uint64_t chunk;     /* longest prefill chunk in tokens; 0: as memory allows */
    /* Rows of logits that one step of sluice_feed_logits computes, at most the chunk; 0: 16. */
    uint64_t logit_rows;
    /* How experts are read: "auto" (io_uring where it is to be had), "uring", "pread", "mmap". */
    const char *io;
    const char *evict; /* which expert leaves the memory first: "lrfu", "lru" */
    /* Experts of the next layer named, and read ahead, in decode: 1 to 64; 0: none; SLUICE_LOOKAHEAD_ON:
     * three eighths of those that the router chooses. Never changes a result. */
    int lookahead;
    /* Mean bits a weight that a token reads of progressive (p36) experts, between their base planes and
     * all; the pack's plan says which ranks of which layer are read whole. 0: as the plan says. */
    double bits;
    /* Sequences side by side in one engine, at most SLUICE_MAX_SEATS: each takes a state of its own, all
     * else is there once. 0: 1. */
    int seats;
    /* Guesses that a sequence may have in one sluice_step, at most SLUICE_MAX_GUESSES; a sequence then
     * takes memory for the recurrent state before them too. 0: none. */
    int draft;
    int draft_auto; /* 1: sluice_guess() guesses only where that was measured to pay */
    /* Route trace to write, as sluice_trace() does; used by sluice_session_open. */
    const char *trace;
    /* Further folders to look for expert banks in; used by sluice_pack_open. */
    const char *const *bank_dirs;
    int n_bank_dirs;
    /* Check records and tensors against their checksums as they are read: 0 and 1 yes, 2 each record the
     * first time alone that a session reads it, -1 no. */
    int check_crc;
    /* States of earlier prompts that sluice_prompt() may go on from, shared by the sessions of a pack:
     * bytes of memory, 0: none; a folder for those that no longer fit (NULL: they are dropped) and
     * its ceiling, 0: 8 times the memory; ids a block of shared rows, 0: 512. The first session decides. */
    uint64_t prefix_bytes;
    const char *prefix_dir;
    uint64_t prefix_disk_bytes;
    uint32_t prefix_block;
} sluice_options;

typedef struct {
    const char *name; /* "trunk", "expert slots", ...; static */
    uint64_t planned_bytes;
    uint64_t measured_bytes; /* of an open session: what the group really took; 0 in a mere plan */
} sluice_group;

#define SLUICE_MAX_GROUPS 24
typedef struct {
    /* Smallest of physical memory, cgroup limits and ram_bytes, less the reserve. */
    uint64_t limit_bytes;
    uint64_t planned_peak_bytes;
    uint64_t n_slots, slot_bytes;
    uint64_t chunk, ctx; /* chunk: the longest; what a prompt gets depends on its length too */
    uint64_t panel;      /* tokens of a chunk for which no memory of the slots is lent */
    uint64_t trunk_streamed_bytes; /* read for every token, or panel of a prompt; 0: all is held */
    int seats;                     /* sequences that the groups hold */
    int draft;                     /* guesses of a sequence in a step at most */
    int expanded_keys; /* 0: left out for lack of memory; results do not change, long contexts get slower */
    double expert_bits; /* mean bits a weight that a token reads of its experts */
    double expert_kl; /* measured for that plan against the pack's reference; negative: not known */
    uint64_t expert_token_bytes; /* read a token when nothing is found in memory */
    int n_groups;
    sluice_group groups[SLUICE_MAX_GROUPS];
} sluice_plan_info;

/* One folder that holds banks; the last of a full table stands for those beyond it too. */
typedef struct {
    const char *dir; /* valid while the session is open */
    uint64_t reads, bytes, errors;
    double busy_seconds, bytes_per_second; /* measured lately, 0: not yet */
} sluice_drive;
#define SLUICE_MAX_DRIVES 16

/* Seconds by stage; the sum is the time inside the forward pass. */
typedef struct {
    double attention, experts, waiting, head; /* waiting: for reads */
} sluice_stages;

typedef struct {
    uint64_t planned_peak_bytes, measured_peak_bytes; /* process peak (VmHWM) */
    uint64_t expert_bytes_read, expert_hits, expert_misses;
    uint64_t prefill_tokens, decode_tokens; /* decode: tokens fed one at a time after the first */
    uint64_t decode_steps; /* that fed them: fewer with several seats, or guesses */
    uint64_t guessed_tokens, accepted_tokens; /* of sluice_step; accepted ones are decode tokens */
    double prefill_seconds, decode_seconds, stall_seconds;
    sluice_stages prefill_stages, decode_stages;
    /* With an expert read in flight, mean over the drives: over the seconds above, their busy share. */
    double prefill_drive_busy_seconds, decode_drive_busy_seconds;
    int n_drives;
    sluice_drive drives[SLUICE_MAX_DRIVES];
    uint64_t trunk_bytes_read; /* from the drive: once at open, and what streamed since */
    uint64_t
        trunk_bytes_streamed; /* of these, as tokens were fed: memory does not hold all of it */
    uint64_t
        expert_refill_bytes;  /* of expert_bytes_read: read again after a prompt, behind all else */
    uint64_t lent_peak_bytes; /* most memory of the slots that a prompt's activations have had */
    uint64_t prefill_chunks;  /* of more than one token: sweeps of the experts */
    uint64_t expert_bytes_used; /* of records or base planes, read or found in memory */
    /* Look-ahead: experts named, and those of them that the router then chose. Reads queued ahead; of
     * these requested later (there, or on their way), evicted unused, and given up before they began. */
    uint64_t ahead_named, ahead_right, ahead_queued, ahead_used, ahead_wasted, ahead_dropped;
    uint64_t ahead_wasted_bytes; /* records read and evicted unused, at the mean size */
    /* Page faults of the process since the session was opened: those that only mapped memory, and those
     * that waited for a drive. io "mmap" reads by them; direct reads have none. */
    uint64_t minor_faults, major_faults;
    int direct_io;
    const char *io, *evict; /* in use; static */
    char io_note[96];       /* why "auto" did not take io_uring, else empty */
    int threads;
    const char *isa;
    int synthetic; /* 1: the weights are made up, text and losses mean nothing */
} sluice_stats;

typedef struct {
    double temperature; /* 0: greedy. Defaults of the CLI: 1.0 and 0.95 */
    double top_p;       /* (0, 1]; 0 means 1 */
    uint64_t seed;
    int ignore_eos; /* do not end at a stop token */
} sluice_sampling;

const char *sluice_version(void); /* "0.1.0 (commit, isa; compiler and flags)"; static */

/* Opens and validates a pack (structure and sizes; payload is checked as it is read). */
int sluice_pack_open(sluice_pack **out, const char *path, const sluice_options *opts,
                     sluice_error *err);
void sluice_pack_close(sluice_pack *p);
int sluice_vocab_size(const sluice_pack *p);

/* Prices a session without allocating it. Fills info also when it does not fit (code 5 group). opts
 * NULL: those given to sluice_pack_open. */
int sluice_plan(sluice_pack *p, const sluice_options *opts, sluice_plan_info *info,
                sluice_error *err);

/* Allocates everything the session will ever use. opts NULL: those given to sluice_pack_open. */
int sluice_session_open(sluice_session **out, sluice_pack *p, const sluice_options *opts,
                        sluice_error *err);
/* Another sequence of the same engine, empty, where options.seats left room for one. Sessions of one
 * engine are used by one thread at a time; statistics and plan are the engine's. The engine goes with the
 * last of them. */
int sluice_session_join(sluice_session **out, sluice_session *beside, sluice_error *err);
void sluice_session_close(sluice_session *s);
void sluice_session_reset(sluice_session *s); /* empty state, position 0; also after an error */
uint64_t sluice_position(const sluice_session *s);
/* The plan that the session was opened with, measured bytes filled in. */
void sluice_session_plan(const sluice_session *s, sluice_plan_info *info);

/* Appends n tokens; logits of the last one are kept. Code 5 group when position + n exceeds ctx:
 * nothing is fed then. After any other error the state is spoiled: reset before going on. */
int sluice_feed(sluice_session *s, const int32_t *ids, size_t n, sluice_error *err);
/* The same, with on_logits called for every position in order with logits[vocab_size], valid during
 * the call. A non-zero return of on_logits stops with that value (the state is spoiled then too). */
typedef int (*sluice_logits_fn)(void *ctx, uint64_t position, const float *logits);
int sluice_feed_logits(sluice_session *s, const int32_t *ids, size_t n, sluice_logits_fn on_logits,
                       void *ctx, sluice_error *err);
/* One step of several sessions of one engine. Weights and experts are read once for all of them, so that a
 * step of many costs less than many steps; each gets, on the exact path, the bits that it gets alone.
 *
 * Guesses: tokens that the caller thinks come next. They are computed along and judged one after the other:
 * as long as a guess is the very token that sluice_pick() would have picked there, with this sampling, it is
 * kept; the rest leaves no trace. So the text is the one that comes without guesses. */
typedef struct {
    sluice_session *session;
    const int32_t *ids; /* tokens to append */
    size_t n;           /* 1 or more */
    const int32_t *guesses;
    /* At most plan_info.draft; 0: none. Set to fewer where more could not be taken back. */
    size_t n_guesses;
    const sluice_sampling *sampling;
    size_t accepted; /* out: guesses that were appended too */
} sluice_part;
/* Appends to every session; its logits after the last token are kept. On an error of the arguments or a
 * full context (-40s, 5 group) nothing is fed; after any other all these sessions are spoiled. */
int sluice_step(sluice_part *parts, size_t n_parts, sluice_error *err);
/* What may follow when next is appended, from repetitions of the session's text: up to plan_info.draft ids
 * to out, whose number is returned. */
size_t sluice_guess(sluice_session *s, int32_t next, int32_t *out);
/* A step of one session with guesses of its own: appends id, and then the guesses that hold, at most `most`
 * of them; these go to more[SLUICE_MAX_GUESSES], their number to *n_more. With options.draft 0 the same as
 * sluice_feed. */
int sluice_feed_on(sluice_session *s, int32_t id, const sluice_sampling *sampling, size_t most,
                   int32_t *more, size_t *n_more, sluice_error *err);
/* Makes ids[0..n) the session's whole sequence with the least work: goes on from where it stands when
 * that is a start of ids, else from the longest stored start (sluice_prefix_keep), else from the
 * beginning. n > 0. *cached (may be NULL) is how many ids were not computed, at most n, and n only where
 * the session stood exactly there. The result equals a reset and one sluice_feed of all ids. Also right
 * after an error: a spoiled session is reset by it.
 *
 * marks[n_marks], rising: positions at which the state is stored on the way (the end of a system prompt,
 * of turns). Each stop costs a sweep of the experts, so that those closer than a block of
 * options.prefix_block ids to the one before are passed over, the first and the last excepted. */
int sluice_prompt(sluice_session *s, const int32_t *ids, size_t n, const size_t *marks,
                  size_t n_marks, size_t *cached, sluice_error *err);
/* The same by hand, for who feeds the rest himself in pieces: begin brings the session to the longest start
 * of ids that is there, *at tokens of it; stop says up to which position to feed before the next
 * sluice_prefix_keep(), n when there is none. `stopped` is where the last one was, or *at. */
int sluice_prompt_begin(sluice_session *s, const int32_t *ids, size_t n, size_t *at,
                        sluice_error *err);
size_t sluice_prompt_stop(const sluice_session *s, size_t n, const size_t *marks, size_t n_marks,
                          size_t stopped);
/* Stores the state at the current position for later prompts, of any session of the pack. 0 also when
 * there is no store or it is too small for one state. */
int sluice_prefix_keep(sluice_session *s, sluice_error *err);
typedef struct {
    uint64_t memory_bytes, memory_used, disk_bytes, disk_used;
    uint64_t snapshots, blocks;              /* in memory and on disk */
    uint64_t lookups, hits, restored_tokens; /* restored: ids that were not computed */
    uint64_t evicted, refused;               /* refused: files that were damaged or not ours */
} sluice_prefix_stats;
void sluice_get_prefix_stats(const sluice_session *s, sluice_prefix_stats *out);
/* A prefix_bytes for conversations with these options: room for eight states and their rows, at most an
 * eighth of what experts would have; 0 when not even one state fits into that. */
uint64_t sluice_prefix_suggest(sluice_pack *p, const sluice_options *opts);
/* The ids fed so far, sluice_position() of them, valid until the next feed. */
const int32_t *sluice_ids(const sluice_session *s);
/* Logits after the last token fed, [vocab_size]; NULL before the first. */
const float *sluice_logits(const sluice_session *s);

/* Picks a token from the current logits without feeding it. 0 with *id; 1 when it is a stop token and
 * stop tokens are not ignored; negative before the first feed. sampling NULL: greedy. The pick is a
 * function of logits, sampling and position: same seed, same text, resumed or not. */
int sluice_pick(sluice_session *s, const sluice_sampling *sampling, int32_t *id, sluice_error *err);
/* Picks and feeds. Returns 0 with *id; 1 when *id is a stop token (not fed); negative on error. */
int sluice_next(sluice_session *s, const sluice_sampling *sampling, int32_t *id, sluice_error *err);

/* Writes the state at the current position to a file (atomically), or restores one into a session of
 * the same model: another model, a position beyond ctx, or a damaged file is refused (3 group) and
 * leaves the session as it was. Logits are stored too: a restored session goes on as if never stopped. */
int sluice_state_save(const sluice_session *s, const char *path, sluice_error *err);
int sluice_state_load(sluice_session *s, const char *path, sluice_error *err);
/* The same with note_bytes bytes of the host's own in the file, at most 64 MiB (a conversation): load
 * gives them in malloc'ed memory (sluice_free), NULL and 0 where there are none. */
int sluice_state_save_note(const sluice_session *s, const char *path, const void *note,
                           size_t note_bytes, sluice_error *err);
int sluice_state_load_note(sluice_session *s, const char *path, void **note, size_t *note_bytes,
                           sluice_error *err);

/* For comparing two packs of one model: from here on s takes the experts that leader chose at the same
 * positions, so that they differ by arithmetic alone. The leader is empty now, feeds first, and stays
 * open; leader NULL: own routes again. Takes ctx * layers * top_k * 4 bytes beside the plan. */
int sluice_follow_routes(sluice_session *s, sluice_session *leader, sluice_error *err);

/* Writes the routes of all tokens fed from now on to a trace file; NULL ends it, and only then is the
 * file there. Closing the session instead drops it. */
int sluice_trace(sluice_session *s, const char *path, sluice_error *err);

void sluice_get_stats(const sluice_session *s, sluice_stats *out);
/* How much of the sluice_feed in progress in this engine is done, 0 to 1; 0 when there is none. From any
 * thread while the session is open. */
double sluice_progress(const sluice_session *s);
void sluice_interrupt(
    void); /* async-signal-safe: the calls in progress end with code -60 within a layer */
void sluice_interrupt_clear(void); /* for hosts that go on after a cancel */

/* Tokenizer of the pack. Encoders allocate *ids (free with sluice_free); *ids may be NULL when *n is 0.
 * markup 0: control spellings in the text stay text; 1: they become control tokens. */
int sluice_encode(const sluice_pack *p, const char *text, size_t len, int markup, int32_t **ids,
                  size_t *n, sluice_error *err);
/* Bytes of one token (control tokens: their name), not terminated; NULL for an id outside the vocabulary. */
const char *sluice_token_bytes(const sluice_pack *p, int32_t id, size_t *len);
/* Id of a control token by name, -1 when there is none. */
int32_t sluice_control_id(const sluice_pack *p, const char *name);
/* The configured end of sequence, `<|end_of_msg|>` and `[EOS]`. */
int sluice_is_stop(const sluice_pack *p, int32_t id);
void sluice_free(void *ptr);

#ifdef __cplusplus
}
#endif
#endif
