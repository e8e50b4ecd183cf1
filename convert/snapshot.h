/* A checkpoint folder: where it really is, which shards it must have, what else is worth carrying.
 *
 *   DIR/config.json model-*.safetensors ...              a snapshot, files or links to ../../blobs/SHA
 *   models--ORG--NAME/refs/main, snapshots/REV/...       a cache folder: refs/main says which REV
 *
 * Looks at names only; opens no shard. All errors are SL_E_SOURCE. */
#ifndef SL_CONVERT_SNAPSHOT_H
#define SL_CONVERT_SNAPSHOT_H

#include "base/err.h"
#include "convert/safetensors_index.h"

struct sl_names {
    char **list; /* sorted, distinct; each malloc'ed */
    int n;
};
void sl_names_free(struct sl_names *names);

/* The folder that holds config.json, malloc'ed: `given` itself, or the snapshot of a cache folder. */
int sl_snapshot_find(char **dir, const char *given, struct sl_err *err);

/* Shard names, sorted. With an index: exactly its files, and no other *.safetensors may lie beside
 * them. Without: every *.safetensors. Names numbered -NNNNN-of-MMMMMM must be complete. A shard counts
 * as present when the file is there, or SAVED_DIR/NAME.header is (saved_dir may be NULL). */
int sl_snapshot_shards(struct sl_names *shards, const char *dir, const struct sl_index *index,
                       const char *saved_dir, struct sl_err *err);

/* Small files to carry along (config, tokenizer, generation defaults, code, licence), sorted; shards
 * and index are not among them. */
int sl_snapshot_extras(struct sl_names *extras, const char *dir, struct sl_err *err);

#endif
