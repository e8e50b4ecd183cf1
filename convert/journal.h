/* Journal: a text file of records, each with its own checksum, that survives a kill at any byte.
 *
 *   5a1c09e2 unit bank 3\n        crc32 of the text after the space, the text, a newline
 *
 * It is created whole (temporary name, sync, rename) with its first records, then grows by one synced
 * line at a time. A last line that is torn counts as not written; a bad line before others is damage.
 * The folder that holds it is locked while a journal is open, so two conversions cannot share one. */
#ifndef SL_CONVERT_JOURNAL_H
#define SL_CONVERT_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

struct sl_journal {
    char *path;
    int fd;         /* the file, -1 while there is none */
    int lock_fd;    /* the folder, locked */
    char **records; /* texts without checksum and newline, in order */
    int n;
    bool torn;              /* the file goes on after `end` with a record that does not count */
    unsigned long long end; /* bytes of the file that are good */
};

/* Opens DIR/journal of an existing folder and locks the folder (SL_E_ARG when another process has it).
 * No file yet: n is 0, and sl_journal_create must follow. SL_E_PACK when it is damaged. */
int sl_journal_open(struct sl_journal **out, const char *dir, struct sl_err *err);
void sl_journal_close(struct sl_journal *j); /* NULL is fine */

/* Writes the first records in one atomic step. */
int sl_journal_create(struct sl_journal *j, const char *const *records, int n, struct sl_err *err);
/* Appends one record and syncs it. The text must not hold a newline. */
int sl_journal_append(struct sl_journal *j, const char *record, struct sl_err *err);

/* Rest of the last record that begins with `key` and a space, or is `key`; NULL when there is none. */
const char *sl_journal_find(const struct sl_journal *j, const char *key);

#endif
