/* Progress on a terminal: one line, rewritten 5 times a second, with rate and ETA; quiet elsewhere.
 *
 *     convert  31/92 layers  489/1447 GB  1.62 GB/s  eta 9m51s
 *
 * Thread-safe: workers add, whoever notices that 200 ms have passed draws. */
#ifndef SL_BASE_PROGRESS_H
#define SL_BASE_PROGRESS_H

#include <stdint.h>

struct sl_progress;

/* verb: "convert"; unit: "layers" (NULL: bytes only). Draws on stderr when it is a terminal, or when
 * SLUICE_PROGRESS=1 (tests). NULL return (no memory) is accepted by the other calls. */
struct sl_progress *sl_progress_open(const char *verb, const char *unit, uint64_t total_units,
                                     uint64_t total_bytes);
void sl_progress_add(struct sl_progress *p, uint64_t units, uint64_t bytes);
/* Work done by an earlier run: counted in the total, not in the rate. */
void sl_progress_skip(struct sl_progress *p, uint64_t units, uint64_t bytes);
void sl_progress_close(struct sl_progress *p); /* clears the line */

#endif
