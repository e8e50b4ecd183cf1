/* Calibration statistics on disk: one container of named sections (docs/formats/stats.md).
 *
 *   header 64 B | sections, zlib each | index
 *
 * Written whole to a temporary name and renamed. A reader checks magic, version, sizes, index and, when
 * a section is read, its crc32 and length: files are hostile until then. Names tell layer and content,
 * "L003.latent"; what they hold is for their users to say (calib.h). */
#ifndef SL_QUANT_STATS_FILE_H
#define SL_QUANT_STATS_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define SL_STATS_NAME 40 /* longest section name, NUL included */

struct sl_stats_out;
int sl_stats_create(struct sl_stats_out **out, const char *path, struct sl_err *err);
int sl_stats_put(struct sl_stats_out *o, const char *name, const void *data, size_t bytes,
                 struct sl_err *err);
/* Writes index and header, syncs, renames. o is freed in any case; on failure nothing is left. */
int sl_stats_publish(struct sl_stats_out *o, struct sl_err *err);
void sl_stats_discard(struct sl_stats_out *o); /* NULL is fine */

struct sl_stats_in;
/* SL_E_SOURCE for anything that is not a whole, sound file of this version. */
int sl_stats_open(struct sl_stats_in **out, const char *path, struct sl_err *err);
void sl_stats_close(struct sl_stats_in *in);
bool sl_stats_has(const struct sl_stats_in *in, const char *name);
/* A section of exactly `bytes` bytes into data; a missing one, another length or a wrong crc32 is
 * SL_E_SOURCE naming file and section. Safe from several threads at once. */
int sl_stats_get(const struct sl_stats_in *in, const char *name, void *data, size_t bytes,
                 struct sl_err *err);
/* Length of a section, 0 when there is none. */
uint64_t sl_stats_bytes(const struct sl_stats_in *in, const char *name);

#endif
