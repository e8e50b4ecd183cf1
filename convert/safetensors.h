/* One safetensors file: u64 header length, JSON header, data.
 *
 *   [ n: u64 LE | { "NAME": {"dtype","shape","data_offsets":[from,to]}, ... } n bytes | data ]
 *
 * Offsets count from the first data byte. A file is accepted only when its tensors tile the data
 * exactly: no overlap, no hole, no byte before or after. All errors are SL_E_SOURCE and name file,
 * tensor and value. Stateless; threads may call with their own arguments. */
#ifndef SL_CONVERT_SAFETENSORS_H
#define SL_CONVERT_SAFETENSORS_H

#include "convert/source.h"

#define SL_SAFETENSORS_HEADER_MAX ((uint64_t)128 << 20) /* bytes of JSON, whatever the config */
#define SL_TENSOR_NAME_MAX        255

/* Parses json[len], the header of a file of file_bytes whose data begins at data_start. *tensors (sorted
 * by offset, absolute, shard number set to `shard`) and *names, which they point into, become the
 * caller's to free. */
int sl_safetensors_parse(struct sl_src_tensor **tensors, uint32_t *n_tensors, char **names,
                         const char *json, size_t len, uint64_t data_start, uint64_t file_bytes,
                         uint32_t shard, const char *file, struct sl_err *err);

const char *sl_dtype_name(int dtype); /* "BF16"; "?" for an unknown number */
int sl_dtype_bytes(int dtype);        /* 0 for an unknown number */
/* "BF16 [96, 1, 4]" into buf[n]; returns buf. */
const char *sl_dtype_shape_text(char *buf, size_t n, int dtype, int n_dims, const int64_t *shape);

#endif
