/* What every --json report carries, so that a figure can be traced to a build and a machine. */
#ifndef SL_RUNTIME_REPORT_H
#define SL_RUNTIME_REPORT_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* {"schema":1, "version", "commit", "flags", "isa", "threads"}; NULL: no memory. The caller adds keys
 * and hands it to sl_report_print or sl_report_save. */
cJSON *sl_report_open(int threads);

/* Members; a failed allocation is noticed by print and save. Numbers must be exact below 2^53. */
void sl_report_u64(cJSON *obj, const char *key, uint64_t value);
void sl_report_f64(cJSON *obj, const char *key, double value); /* not finite: null */
void sl_report_str(cJSON *obj, const char *key, const char *value);
void sl_report_bool(cJSON *obj, const char *key, int value);
/* text[len] is well-formed UTF-8 and may hold NUL, which plain cJSON strings cannot. */
void sl_report_text(cJSON *obj, const char *key, const char *text, size_t len);
void sl_report_ids(cJSON *obj, const char *key, const int32_t *ids, size_t n);
/* "1,2,3" in malloc'ed memory, NULL: no memory. */
char *sl_report_id_list(const int32_t *ids, size_t n, size_t *len);

/* Prints the object and a newline on stdout, or replaces a file with it; frees the object in any case
 * (NULL gives SL_E_NOMEM). */
int sl_report_print(cJSON *obj, struct sl_err *err);
int sl_report_save(cJSON *obj, const char *path, struct sl_err *err);

#endif
