/* cJSON behind typed getters whose errors name file, key path, wanted type and found value. */
#ifndef SL_BASE_JSON_H
#define SL_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

/* Parses text[len] (need not be terminated; must be one whole value, nothing but white space after
 * it). Nesting is bounded by cJSON. code is SL_E_SOURCE or SL_E_PACK, as for all functions here.
 * The caller frees *out with cJSON_Delete. */
int sl_json_parse(cJSON **out, const char *text, size_t len, const char *file, int code,
                  struct sl_err *err);
/* Reads and parses a file of at most max_bytes. */
int sl_json_read(cJSON **out, const char *path, uint64_t max_bytes, int code, struct sl_err *err);

/* Typed members of an object; `file` and `code` as above. A missing key, another type, a non-integer
 * number or a value outside [min, max] is an error. Strings stay owned by the tree. */
int sl_json_int(const cJSON *obj, const char *key, int64_t min, int64_t max, int64_t *out,
                const char *file, int code, struct sl_err *err);
int sl_json_f64(const cJSON *obj, const char *key, double min, double max, double *out,
                const char *file, int code, struct sl_err *err);
int sl_json_bool(const cJSON *obj, const char *key, bool *out, const char *file, int code,
                 struct sl_err *err);
int sl_json_str(const cJSON *obj, const char *key, const char **out, const char *file, int code,
                struct sl_err *err);
int sl_json_obj(const cJSON *obj, const char *key, const cJSON **out, const char *file, int code,
                struct sl_err *err);
int sl_json_arr(const cJSON *obj, const char *key, const cJSON **out, const char *file, int code,
                struct sl_err *err);
/* Offsets and sizes: exact integers up to 2^53, in a number. */
int sl_json_u64(const cJSON *obj, const char *key, uint64_t max, uint64_t *out, const char *file,
                int code, struct sl_err *err);

#endif
