/* Journal: see the header for the format. Damage is a reason to stop, not to guess: with
 * --free-source the journal is all that tells what the freed shards held. */
#define _GNU_SOURCE
#include "convert/journal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"

#define JOURNAL_MAX ((uint64_t)256 << 20)
#define CRC_DIGITS  8

static int no_memory(const struct sl_journal *j, struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, j->path, NULL, "out of memory");
}

static int remember(struct sl_journal *j, const char *text, size_t len, struct sl_err *err)
{
    char **more = realloc(j->records, (size_t)(j->n + 1) * sizeof *more);
    if (!more) return no_memory(j, err);
    j->records = more;
    more[j->n] = strndup(text, len);
    if (!more[j->n]) return no_memory(j, err);
    j->n++;
    return 0;
}

/* "crc text" of len bytes, newline not included. */
static bool line_is_good(const char *line, size_t len)
{
    char digits[CRC_DIGITS + 2];
    if (len < CRC_DIGITS + 1 || line[CRC_DIGITS] != ' ') return false;
    snprintf(digits, sizeof digits, "%08" PRIx32,
             sl_crc32(0, line + CRC_DIGITS + 1, len - CRC_DIGITS - 1));
    return !memcmp(line, digits, CRC_DIGITS);
}

static int parse(struct sl_journal *j, const char *text, size_t len, struct sl_err *err)
{
    size_t at = 0;
    while (at < len) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        if (!end || !line_is_good(text + at, n)) {
            bool last = !end || at + n + 1 == len;
            j->torn = last && j->n; /* torn while it was written: not there */
            if (j->torn) return 0;
            return sl_fail(err, SL_E_PACK, j->path, NULL,
                           "record %d is damaged; remove the unfinished pack and start over", j->n);
        }
        int rc = remember(j, text + at + CRC_DIGITS + 1, n - CRC_DIGITS - 1, err);
        if (rc) return rc;
        at += n + 1;
        j->end = at;
    }
    return 0;
}

static int load(struct sl_journal *j, struct sl_err *err)
{
    char *text;
    size_t len;
    int rc = sl_read_file(&text, &len, j->path, JOURNAL_MAX, SL_E_IO, err);
    if (rc) return rc;
    rc = parse(j, text, len, err);
    free(text);
    if (rc) return rc;
    if (!j->n)
        return sl_fail(err, SL_E_PACK, j->path, NULL,
                       "is empty; remove the unfinished pack and start over");
    j->fd = open(j->path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (j->fd < 0) return sl_fail_errno(err, SL_E_IO, errno, j->path, "open");
    return 0;
}

int sl_journal_open(struct sl_journal **out, const char *dir, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    int rc;

    *out = NULL;
    if (!sl_path_join(path, dir, "journal"))
        return sl_fail(err, SL_E_ARG, dir, NULL, "path too long");
    struct sl_journal *j = calloc(1, sizeof *j);
    if (!j) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    j->fd = j->lock_fd = -1;
    j->path = strdup(path);
    if (!j->path) {
        rc = sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
        goto fail;
    }
    j->lock_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (j->lock_fd < 0) {
        rc = sl_fail_errno(err, SL_E_IO, errno, dir, "open");
        goto fail;
    }
    if (flock(j->lock_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        rc = sl_fail(err, SL_E_ARG, dir, NULL, "another conversion is writing this pack");
        goto fail;
    } /* file systems without locks: go on */
    if (!access(path, F_OK)) {
        rc = load(j, err);
        if (rc) goto fail;
    }
    *out = j;
    return 0;
fail:
    sl_journal_close(j);
    return rc;
}

void sl_journal_close(struct sl_journal *j)
{
    if (!j) return;
    for (int i = 0; i < j->n; i++) free(j->records[i]);
    free(j->records);
    if (j->fd >= 0) close(j->fd);
    if (j->lock_fd >= 0) close(j->lock_fd);
    free(j->path);
    free(j);
}

static char *make_line(const char *record)
{
    char *line;
    assert(!strchr(record, '\n'));
    if (asprintf(&line, "%08" PRIx32 " %s\n", sl_crc32(0, record, strlen(record)), record) < 0)
        return NULL;
    return line;
}

int sl_journal_create(struct sl_journal *j, const char *const *records, int n, struct sl_err *err)
{
    char *text = NULL;
    size_t len = 0;
    int rc = 0;
    FILE *f = open_memstream(&text, &len);

    if (!f) return no_memory(j, err);
    for (int i = 0; !rc && i < n; i++) {
        char *line = make_line(records[i]);
        if (!line || fputs(line, f) < 0) rc = no_memory(j, err);
        free(line);
    }
    if (fclose(f) && !rc) rc = no_memory(j, err);
    if (!rc) rc = sl_write_file(j->path, text, len, err);
    free(text);
    return rc ? rc : load(j, err);
}

int sl_journal_append(struct sl_journal *j, const char *record, struct sl_err *err)
{
    char *line = make_line(record);
    if (!line) return no_memory(j, err);
    int rc = 0;
    if (j->torn && ftruncate(j->fd, (off_t)j->end))
        rc = sl_fail_errno(err, SL_E_IO, errno, j->path, "truncate");
    j->torn = true; /* until this one is whole */
    if (!rc) rc = sl_pwrite_all(j->fd, line, strlen(line), j->end, j->path, err);
    if (!rc && fdatasync(j->fd)) rc = sl_fail_errno(err, SL_E_IO, errno, j->path, "sync");
    if (!rc) rc = remember(j, record, strlen(record), err);
    if (!rc) {
        j->end += strlen(line);
        j->torn = false;
    }
    free(line);
    return rc;
}

const char *sl_journal_find(const struct sl_journal *j, const char *key)
{
    size_t n = strlen(key);
    for (int i = j->n - 1; i >= 0; i--) {
        const char *r = j->records[i];
        if (!strncmp(r, key, n) && (r[n] == ' ' || !r[n])) return r + n + (r[n] == ' ');
    }
    return NULL;
}
