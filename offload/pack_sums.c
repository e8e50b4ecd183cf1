/* SHA256SUMS of a pack: made, compared (see pack_sums.h). */
#define _GNU_SOURCE
#include "offload/pack_sums.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define MANIFEST "pack.json"
#define FOLDER   "tokenizer"

enum { HEX = 64, SUMS_MAX = 1 << 20, PIECE = 1 << 16 };

/* ---- sums ---------------------------------------------------------------------------------------- */

static int sum_text(char hex[HEX + 1], const char *text, size_t len, const char *label,
                    struct sl_err *err)
{
    struct sl_sha256 *s = sl_sha256_open();
    if (!s) return sl_fail(err, SL_E_NOMEM, label, NULL, "out of memory");
    sl_sha256_add(s, text, len);
    sl_sha256_close(s, hex);
    return 0;
}

/* A missing file is SL_E_PACK. */
static int sum_file(char hex[HEX + 1], const char *dir, const char *name, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    unsigned char piece[PIECE];
    ssize_t n = 0;
    if (!sl_path_join(path, dir, name))
        return sl_fail(err, SL_E_PACK, name, NULL, "the path is too long");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sl_fail_errno(err, errno == ENOENT ? SL_E_PACK : SL_E_IO, errno, name, "open");
    struct sl_sha256 *s = sl_sha256_open();
    while (s && ((n = read(fd, piece, sizeof piece)) > 0 || (n < 0 && errno == EINTR)))
        if (n > 0) sl_sha256_add(s, piece, (size_t)n);
    int e = errno;
    close(fd);
    if (!s) return sl_fail(err, SL_E_NOMEM, name, NULL, "out of memory");
    sl_sha256_close(s, hex);
    return n < 0 ? sl_fail_errno(err, SL_E_IO, e, name, "read") : 0;
}

/* ---- writing ------------------------------------------------------------------------------------- */

uint64_t sl_sums_line_bytes(const char *name)
{
    return HEX + 2 + strlen(name) + 1;
}

static int is_file(const char *folder, const char *name)
{
    char path[SL_PATH_MAX];
    struct stat st;
    return sl_path_join(path, folder, name) && !stat(path, &st) && S_ISREG(st.st_mode);
}

/* Lines of tokenizer/, sorted so that the same files give the same bytes. A folder that is not there has
 * none. Names with a line break would not come back as they are: they are left out. */
static int put_folder(FILE *f, const char *dir, struct sl_err *err)
{
    char folder[SL_PATH_MAX];
    char hex[HEX + 1];
    struct dirent **list = NULL;
    int rc = 0;
    if (!sl_path_join(folder, dir, FOLDER))
        return sl_fail(err, SL_E_IO, dir, NULL, "the path is too long");
    int n = scandir(folder, &list, NULL, alphasort);
    if (n < 0 && errno != ENOENT) return sl_fail_errno(err, SL_E_IO, errno, folder, "look at");
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        char label[sizeof FOLDER + sizeof list[i]->d_name];
        if (!rc && !strchr(name, '\n') && is_file(folder, name)) {
            snprintf(label, sizeof label, FOLDER "/%s", name);
            rc = sum_file(hex, dir, label, err);
            fprintf(f, "%s  %s\n", rc ? "" : hex, label);
        }
        free(list[i]);
    }
    free(list);
    return rc;
}

/* Writes the sums; `before` is the sum of the pack.json to be replaced, NULL for none. */
static int write_sums(const char *dir, const char *hex, const char *before, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    char *text = NULL;
    size_t len = 0;
    if (!sl_path_join(path, dir, SL_SUMS_FILE))
        return sl_fail(err, SL_E_IO, dir, NULL, "the path is too long");
    FILE *f = open_memstream(&text, &len);
    if (!f) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    fprintf(f, "%s  " MANIFEST "\n", hex);
    if (before) fprintf(f, "%s  " MANIFEST "\n", before);
    int rc = put_folder(f, dir, err);
    int bad = ferror(f);
    bad |= fclose(f);
    if (!rc && bad) rc = sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    if (!rc) rc = sl_write_file(path, text, len, err);
    free(text);
    return rc;
}

