/* golden.json of a checkpoint and the arrays beside it, and the comparisons the goldens ask for. */
#ifndef SL_TESTS_GOLDEN_FILES_H
#define SL_TESTS_GOLDEN_FILES_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct golden {
    char dir[4096]; /* SOURCE/golden */
    cJSON *json;
};

struct golden_seq {
    const char *name;
    int32_t ids[512];
    int n_ids;
    const char *logits; /* file, or NULL */
    int32_t next[64];
    int n_next; /* 0: no greedy continuation */
};

struct golden_array {
    int n_dims;
    int shape[4];
    int layers[64];
    int n_layers; /* 0: not by layer */
    size_t count;
    const float *f; /* into the trace, or NULL */
    const int32_t *i;
};

/* Folder of the shared checkpoints: $SLUICE_SHARED, else ../shared. */
const char *golden_shared(void);
/* source/golden/golden.json exists. */
bool golden_present(const char *source);
void golden_load(struct golden *g, const char *source);
void golden_free(struct golden *g);
int golden_n_seqs(const struct golden *g);
void golden_seq_at(const struct golden *g, int i, struct golden_seq *out);
void golden_seq_named(const struct golden *g, const char *name, struct golden_seq *out);
/* n tokens of source: the start of its valid-ids.u16 where it has one, else its sequence len-300. */
void golden_ids(const char *source, int32_t *ids, int n);
/* Whole file of count f32; fails the test on another size. malloc'ed. */
float *golden_floats(const struct golden *g, const char *file, size_t count);
/* Array of trace-N.bin, which `bytes` holds. */
void golden_trace_array(const struct golden *g, const char *bytes, const char *name,
                        struct golden_array *out);

struct golden_diff {
    double max_log_prob; /* largest |difference of log-probabilities| */
    int rows;
    int clear_rows; /* rows whose golden lead exceeds 1e-3 */
    int top1_wrong; /* of those */
};
void golden_compare(struct golden_diff *d, const float *got, const float *want, int rows,
                    int vocab);
int golden_argmax(const float *row, int vocab);
/* log of the softmax's denominator, in double. */
double golden_log_sum(const float *row, int vocab);

#endif
