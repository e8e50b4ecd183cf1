/* --free-source: giving back a shard's disk space once everything read from it is safely written.
 *
 * Removing the only copy of a user's weights asks for more care than reading them: sl_free_check
 * refuses beforehand whatever makes it unclear what would be removed. Shards of a cache layout are
 * links to blobs; both go. */
#ifndef SL_CONVERT_FREE_SOURCE_H
#define SL_CONVERT_FREE_SOURCE_H

#include <sys/types.h>
#include "convert/source.h"

/* SL_E_ARG: dst and source lie inside one another, a shard cannot be removed by this user, two shards
 * are one file, a blob is used by another snapshot of the cache, or a link leads to another link. */
int sl_free_check(const struct sl_source *s, const char *dst, struct sl_err *err);

/* Saves DIR/NAME.header for each shard that is still there: all that a later run needs to know of a
 * freed one (sl_source_opts). */
int sl_free_save_headers(const struct sl_source *s, const char *dir, struct sl_err *err);
uint64_t sl_free_headers_bytes(const struct sl_source *s);

/* Closes and removes a shard. Done before, wholly or half: fine. */
int sl_free_shard(struct sl_shard *sh, struct sl_err *err);

/* Space that removing a shard gives back on its file system: 0 when another hard link keeps it. */
uint64_t sl_free_gain(const struct sl_shard *sh, dev_t *dev);

/* Absolute path without links as far as it exists; out[4096]. False when too long. */
bool sl_resolve_path(const char *path, char *out);

#endif
