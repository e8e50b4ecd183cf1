/* JSON reports: common keys first, text in one piece, numbers exact (see report.h).
 *
 * cJSON prints a whole number of up to 15 digits as such and tries 17 digits for the rest, so byte
 * counts stay readable and doubles survive the round trip. */
#include "runtime/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/version.h"
#include "kernels/kernels.h"
#include "runtime/commands.h"

cJSON *sl_report_open(int threads)
{
    cJSON *o = cJSON_CreateObject();
    if (!o) return NULL;
    sl_report_u64(o, "schema", 1);
    sl_report_str(o, "version", SL_VERSION);
    sl_report_str(o, "commit", sl_build_commit);
    sl_report_str(o, "flags", sl_build_flags);
    sl_report_str(o, "isa", sl_cpu_name(sl_cpu_detect()));
    sl_report_u64(o, "threads", (uint64_t)threads);
    return o;
}

/* A report without one of its members must not pass for whole: the object is marked by its type,
 * which render() looks at. obj NULL (no memory before) stays NULL. */
static void spoil(cJSON *obj)
{
    if (obj) obj->type = cJSON_Invalid;
}

void sl_report_u64(cJSON *obj, const char *key, uint64_t value)
{
    if (!cJSON_AddNumberToObject(obj, key, (double)value)) spoil(obj);
}

void sl_report_f64(cJSON *obj, const char *key, double value)
{
    cJSON *item = isfinite(value) ? cJSON_AddNumberToObject(obj, key, value)
                                  : cJSON_AddNullToObject(obj, key);
    if (!item) spoil(obj);
}

void sl_report_str(cJSON *obj, const char *key, const char *value)
{
    if (!cJSON_AddStringToObject(obj, key, value)) spoil(obj);
}

void sl_report_bool(cJSON *obj, const char *key, int value)
{
    if (!cJSON_AddBoolToObject(obj, key, value != 0)) spoil(obj);
}

void sl_report_text(cJSON *obj, const char *key, const char *text, size_t len)
{
    char *quoted = malloc(len * 6 + 3); /* at worst every byte is \\u00XX */
    char *w = quoted;
    if (!quoted) {
        spoil(obj);
        return;
    }
    *w++ = '"';
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') {
            *w++ = '\\';
            *w++ = (char)c;
        } else if (c < 0x20 || c == 0x7f) {
            w += snprintf(w, 7, "\\u%04x", c);
        } else {
            *w++ = (char)c;
        }
    }
    *w++ = '"';
    *w = 0;
    if (!cJSON_AddRawToObject(obj, key, quoted)) spoil(obj);
    free(quoted);
}

char *sl_report_id_list(const int32_t *ids, size_t n, size_t *len)
{
    char *list = malloc(n * 12 + 1);
    char *w = list;
    if (!list) return NULL;
    for (size_t i = 0; i < n; i++) {
        char digits[12];
        int k = 0;
        for (uint32_t v = (uint32_t)ids[i]; k == 0 || v; v /= 10)
            digits[k++] = (char)('0' + v % 10);
        if (i) *w++ = ',';
        while (k) *w++ = digits[--k];
    }
    *w = 0;
    *len = (size_t)(w - list);
    return list;
}

void sl_report_ids(cJSON *obj, const char *key, const int32_t *ids, size_t n)
{
    size_t len;
    char *list = sl_report_id_list(ids, n, &len);
    char *quoted = list ? malloc(len + 3) : NULL;
    if (quoted) {
        quoted[0] = '[';
        memcpy(quoted + 1, list, len);
        memcpy(quoted + 1 + len, "]", 2);
    }
    if (!quoted || !cJSON_AddRawToObject(obj, key, quoted)) spoil(obj);
    free(quoted);
    free(list);
}

static int render(cJSON *obj, char **text, struct sl_err *err)
{
    *text = cJSON_IsObject(obj) ? cJSON_PrintUnformatted(obj) : NULL;
    cJSON_Delete(obj);
    if (*text) return 0;
    sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the JSON report");
    return SL_E_NOMEM;
}

int sl_report_print(cJSON *obj, struct sl_err *err)
{
    char *text;
    int rc = render(obj, &text, err);
    if (rc) return rc;
    rc = sl_cmd_write(text, strlen(text), err);
    if (!rc) rc = sl_cmd_write("\n", 1, err);
    if (!rc) rc = sl_cmd_flush(err);
    cJSON_free(text);
    return rc;
}

int sl_report_save(cJSON *obj, const char *path, struct sl_err *err)
{
    char *text;
    int rc = render(obj, &text, err);
    if (rc) return rc;
    rc = sl_write_file(path, text, strlen(text), err);
    cJSON_free(text);
    return rc;
}
