/* SLTRACE1 writer and reader (see trace.h). Traces come from other machines, so nothing in them is
 * believed: a record that names a layer or expert which the header rules out ends the reading. */
#define _GNU_SOURCE
#include "offload/trace.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum { HEAD_BYTES = 20, RECORD_BYTES = 8, PAIR_BYTES = 6, LAYERS_MAX = 1024, BUFFER = 1 << 16 };
#define TRACE_MAX ((uint64_t)8 << 30) /* 800,000 tokens of the full model */

static void put16(unsigned char *to, uint32_t v)
{
    to[0] = (unsigned char)v;
    to[1] = (unsigned char)(v >> 8);
}

static void put32(unsigned char *to, uint32_t v)
{
    put16(to, v & 0xffff);
    put16(to + 2, v >> 16);
}

/* ------------------------------------------------------------------ writing */

struct sl_trace_writer {
    int fd, k;
    char *path;
    uint64_t at; /* bytes written */
    size_t used;
    int rc;
    struct sl_err err; /* of the first failure */
    unsigned char buffer[BUFFER];
};

static void flush(struct sl_trace_writer *w)
{
    if (w->used && !w->rc)
        w->rc = sl_pwrite_all(w->fd, w->buffer, w->used, w->at, w->path, &w->err);
    w->at += w->used;
    w->used = 0;
}

int sl_trace_create(struct sl_trace_writer **out, const char *path, int n_layers, int n_experts,
                    int k, struct sl_err *err)
{
    *out = NULL;
    struct sl_trace_writer *w = calloc(1, sizeof *w);
    if (w) w->path = strdup(path);
    if (!w || !w->path) {
        free(w);
        return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    }
    w->k = k;
    int rc = sl_tmp_open(&w->fd, path, false, err);
    if (rc) {
        free(w->path);
        free(w);
        return rc;
    }
    memcpy(w->buffer, SL_TRACE_MAGIC, 8);
    put32(w->buffer + 8, (uint32_t)n_layers);
    put32(w->buffer + 12, (uint32_t)n_experts);
    put32(w->buffer + 16, (uint32_t)k);
    w->used = HEAD_BYTES;
    *out = w;
    return 0;
}

void sl_trace_add(struct sl_trace_writer *w, uint64_t position, int layer, int n, const int *ids,
                  const float *weights)
{
    size_t bytes = RECORD_BYTES + (size_t)n * PAIR_BYTES;
    if (n < 1 || n > w->k || bytes > BUFFER) return;
    if (w->used + bytes > BUFFER) flush(w);
    unsigned char *to = w->buffer + w->used;
    put32(to, (uint32_t)position);
    put16(to + 4, (uint32_t)layer);
    put16(to + 6, (uint32_t)n);
    to += RECORD_BYTES;
    for (int i = 0; i < n; i++, to += PAIR_BYTES) {
        uint32_t bits;
        memcpy(&bits, &weights[i], sizeof bits);
        put16(to, (uint32_t)ids[i]);
        put32(to + 2, bits);
    }
    w->used += bytes;
}

int sl_trace_finish(struct sl_trace_writer *w, bool keep, struct sl_err *err)
{
    flush(w);
    int rc = w->rc;
    if (rc && err) *err = w->err;
    if (rc || !keep)
        sl_tmp_discard(w->fd, w->path);
    else
        rc = sl_tmp_publish(w->fd, w->path, err);
    free(w->path);
    free(w);
    return rc;
}

/* ------------------------------------------------------------------ reading */

struct reading {
    const unsigned char *bytes;
    size_t len, at;
    const char *path;
    struct sl_trace *t;
};

static int bad(const struct reading *r, struct sl_err *err, const char *what, uint64_t got,
               uint64_t limit)
{
    char where[40];
    snprintf(where, sizeof where, "byte %zu", r->at);
    return sl_fail(err, SL_E_SOURCE, r->path, where, "%s is %llu, allowed is %llu at most", what,
                   (unsigned long long)got, (unsigned long long)limit);
}

static int cut(const struct reading *r, struct sl_err *err)
{
    char where[40];
    snprintf(where, sizeof where, "byte %zu", r->at);
    return sl_fail(err, SL_E_SOURCE, r->path, where, "the file ends inside a record");
}

