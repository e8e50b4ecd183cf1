/* GGUF files, version 3, as a table of values and a table of tensors, all validated.
 *
 *   [ "GGUF" | u32 version | u64 n_tensors | u64 n_values
 *   | values: key, u32 type, value ... | tensors: name, dims, type, offset ... | pad | data ]
 *
 * A model is one file or splits named NAME-00001-of-00003.gguf; the first split holds the values.
 * Accepted are files whose every length, count, type and offset has been checked against the file: names
 * unique, tensors inside the data and apart from each other. Nothing is mapped; weights are read with
 * pread. All errors are SL_E_SOURCE (SL_E_NOMEM apart) and name file, key or tensor, and value. Open
 * and forget: read-only after opening, safe to share. Format: the public GGUF specification, version 3. */
#ifndef SL_CONVERT_GGUF_H
#define SL_CONVERT_GGUF_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/strmap.h"

#define SL_GGUF_MAGIC   "GGUF"
#define SL_GGUF_VERSION 3
#define SL_GGUF_ALIGN   32 /* of tensor data, unless general.alignment says otherwise */
#define SL_GGUF_SPLITS  4096
#define SL_GGUF_NAME    127 /* longest tensor name */

enum sl_gguf_type {
    SL_GGUF_U8 = 0,
    SL_GGUF_I8 = 1,
    SL_GGUF_U16 = 2,
    SL_GGUF_I16 = 3,
    SL_GGUF_U32 = 4,
    SL_GGUF_I32 = 5,
    SL_GGUF_F32 = 6,
    SL_GGUF_BOOL = 7,
    SL_GGUF_STRING = 8,
    SL_GGUF_ARRAY = 9,
    SL_GGUF_U64 = 10,
    SL_GGUF_I64 = 11,
    SL_GGUF_F64 = 12
};

/* Types of tensors that this program reads; others are refused by name. */
enum sl_ggml_type {
    SL_GGML_F32 = 0,
    SL_GGML_F16 = 1,
    SL_GGML_Q8_0 = 8, /* 32 weights: f16 scale, 32 int8 codes */
    SL_GGML_BF16 = 30,
    SL_GGML_MXFP4 = 39, /* 32 weights: E8M0 scale, 16 bytes; byte j: element j low, j + 16 high */
};
#define SL_GGML_Q8_0_BYTES  34
#define SL_GGML_MXFP4_BYTES 17
const char *sl_ggml_name(uint32_t type); /* "Q4_K" too; "type 99" for an unknown one */
/* Weights and bytes of a block; false for a type that is not read. */
bool sl_ggml_block(uint32_t type, uint32_t *weights, uint32_t *bytes);

struct sl_gguf_value {
    const char *key;
    uint32_t type;      /* enum sl_gguf_type */
    uint32_t item_type; /* of an array */
    uint64_t n;         /* items of an array, bytes of a string, 1 */
    const uint8_t *at;  /* the value, or the first item, as in the file */
    uint64_t bytes;     /* from `at` to the end of the value */
};

struct sl_gguf_tensor {
    const char *name;
    uint32_t type; /* enum sl_ggml_type */
    uint8_t n_dims;
    uint16_t file;
    uint64_t ne[4];         /* fastest first; 1 beyond n_dims */
    uint64_t offset, bytes; /* absolute in the file */
};

struct sl_gguf_file {
    char *name, *path;
    int fd;
    uint64_t bytes, header_bytes; /* header: all before the data */
    uint8_t *header;              /* values point into it */
};

struct sl_gguf {
    struct sl_gguf_file *files;
    int n_files;
    struct sl_gguf_value *values; /* of the first file */
    int n_values;
    struct sl_gguf_tensor *tensors;
    uint32_t n_tensors;
    struct sl_strmap *keys, *by_name; /* with their NUL */
    uint64_t payload_bytes;
    char sha256[65]; /* over name, u64 LE size and header of each file */
};

/* True when path is a file that begins with the magic, or a folder that holds a *.gguf and no
 * config.json: what sl_gguf_open() should be asked about. */
bool sl_gguf_is(const char *path);

/* path: the file, any one of its splits, or a folder with one model. */
int sl_gguf_open(struct sl_gguf **out, const char *path, struct sl_err *err);
void sl_gguf_close(struct sl_gguf *g); /* NULL is fine */

const struct sl_gguf_value *sl_gguf_value(const struct sl_gguf *g,
                                          const char *key); /* NULL: none */
const struct sl_gguf_tensor *sl_gguf_find(const struct sl_gguf *g,
                                          const char *name); /* NULL: none */

/* Typed values. A missing key is an error when `needed`, else *out stays as it is. Integers of any
 * width are taken, floats of both; outside [min, max] is an error. */
int sl_gguf_int(const struct sl_gguf *g, const char *key, bool needed, int64_t min, int64_t max,
                int64_t *out, struct sl_err *err);
int sl_gguf_f64(const struct sl_gguf *g, const char *key, bool needed, double min, double max,
                double *out, struct sl_err *err);
int sl_gguf_bool(const struct sl_gguf *g, const char *key, bool needed, bool *out,
                 struct sl_err *err);
/* *s is not terminated. */
int sl_gguf_str(const struct sl_gguf *g, const char *key, bool needed, const char **s,
                uint64_t *len, struct sl_err *err);
/* Array of integers: i-th item, i < v->n. */
bool sl_gguf_item_int(const struct sl_gguf_value *v, uint64_t i, int64_t *out);

/* n bytes at `at` within the tensor's data. */
int sl_gguf_read(const struct sl_gguf *g, const struct sl_gguf_tensor *t, uint64_t at, void *buf,
                 uint64_t n, struct sl_err *err);

/* One file, for sl_gguf_open: parses the header of an open file. Values and names point into
 * f->header; offsets are absolute. first: values are returned, else only checked. */
struct sl_gguf_parsed {
    struct sl_gguf_value *values;
    int n_values;
    struct sl_gguf_tensor *tensors;
    uint32_t n_tensors;
    struct sl_strmap *keys;
};
int sl_gguf_parse(struct sl_gguf_file *f, struct sl_gguf_parsed *out, struct sl_err *err);
void sl_gguf_parsed_free(struct sl_gguf_parsed *p);

#endif
