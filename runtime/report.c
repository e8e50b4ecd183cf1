/* JSON reports: common keys first, text in one piece, numbers exact (see report.h).
 *
 * cJSON prints a whole number of up to 15 digits as such and tries 17 digits for the rest, so byte
 * counts stay readable and doubles survive the round trip. */
#include "runtime/report.h"

#include <math.h>
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

void sl_report_u64(cJSON *obj, const char *key, uint64_t value)
{
    cJSON_AddNumberToObject(obj, key, (double)value);
}

void sl_report_f64(cJSON *obj, const char *key, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(obj, key, value);
    else
        cJSON_AddNullToObject(obj, key);
}

void sl_report_str(cJSON *obj, const char *key, const char *value)
{
    cJSON_AddStringToObject(obj, key, value);
}

void sl_report_bool(cJSON *obj, const char *key, int value)
{
    cJSON_AddBoolToObject(obj, key, value != 0);
}

static int render(cJSON *obj, char **text, struct sl_err *err)
{
    *text = obj ? cJSON_PrintUnformatted(obj) : NULL;
    cJSON_Delete(obj);
    return *text ? 0 : sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the JSON report");
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
