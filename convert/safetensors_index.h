/* model.safetensors.index.json: which file holds which tensor (497,220 names in the release).
 *
 * Walked once into a hash table and freed; nothing is ever looked up in cJSON's lists. */
#ifndef SL_CONVERT_SAFETENSORS_INDEX_H
#define SL_CONVERT_SAFETENSORS_INDEX_H

#include <stdbool.h>
#include "base/err.h"
#include "base/strmap.h"

#define SL_INDEX_NAME "model.safetensors.index.json"

struct sl_index {
    struct sl_strmap *file_of; /* tensor name -> number of its file */
    struct sl_strmap *files;   /* file name -> number, in order of first use */
    bool has_total;
    uint64_t total_size; /* metadata.total_size */
};

/* path is read, at most max_bytes. File names must be plain names that end in .safetensors. Errors are
 * SL_E_SOURCE and name the file "model.safetensors.index.json". */
int sl_index_read(struct sl_index *ix, const char *path, uint64_t max_bytes, struct sl_err *err);
void sl_index_free(struct sl_index *ix);

/* Number of a file, -1 when the index does not name it. */
int sl_index_file(const struct sl_index *ix, const char *name);
/* Name of the file with that number, into buf[n]. */
const char *sl_index_file_name(const struct sl_index *ix, uint32_t number, char *buf, size_t n);

#endif
