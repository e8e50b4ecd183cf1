/* Files are judged by name and presence before any is opened, so that a download with five shards
 * missing is told at once, and told about all five.
 *
 * A second complete set of weights in the folder (another revision, a merged file) is an error and not
 * a choice: which of the two was meant is not ours to guess. */
#define _GNU_SOURCE
#include "convert/snapshot.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

#define EXTRA_BYTES_MAX ((off_t)64 << 20)
#define NUMBERED_MAX    100000 /* "model-00001-of-100000" is past any release */

/* ---- name lists -------------------------------------------------------------------------------- */

void sl_names_free(struct sl_names *names)
{
    for (int i = 0; i < names->n; i++) free(names->list[i]);
    free(names->list);
    *names = (struct sl_names){0};
}

static int no_memory(struct sl_err *err, const char *dir)
{
    return sl_fail(err, SL_E_NOMEM, dir, NULL, "out of memory for file names");
}

static int add(struct sl_names *names, const char *name, size_t len, const char *dir,
               struct sl_err *err)
{
    if ((names->n & (names->n + 1)) == 0) { /* room doubles at 0, 1, 3, 7, ... */
        char **more = realloc(names->list, ((size_t)names->n * 2 + 1) * sizeof *more);
        if (!more) return no_memory(err, dir);
        names->list = more;
    }
    char *copy = strndup(name, len);
    if (!copy) return no_memory(err, dir);
    names->list[names->n++] = copy;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort_distinct(struct sl_names *names)
{
    if (!names->n) return;
    qsort(names->list, (size_t)names->n, sizeof *names->list, by_name);
    int kept = 1;
    for (int i = 1; i < names->n; i++) {
        if (!strcmp(names->list[i], names->list[kept - 1]))
            free(names->list[i]);
        else
            names->list[kept++] = names->list[i];
    }
    names->n = kept;
}

static bool ends_with(const char *s, size_t n, const char *end)
{
    size_t m = strlen(end);
    return n > m && !memcmp(s + n - m, end, m);
}

/* Every entry of dir that `wanted` likes, less `cut` bytes at its end. */
static int list_dir(struct sl_names *names, const char *dir, bool (*wanted)(const char *, size_t),
                    size_t cut, struct sl_err *err)
{
    DIR *d = opendir(dir);
    if (!d) return sl_fail_errno(err, SL_E_SOURCE, errno, dir, "open folder");
    int rc = 0;
    for (struct dirent *e; !rc && (errno = 0, e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (wanted(e->d_name, n)) rc = add(names, e->d_name, n - cut, dir, err);
    }
    if (!rc && errno) rc = sl_fail_errno(err, SL_E_SOURCE, errno, dir, "read folder");
    closedir(d);
    return rc;
}

/* "first, second, third and 12 more" into buf: as many names as fit. */
static const char *enumerate(char *buf, size_t n, const struct sl_names *names)
{
    size_t at = 0;
    buf[0] = '\0';
    for (int i = 0; i < names->n; i++) {
        size_t need = strlen(names->list[i]) + 2;
        if (at + need + sizeof " and 100000 more" > n) {
            snprintf(buf + at, n - at, " and %d more", names->n - i);
            break;
        }
        at += (size_t)snprintf(buf + at, n - at, "%s%s", i ? ", " : "", names->list[i]);
    }
    return buf;
}

/* ---- where the snapshot is --------------------------------------------------------------------- */

static bool is_file(const char *dir, const char *name)
{
    char path[SL_PATH_MAX];
    struct stat st;
    return sl_path_join(path, dir, name) && !stat(path, &st) && S_ISREG(st.st_mode);
}

static bool is_revision(const char *name, size_t n)
{
    (void)n;
    return name[0] != '.';
}

/* refs/main of a cache folder, else its only snapshot. */
static int cache_revision(char **rev, const char *given, const char *snapshots, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    if (is_file(given, "refs/main") && sl_path_join(path, given, "refs/main")) {
        char *text;
        size_t len;
        int rc = sl_read_file(&text, &len, path, 4096, SL_E_SOURCE, err);
        if (rc) return rc;
        while (len && isspace((unsigned char)text[len - 1])) text[--len] = '\0';
        if (!len || text[0] == '.' || strchr(text, '/')) {
            rc = sl_fail(err, SL_E_SOURCE, path, NULL, "\"%.60s\" does not name a snapshot", text);
            free(text);
            return rc;
        }
        *rev = text;
        return 0;
    }
    struct sl_names revs = {0};
    int rc = list_dir(&revs, snapshots, is_revision, 0, err);
    if (!rc && revs.n != 1)
        rc = sl_fail(err, SL_E_SOURCE, given, NULL,
                     "%d snapshots and no refs/main; name the one that is meant", revs.n);
    if (!rc) {
        *rev = revs.list[0];
        revs.list[0] = NULL;
    }
    sl_names_free(&revs);
    return rc;
}

static int find_cached(char found[SL_PATH_MAX], const char *given, struct sl_err *err)
{
    char snapshots[SL_PATH_MAX];
    if (!sl_path_join(snapshots, given, "snapshots") || !sl_is_dir(snapshots))
        return sl_fail(err, SL_E_SOURCE, given, NULL,
                       "holds no config.json: not a checkpoint folder");
    char *rev = NULL;
    int rc = cache_revision(&rev, given, snapshots, err);
    if (rc) return rc;
    if (!sl_path_join(found, snapshots, rev))
        rc = sl_fail(err, SL_E_SOURCE, given, NULL, "the path is too long");
    else if (!sl_is_dir(found))
        rc = sl_fail(err, SL_E_SOURCE, found, NULL,
                     "refs/main names this snapshot, but it is missing");
    else if (!is_file(found, "config.json"))
        rc = sl_fail(err, SL_E_SOURCE, found, NULL, "holds no config.json");
    free(rev);
    return rc;
}

int sl_snapshot_find(char **dir, const char *given, struct sl_err *err)
{
    char found[SL_PATH_MAX];
    struct stat st;
    if (stat(given, &st)) return sl_fail_errno(err, SL_E_SOURCE, errno, given, "open");
    if (!S_ISDIR(st.st_mode))
        return sl_fail(err, SL_E_SOURCE, given, NULL,
                       "is not a folder; a checkpoint is a folder with config.json and "
                       "*.safetensors");
    if (is_file(given, "config.json")) {
        if (!sl_path_join(found, given, ""))
            return sl_fail(err, SL_E_SOURCE, given, NULL, "the path is too long");
        size_t n = strlen(found);
        while (n > 1 && found[n - 1] == '/') found[--n] = '\0';
    } else {
        int rc = find_cached(found, given, err);
        if (rc) return rc;
    }
    *dir = strdup(found);
    return *dir ? 0 : no_memory(err, given);
}

/* ---- shards ------------------------------------------------------------------------------------ */

static bool is_shard_name(const char *name, size_t n)
{
    return name[0] != '.' && ends_with(name, n, ".safetensors");
}

static bool is_saved_header(const char *name, size_t n)
{
    static const char end[] = ".header";
    return ends_with(name, n, end) && is_shard_name(name, n - (sizeof end - 1));
}

/* "model-00003-of-000010.safetensors": stem "model", number 3, total 10, both widths. */
struct numbered {
    size_t stem_len;
    int number, total, number_width, total_width;
};

/* Decimal digits that end before s[end]; their value, or -1 when there are none or too many. */
static int digits_before(const char *s, size_t end, int *width)
{
    size_t from = end;
    while (from && isdigit((unsigned char)s[from - 1])) from--;
    *width = (int)(end - from);
    if (*width < 1 || *width > 9) return -1;
    int value = 0;
    for (size_t i = from; i < end; i++) value = value * 10 + (s[i] - '0');
    return value;
}

static bool parse_numbered(const char *name, struct numbered *out)
{
    size_t end = strlen(name) - strlen(".safetensors");
    out->total = digits_before(name, end, &out->total_width);
    if (out->total < 0) return false;
    end -= (size_t)out->total_width;
    if (end < 4 || memcmp(name + end - 4, "-of-", 4) != 0) return false;
    end -= 4;
    out->number = digits_before(name, end, &out->number_width);
    if (out->number < 0) return false;
    end -= (size_t)out->number_width;
    if (!end || name[end - 1] != '-') return false;
    out->stem_len = end - 1;
    return true;
}

/* Adds to `missing` every number of the first numbered name's set that no name has. */
static int number_gaps(struct sl_names *missing, const struct sl_names *names, const char *dir,
                       struct sl_err *err)
{
    struct numbered set = {0};
    const char *first = NULL;
    for (int i = 0; i < names->n && !first; i++)
        if (parse_numbered(names->list[i], &set)) first = names->list[i];
    if (!first) return 0;
    if (set.total < 1 || set.total > NUMBERED_MAX || set.number < 1 || set.number > set.total)
        return sl_fail(err, SL_E_SOURCE, first, NULL, "number %d of %d makes no sense", set.number,
                       set.total);
    bool *have = calloc((size_t)set.total + 1, sizeof *have);
    if (!have) return no_memory(err, dir);
    int rc = 0;
    for (int i = 0; i < names->n && !rc; i++) {
        struct numbered one;
        bool same = parse_numbered(names->list[i], &one) && one.stem_len == set.stem_len &&
                    !memcmp(names->list[i], first, set.stem_len) && one.total == set.total &&
                    one.number >= 1 && one.number <= set.total;
        if (!same)
            rc = sl_fail(err, SL_E_SOURCE, names->list[i], NULL,
                         "does not belong to the set of %s; move it out of %s", first, dir);
        else
            have[one.number] = true;
    }
    for (int number = 1; number <= set.total && !rc; number++) {
        if (have[number]) continue;
        char name[PATH_MAX];
        int n = snprintf(name, sizeof name, "%.*s-%0*d-of-%0*d.safetensors", (int)set.stem_len,
                         first, set.number_width, number, set.total_width, set.total);
        if (n > 0 && (size_t)n < sizeof name) rc = add(missing, name, (size_t)n, dir, err);
    }
    free(have);
    return rc;
}

static bool is_present(const char *dir, const char *saved_dir, const char *name)
{
    if (is_file(dir, name)) return true;
    char header[NAME_MAX + 16];
    int n = snprintf(header, sizeof header, "%s.header", name);
    return saved_dir && n > 0 && (size_t)n < sizeof header && is_file(saved_dir, header);
}

static int check_present(const struct sl_names *shards, const char *dir, const char *saved_dir,
                         struct sl_err *err)
{
    struct sl_names missing = {0};
    char text[896];
    int rc = number_gaps(&missing, shards, dir, err);
    int gaps = missing.n;
    for (int i = 0; i < shards->n && !rc; i++)
        if (!is_present(dir, saved_dir, shards->list[i]))
            rc = add(&missing, shards->list[i], strlen(shards->list[i]), dir, err);
    if (!rc && missing.n) {
        sort_distinct(&missing);
        rc = sl_fail(err, SL_E_SOURCE, dir, NULL, "%d of %d shards missing: %s", missing.n,
                     shards->n + gaps, enumerate(text, sizeof text, &missing));
    }
    sl_names_free(&missing);
    return rc;
}

/* Files in the folder that the index does not know. */
static int check_excess(const struct sl_names *found, const struct sl_index *index, const char *dir,
                        struct sl_err *err)
{
    struct sl_names excess = {0};
    char text[640];
    int rc = 0;
    for (int i = 0; i < found->n && !rc; i++)
        if (sl_index_file(index, found->list[i]) < 0)
            rc = add(&excess, found->list[i], strlen(found->list[i]), dir, err);
    if (!rc && excess.n)
        rc =
            sl_fail(err, SL_E_SOURCE, dir, NULL,
                    "%d file%s that " SL_INDEX_NAME " does not name: %s; move %s out of the folder",
                    excess.n, excess.n == 1 ? "" : "s", enumerate(text, sizeof text, &excess),
                    excess.n == 1 ? "it" : "them");
    sl_names_free(&excess);
    return rc;
}

int sl_snapshot_shards(struct sl_names *shards, const char *dir, const struct sl_index *index,
                       const char *saved_dir, struct sl_err *err)
{
    struct sl_names found = {0};
    struct sl_names wanted = {0};
    int rc = list_dir(&found, dir, is_shard_name, 0, err);
    if (!rc && saved_dir && sl_is_dir(saved_dir))
        rc = list_dir(&found, saved_dir, is_saved_header, strlen(".header"), err);
    if (!rc) sort_distinct(&found);
    if (!rc && index) {
        for (size_t i = 0; i < sl_strmap_count(index->files) && !rc; i++) {
            size_t len = 0;
            const char *name = sl_strmap_key(index->files, i, &len);
            rc = add(&wanted, name, len, dir, err);
        }
        sort_distinct(&wanted);
        if (!rc) rc = check_present(&wanted, dir, saved_dir, err);
        if (!rc) rc = check_excess(&found, index, dir, err);
        sl_names_free(&found);
    } else {
        wanted = found;
        found = (struct sl_names){0};
        if (!rc && !wanted.n)
            rc = sl_fail(err, SL_E_SOURCE, dir, NULL, "holds no *.safetensors file");
        if (!rc) rc = check_present(&wanted, dir, saved_dir, err);
    }
    if (rc) {
        sl_names_free(&wanted);
        return rc;
    }
    *shards = wanted;
    return 0;
}

/* ---- the small files --------------------------------------------------------------------------- */

static bool is_extra_name(const char *name, size_t n)
{
    static const char *const ends[] = {".json", ".py", ".model", ".tiktoken",
                                       ".txt",  ".md", ".jinja"};
    static const char *const starts[] = {"LICENSE", "LICENCE", "NOTICE", "THIRD_PARTY"};
    if (name[0] == '.' || !strcmp(name, SL_INDEX_NAME)) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, n, ends[i])) return true;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (!strncmp(name, starts[i], strlen(starts[i]))) return true;
    return false;
}

int sl_snapshot_extras(struct sl_names *extras, const char *dir, struct sl_err *err)
{
    struct sl_names found = {0};
    int rc = list_dir(&found, dir, is_extra_name, 0, err);
    if (!rc) sort_distinct(&found);
    for (int i = 0; i < found.n && !rc; i++) {
        char path[SL_PATH_MAX];
        struct stat st;
        bool small = sl_path_join(path, dir, found.list[i]) && !stat(path, &st) &&
                     S_ISREG(st.st_mode) && st.st_size <= EXTRA_BYTES_MAX;
        if (small) rc = add(extras, found.list[i], strlen(found.list[i]), dir, err);
    }
    sl_names_free(&found);
    if (rc) sl_names_free(extras);
    return rc;
}
