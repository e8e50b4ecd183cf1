/* A copy of tests/fixtures/tiny-a that a test may damage, and the question "what does opening say?".
 *
 * Every helper asserts (cmocka) on failure: a test that could not set up its scene has failed. Shards
 * are edited as header tree plus data, and written back with a fresh length. */
#ifndef SL_TESTS_CHECKPOINT_COPY_H
#define SL_TESTS_CHECKPOINT_COPY_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include "convert/source.h"

struct cc_copy {
    char root[256]; /* removed by cc_close */
    char dir[288];  /* the checkpoint inside it; what cc_open_source() opens */
};

void cc_open(struct cc_copy *c); /* files copied, golden/ left out */
void cc_close(struct cc_copy *c);

/* "model-00004-of-000010.safetensors", in one of a few static buffers; and DIR/name likewise. */
const char *cc_shard_name(int number);
const char *cc_path(const struct cc_copy *c, const char *name);

char *cc_read(const struct cc_copy *c, const char *name, size_t *len); /* NUL appended; free() it */
void cc_write(const struct cc_copy *c, const char *name, const void *data, size_t len);
void cc_resize(const struct cc_copy *c, const char *name, int64_t by); /* longer: by zeros */
void cc_remove(const struct cc_copy *c, const char *name);

cJSON *cc_load(const struct cc_copy *c, const char *name);
void cc_save(const struct cc_copy *c, const char *name, cJSON *tree); /* frees tree */

struct cc_shard {
    cJSON *header;
    uint8_t *data;
    size_t bytes;
};
void cc_shard_load(const struct cc_copy *c, const char *name, struct cc_shard *s);
void cc_shard_save(const struct cc_copy *c, const char *name, struct cc_shard *s); /* frees s */
/* Appends a tensor behind the data (zeros). */
void cc_shard_add(struct cc_shard *s, const char *name, const char *dtype, int n_dims,
                  const int64_t *shape);
/* First tensor of the header that has "part" in its name. */
cJSON *cc_shard_find(const struct cc_shard *s, const char *part);
void cc_set_offsets(cJSON *tensor, double from, double to);

/* Names a tensor's file in the index, or drops it (file NULL); metadata.total_size is removed so that
 * only what a test is about can fail. */
void cc_index_set(const struct cc_copy *c, const char *tensor, const char *file);

/* Opens and closes; asserts success. */
void cc_expect_ok(const struct cc_copy *c);
/* Asserts SL_E_SOURCE, one printable line, and that it holds every one of the parts (NULL ends). */
void cc_expect_refused(const struct cc_copy *c, ...) __attribute__((sentinel));
void cc_expect_text(const struct sl_err *err, int code, const char *const *parts);

#endif
