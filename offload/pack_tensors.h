/* The tensor tables of pack.json: parsed, sorted, and checked against the file they describe.
 *
 * After this every tensor has a known format, bytes that follow from format and shape, and a place
 * inside its file; two tensors either share their bytes whole (aliased layers) or not at all. */
#ifndef SL_OFFLOAD_PACK_TENSORS_H
#define SL_OFFLOAD_PACK_TENSORS_H

#include <cjson/cJSON.h>
#include "offload/pack.h"

/* Object name -> {fmt, shape, offset, bytes, crc32} into a malloc'ed array in file order. Names point
 * into `obj` until sl_pack_name_tensors() has run. file is pack.json's path, data "trunk.bin" or
 * "vision.bin" of data_bytes; verbatim allows plain formats only. SL_E_PACK. */
int sl_pack_read_tensors(struct sl_tensor **out, int *n, const cJSON *obj, const char *data,
                         uint64_t data_bytes, bool verbatim, const char *file, struct sl_err *err);

/* Fills p->by_name: trunk tensors by index, vision tensors after them; moves names into the map. A
 * name in both tables is an error. */
int sl_pack_name_tensors(struct sl_pack *p, const char *file, struct sl_err *err);

/* Trunk tensors of layer l lie in its range, all others in the range of the globals. */
int sl_pack_check_ranges(const struct sl_pack *p, const char *file, struct sl_err *err);

/* Layer of "model.layers.12.x", -1 for any other name, -2 for a layer number that is malformed. */
int sl_pack_layer_of(const char *name);

#endif
