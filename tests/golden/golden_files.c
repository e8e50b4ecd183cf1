/* See golden_files.h. The files are our own test data: a fault in them fails the test. */
#include "tests/golden/golden_files.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"

const char *golden_shared(void)
{
    const char *dir = getenv("SLUICE_SHARED");
    return dir && *dir ? dir : "../shared";
}

bool golden_present(const char *source)
{
    char path[SL_PATH_MAX];
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/golden/golden.json", source);
    return sl_file_size(path, &bytes, SL_E_SOURCE, NULL) == 0;
}

void golden_load(struct golden *g, const char *source)
{
    char path[SL_PATH_MAX + 16];
    struct sl_err err = {0};
    snprintf(g->dir, sizeof g->dir, "%s/golden", source);
    snprintf(path, sizeof path, "%s/golden.json", g->dir);
    if (sl_json_read(&g->json, path, 64 << 20, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
}

void golden_free(struct golden *g)
{
    cJSON_Delete(g->json);
}

static int read_ints(const cJSON *list, int32_t *out, int max)
{
    int n = 0;
    const cJSON *v;
    cJSON_ArrayForEach(v, list)
    {
        assert_true(n < max);
        out[n++] = (int32_t)v->valuedouble;
    }
    return n;
}

int golden_n_seqs(const struct golden *g)
{
    return cJSON_GetArraySize(cJSON_GetObjectItem(g->json, "sequences"));
}

void golden_seq_at(const struct golden *g, int i, struct golden_seq *out)
{
    const cJSON *s = cJSON_GetArrayItem(cJSON_GetObjectItem(g->json, "sequences"), i);
    assert_non_null(s);
    memset(out, 0, sizeof *out);
    out->name = cJSON_GetStringValue(cJSON_GetObjectItem(s, "name"));
    out->logits = cJSON_GetStringValue(cJSON_GetObjectItem(s, "logits"));
    out->n_ids = read_ints(cJSON_GetObjectItem(s, "ids"), out->ids, 512);
    out->n_next = read_ints(cJSON_GetObjectItem(s, "greedy_next"), out->next, 64);
    assert_true(out->n_ids > 0);
}

void golden_seq_named(const struct golden *g, const char *name, struct golden_seq *out)
{
    for (int i = 0; i < golden_n_seqs(g); i++) {
        golden_seq_at(g, i, out);
        if (strcmp(out->name, name) == 0) return;
    }
    fail_msg("golden.json: no sequence %s", name);
}

void golden_ids(const char *source, int32_t *ids, int n)
{
    struct golden g;
    char path[SL_PATH_MAX + 32];
    golden_load(&g, source);
    snprintf(path, sizeof path, "%s/valid-ids.u16", g.dir);
    if (access(path, F_OK) == 0) {
        char *bytes;
        size_t len;
        assert_int_equal(sl_read_file(&bytes, &len, path, 1 << 24, SL_E_SOURCE, NULL), 0);
        assert_true(len >= 2 * (size_t)n);
        for (int t = 0; t < n; t++) ids[t] = sl_le16(bytes + 2 * t);
        free(bytes);
    } else {
        struct golden_seq q;
        golden_seq_named(&g, "len-300", &q);
        assert_int_equal(q.n_ids, n);
        memcpy(ids, q.ids, sizeof *ids * (size_t)n);
    }
    golden_free(&g);
}

float *golden_floats(const struct golden *g, const char *file, size_t count)
{
    char path[SL_PATH_MAX + 256];
    char *bytes;
    size_t len;
    struct sl_err err = {0};
    snprintf(path, sizeof path, "%s/%s", g->dir, file);
    if (sl_read_file(&bytes, &len, path, 1 << 30, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
    assert_int_equal(len, count * sizeof(float));
    return (float *)bytes;
}

void golden_trace_array(const struct golden *g, const char *bytes, const char *name,
                        struct golden_array *out)
{
    const cJSON *trace = cJSON_GetObjectItem(g->json, "trace");
    const cJSON *a;
    memset(out, 0, sizeof *out);
    cJSON_ArrayForEach(a, cJSON_GetObjectItem(trace, "arrays"))
    {
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(a, "name")), name) != 0) continue;
        out->n_dims = read_ints(cJSON_GetObjectItem(a, "shape"), out->shape, 4);
        out->n_layers = read_ints(cJSON_GetObjectItem(a, "layers"), out->layers, 64);
        out->count = 1;
        for (int i = 0; i < out->n_dims; i++) out->count *= (size_t)out->shape[i];
        const char *at = bytes + (size_t)cJSON_GetNumberValue(cJSON_GetObjectItem(a, "offset"));
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(a, "dtype")), "int32") == 0)
            out->i = (const int32_t *)at;
        else
            out->f = (const float *)at;
        return;
    }
    fail_msg("golden.json: no trace array %s", name);
}

int golden_argmax(const float *row, int vocab)
{
    int best = 0;
    for (int i = 1; i < vocab; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

double golden_log_sum(const float *row, int vocab)
{
    const double max = row[golden_argmax(row, vocab)];
    double sum = 0;
    for (int i = 0; i < vocab; i++) sum += exp(row[i] - max);
    return max + log(sum);
}

static float lead(const float *row, int vocab)
{
    const int best = golden_argmax(row, vocab);
    float second = -INFINITY;
    for (int i = 0; i < vocab; i++)
        if (i != best && row[i] > second) second = row[i];
    return row[best] - second;
}

void golden_compare(struct golden_diff *d, const float *got, const float *want, int rows, int vocab)
{
    memset(d, 0, sizeof *d);
    d->rows = rows;
    for (int t = 0; t < rows; t++, got += vocab, want += vocab) {
        const double a = golden_log_sum(got, vocab);
        const double b = golden_log_sum(want, vocab);
        for (int i = 0; i < vocab; i++) {
            const double diff = fabs((got[i] - a) - (want[i] - b));
            if (!(diff <= d->max_log_prob)) d->max_log_prob = diff; /* NaN too */
        }
        if (!(lead(want, vocab) > 1e-3f)) continue;
        d->clear_rows++;
        d->top1_wrong += golden_argmax(got, vocab) != golden_argmax(want, vocab);
    }
}
