/* The JSON body of a request, checked field by field.
 *
 * A body is hostile until it has passed here: UTF-8, size, nesting, types and ranges. A field that we do
 * not know is ignored, as the API's other servers do, but one that would change what the answer means
 * and is not served (n above 1, penalties, logit_bias, echo, ...) is refused by name: an answer that
 * looks right and is not what was asked for is worse than an error. A NUL in a string is refused too,
 * cJSON would cut the text there.
 *
 * Faults are errors in the API's own shape: {"error": {message, type, param, code}} and a status. */
#ifndef SL_RUNTIME_SERVE_REQUEST_H
#define SL_RUNTIME_SERVE_REQUEST_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_serve_fault {
    int status;       /* of HTTP: 400, 401, 404, ... */
    const char *type; /* "invalid_request_error", ...; static */
    const char *code; /* "unsupported_value", ...; static, NULL: null */
    char param[96];   /* the field, empty: null */
    char message[1280];
};

/* Fills f (status, type, code, param may be NULL, message) and returns -1. */
int sl_serve_refuse(struct sl_serve_fault *f, int status, const char *type, const char *code,
                    const char *param, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

enum sl_serve_kind { SL_SERVE_CHAT, SL_SERVE_COMPLETION };
enum sl_serve_format { SL_SERVE_TEXT, SL_SERVE_JSON_OBJECT, SL_SERVE_JSON_SCHEMA };

#define SL_SERVE_STOPS        16
#define SL_SERVE_STOP_BYTES   1024
#define SL_SERVE_TOP_LOGPROBS 20

struct sl_serve_request {
    enum sl_serve_kind kind;
    cJSON *tree;       /* owns every string below */
    const char *model; /* NULL: not given */
    bool stream, include_usage;
    bool logprobs;
    int top_logprobs;   /* 0 to SL_SERVE_TOP_LOGPROBS */
    int64_t max_tokens; /* 0 or more; -1: not given */
    double temperature, top_p;
    uint64_t seed;
    bool seeded; /* false: the server draws a seed */
    const char *stop[SL_SERVE_STOPS];
    int n_stop;
    enum sl_serve_format format;
    const cJSON *schema; /* of JSON_SCHEMA, compiled by serve_schema.h */
    bool one_call;       /* parallel_tool_calls false: the turn ends with its first call */
    bool ignore_eos;
    /* Of a completion: text, or ids in prompt (a JSON array of n_prompt_ids whole numbers). */
    const char *prompt;
    const cJSON *prompt_ids;
    int n_prompt_ids;
};

/* 0, or -1 with *f filled; r is emptied then. Messages and tools of a chat are only looked at for their
 * type here (serve_prompt.h turns them into ids). */
int sl_serve_request_parse(struct sl_serve_request *r, enum sl_serve_kind kind, const char *body,
                           size_t len, struct sl_serve_fault *f);
void sl_serve_request_free(struct sl_serve_request *r);

/* For a fuzzer: the low bit of the first byte picks the kind (0 chat, 1 completion), the rest is the
 * body; a chat goes on to its messages and its schema. Always 0. Corpus: tests/fuzz/http/. */
int sl_serve_request_fuzz(const uint8_t *data, size_t size);

#endif