static int read_head(struct reading *r, struct sl_err *err)
{
    struct sl_trace *t = r->t;
    if (r->len < HEAD_BYTES || memcmp(r->bytes, SL_TRACE_MAGIC, 8) != 0)
        return sl_fail(err, SL_E_SOURCE, r->path, NULL, "not a route trace: no %s at its start",
                       SL_TRACE_MAGIC);
    uint32_t layers = sl_le32(r->bytes + 8);
    uint32_t experts = sl_le32(r->bytes + 12);
    uint32_t k = sl_le32(r->bytes + 16);
    r->at = 8;
    if (layers < 1 || layers > LAYERS_MAX) return bad(r, err, "n_layers", layers, LAYERS_MAX);
    r->at = 12;
    if (experts < 1 || experts > 65536) return bad(r, err, "n_experts", experts, 65536);
    r->at = 16;
    if (k < 1 || k > experts || k > 1024)
        return bad(r, err, "k", k, experts < 1024 ? experts : 1024);
    t->n_layers = (int)layers;
    t->n_experts = (int)experts;
    t->k = (int)k;
    r->at = HEAD_BYTES;
    return 0;
}

/* Checks one record and steps over it; fills it where tables are there (second pass). seen[expert]:
 * number of the last record that named it. */
static int read_record(struct reading *r, uint32_t *seen, struct sl_err *err)
{
    struct sl_trace *t = r->t;
    if (r->len - r->at < RECORD_BYTES) return cut(r, err);
    const unsigned char *p = r->bytes + r->at;
    uint32_t layer = sl_le16(p + 4);
    uint32_t k = sl_le16(p + 6);
    if (layer >= (uint32_t)t->n_layers)
        return bad(r, err, "layer", layer, (uint64_t)t->n_layers - 1);
    if (k < 1 || k > (uint32_t)t->k) return bad(r, err, "k", k, (uint64_t)t->k);
    if (r->len - r->at - RECORD_BYTES < (size_t)k * PAIR_BYTES) return cut(r, err);
    if (t->records)
        t->records[t->n_records] =
            (struct sl_trace_record){sl_le32(p), (uint16_t)layer, (uint16_t)k, t->n_ids};
    p += RECORD_BYTES;
    for (uint32_t i = 0; i < k; i++, p += PAIR_BYTES) {
        uint32_t id = sl_le16(p);
        uint32_t bits = sl_le32(p + 2);
        float weight;
        memcpy(&weight, &bits, sizeof weight);
        if (id >= (uint32_t)t->n_experts)
            return bad(r, err, "an expert", id, (uint64_t)t->n_experts - 1);
        if (seen[id] == (uint32_t)(t->n_records + 1))
            return bad(r, err, "a repetition of an expert", id, 0);
        seen[id] = (uint32_t)(t->n_records + 1);
        if (!isfinite(weight)) return bad(r, err, "bits of a weight", bits, 0);
        if (t->records) {
            t->ids[t->n_ids + i] = (uint16_t)id;
            t->weights[t->n_ids + i] = weight;
        }
    }
    t->n_records++;
    t->n_ids += k;
    r->at += RECORD_BYTES + (size_t)k * PAIR_BYTES;
    return 0;
}

static int read_all(struct reading *r, uint32_t *seen, struct sl_err *err)
{
    int rc = 0;
    r->at = HEAD_BYTES;
    r->t->n_records = r->t->n_ids = 0;
    memset(seen, 0, (size_t)r->t->n_experts * sizeof *seen);
    while (!rc && r->at < r->len) rc = read_record(r, seen, err);
    return rc;
}

int sl_trace_read(struct sl_trace **out, const char *path, struct sl_err *err)
{
    char *bytes = NULL;
    size_t len = 0;
    uint32_t *seen = NULL;
    *out = NULL;
    struct sl_trace *t = calloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    int rc = sl_read_file(&bytes, &len, path, TRACE_MAX, SL_E_SOURCE, err);
    struct reading r = {(const unsigned char *)bytes, len, 0, path, t};
    if (!rc) rc = read_head(&r, err);
    if (!rc && !(seen = calloc((size_t)t->n_experts + 1, sizeof *seen)))
        rc = sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    if (!rc && seen) rc = read_all(&r, seen, err); /* counts and checks; then the same with room */
    if (!rc && seen) {
        t->ids = malloc((t->n_ids + 1) * sizeof *t->ids);
        t->weights = malloc((t->n_ids + 1) * sizeof *t->weights);
        t->records = malloc((t->n_records + 1) * sizeof *t->records);
        rc = t->ids && t->weights && t->records
                 ? read_all(&r, seen, err)
                 : sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    }
    free(seen);
    free(bytes);
    if (rc) {
        sl_trace_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

uint64_t sl_trace_experts(const struct sl_trace *t)
{
    bool seen[LAYERS_MAX] = {false};
    uint64_t layers = 0;
    for (uint64_t r = 0; r < t->n_records; r++) {
        layers += !seen[t->records[r].layer];
        seen[t->records[r].layer] = true;
    }
    return layers * (uint64_t)t->n_experts;
}

void sl_trace_free(struct sl_trace *t)
{
    if (!t) return;
    free(t->records);
    free(t->ids);
    free(t->weights);
    free(t);
}