int sl_sums_publish(const char *dir, const char *manifest, size_t len, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    char hex[HEX + 1];
    char before[HEX + 1];
    if (!sl_path_join(path, dir, MANIFEST))
        return sl_fail(err, SL_E_IO, dir, NULL, "the path is too long");
    int rc = sum_text(hex, manifest, len, path, err);
    bool replaces = !rc && !access(path, F_OK);
    if (replaces) rc = sum_file(before, dir, MANIFEST, err);
    if (!rc) rc = write_sums(dir, hex, replaces ? before : NULL, err);
    if (!rc) rc = sl_write_file(path, manifest, len, err);
    return rc || !replaces ? rc : write_sums(dir, hex, NULL, err);
}

/* ---- comparing ----------------------------------------------------------------------------------- */

struct check {
    const char *dir;
    void (*fault)(void *ctx, const char *line);
    void *ctx;
    struct sl_err *err;
    bool first;
    char manifest[HEX + 1]; /* what pack.json has; "" until it was needed */
    bool named, agrees;     /* pack.json, by some line */
};

static void tell(struct check *c, const struct sl_err *line)
{
    if (c->fault) c->fault(c->ctx, line->text);
    if (c->first && c->err) *c->err = *line;
    c->first = false;
}

static bool is_hex(const char *s)
{
    return strspn(s, "0123456789abcdef") >= HEX;
}

static bool is_ours(const char *name)
{
    if (!strcmp(name, MANIFEST)) return true;
    const char *in = name + sizeof FOLDER;
    return !strncmp(name, FOLDER "/", sizeof FOLDER) && *in && !strchr(in, '/') &&
           strcmp(in, ".") != 0 && strcmp(in, "..") != 0;
}

/* One line, NUL in place of its end. An error of the machine is returned, a difference is told. */
static int check_line(struct check *c, const char *line, int number)
{
    char got[HEX + 1];
    struct sl_err one;
    bool sound = strlen(line) > HEX + 2 && is_hex(line) && line[HEX] == ' ' &&
                 line[HEX + 1] == ' ' && is_ours(line + HEX + 2);
    if (!sound) {
        sl_fail(&one, SL_E_PACK, SL_SUMS_FILE, NULL, "line %d is damaged: \"%.100s\"", number,
                line);
        tell(c, &one);
        return 0;
    }
    const char *name = line + HEX + 2;
    bool manifest = !strcmp(name, MANIFEST);
    int rc = 0;
    if (manifest && c->manifest[0])
        memcpy(got, c->manifest, sizeof got);
    else
        rc = sum_file(got, c->dir, name, &one);
    if (rc == SL_E_PACK) {
        tell(c, &one);
        return 0;
    }
    if (rc) {
        if (c->err) *c->err = one;
        return rc;
    }
    bool same = !memcmp(got, line, HEX);
    if (manifest) {
        memcpy(c->manifest, got, sizeof got);
        c->named = true;
        c->agrees |= same;
    } else if (!same) {
        sl_fail(&one, SL_E_PACK, name, NULL,
                "sha256 %.16s..., expected %.16s... (" SL_SUMS_FILE "): the file has changed", got,
                line);
        tell(c, &one);
    }
    return 0;
}

int sl_sums_check(const char *dir, void (*fault)(void *ctx, const char *line), void *ctx, int *has,
                  struct sl_err *err)
{
    struct check c = {.dir = dir, .fault = fault, .ctx = ctx, .err = err, .first = true};
    char path[SL_PATH_MAX];
    struct sl_err one;
    char *text = NULL;
    size_t len = 0;
    if (has) *has = 0;
    if (!sl_path_join(path, dir, SL_SUMS_FILE))
        return sl_fail(err, SL_E_PACK, dir, NULL, "the path is too long");
    if (access(path, F_OK)) return 0;
    if (has) *has = 1;
    int rc = sl_read_file(&text, &len, path, SUMS_MAX, SL_E_PACK, err);
    if (rc) return rc;
    int number = 0;
    for (char *line = text; !rc && line < text + len;) {
        char *end = memchr(line, '\n', (size_t)(text + len - line));
        if (end) *end = '\0';
        rc = check_line(&c, line, ++number);
        if (!rc && !end) {
            sl_fail(&one, SL_E_PACK, SL_SUMS_FILE, NULL, "the last line is cut");
            tell(&c, &one);
        }
        line = end ? end + 1 : text + len;
    }
    free(text);
    if (!rc && !c.agrees) {
        sl_fail(&one, SL_E_PACK, MANIFEST, NULL,
                c.named ? "its sha256 is not the one in " SL_SUMS_FILE ": the file has changed"
                        : "has no line in " SL_SUMS_FILE);
        tell(&c, &one);
    }
    return rc ? rc : c.first ? 0 : SL_E_PACK;
}
