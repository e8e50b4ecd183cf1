/* JSON that was asked for: does the answer parse, and does it match the schema?
 *
 * The model is asked for JSON in its prompt, nothing forces it. So the finished answer is checked here,
 * and a failure is told to the client instead of being passed off as success (see serve_answer.h).
 *
 * Of JSON Schema (2020-12) the keywords below are checked; annotations (title, description, default,
 * examples, format, $schema, $id, $comment, readOnly, writeOnly, deprecated, strict) mean nothing here;
 * any other keyword is refused when the request comes in, since ignoring it would be a false promise.
 *
 *   type enum const  allOf anyOf oneOf not  $ref (#/... only) $defs definitions
 *   properties required additionalProperties minProperties maxProperties
 *   items prefixItems minItems maxItems uniqueItems
 *   minimum maximum exclusiveMinimum exclusiveMaximum multipleOf  minLength maxLength pattern
 *
 * Nesting of schema and value together is bounded, so that a schema that refers to itself ends. */
#ifndef SL_RUNTIME_SERVE_SCHEMA_H
#define SL_RUNTIME_SERVE_SCHEMA_H

#include <cjson/cJSON.h>
#include <stddef.h>

/* 0 when every keyword is one of the above and well-formed; else -1 and the reason in why[n]. */
int sl_serve_schema_check(const cJSON *schema, char *why, size_t n);

/* 0 when value matches the checked schema; else -1 and, in why[n], the path and the keyword. */
int sl_serve_schema_match(const cJSON *schema, const cJSON *value, char *why, size_t n);

/* 0 when text[len] is one JSON value (an object where schema is NULL) that matches schema. */
int sl_serve_schema_judge(const cJSON *schema, const char *text, size_t len, char *why, size_t n);

#endif
