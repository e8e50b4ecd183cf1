/* What is on a drive after the power went.
 *
 *     tool_power_cut RECORD count              number of records
 *     tool_power_cut RECORD K FROM TO          the tree below FROM as it was after record K, made at TO
 *
 * The strict reading of POSIX: a file's bytes are those at its last sync, and a name (created, renamed,
 * removed) is on the drive once its folder was synced. Everything else is lost: nothing a program may
 * count on is more, and what file systems do beyond it can only help. Folders themselves are kept from
 * mkdir on: the one thing convert makes outside of what it syncs is the pack's own folder, which a person
 * sees missing. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/faults/power_cut.h"

enum { MAX_FILES = 4096, MAX_NAMES = 8192 };

struct bytes {
    uint8_t *p;
    uint64_t n;
};
struct file {
    struct bytes now, synced;
};
struct name {
    char *path;
    int now, durable; /* index of the file, -1: none, -2: a folder */
};

static struct file files[MAX_FILES];
static struct name names[MAX_NAMES];
static int n_files, n_names;

static void die(const char *what)
{
    fprintf(stderr, "tool_power_cut: %s\n", what);
    exit(2);
}

static struct name *name_of(const char *path)
{
    for (int i = 0; i < n_names; i++)
        if (!strcmp(names[i].path, path)) return &names[i];
    if (n_names == MAX_NAMES) die("too many names");
    names[n_names] = (struct name){strdup(path), -1, -1};
    return &names[n_names++];
}

static struct file *file_of(const char *path)
{
    struct name *m = name_of(path);
    if (m->now < 0) { /* there before the record began */
        if (n_files == MAX_FILES) die("too many files");
        m->now = n_files++;
    }
    return &files[m->now];
}

static void resize(struct bytes *b, uint64_t n)
{
    if (n > b->n) {
        b->p = realloc(b->p, n + 1);
        if (!b->p) die("out of memory");
        memset(b->p + b->n, 0, n - b->n);
    }
    b->n = n;
}

static void sync_names(const char *dir)
{
    size_t n = strlen(dir);
    for (int i = 0; i < n_names; i++) {
        const char *p = names[i].path;
        if (!strncmp(p, dir, n) && p[n] == '/' && !strchr(p + n + 1, '/'))
            names[i].durable = names[i].now;
    }
}

static void apply(const struct pc_record *r, const char *path, const char *path2,
                  const uint8_t *data)
{
    struct file *f;
    int moved;
    switch (r->op) {
    case PC_WRITE:
        f = file_of(path);
        if (r->at + r->n > f->now.n) resize(&f->now, r->at + r->n);
        memcpy(f->now.p + r->at, data, r->n);
        break;
    case PC_SYNC:
        f = file_of(path);
        resize(&f->synced, f->now.n);
        if (f->now.n) memcpy(f->synced.p, f->now.p, f->now.n);
        break;
    case PC_SYNC_DIR:
        sync_names(path);
        break;
    case PC_CREATE:
        (void)file_of(path);
        break;
    case PC_TRUNCATE:
        resize(&file_of(path)->now, r->at);
        break;
    case PC_EXTEND:
        f = file_of(path);
        if (r->at > f->now.n) resize(&f->now, r->at);
        break;
    case PC_RENAME:
        moved = name_of(path)->now;
        name_of(path)->now = -1;
        name_of(path2)->now = moved;
        break;
    case PC_MKDIR:
        name_of(path)->now = name_of(path)->durable = -2;
        break;
    case PC_UNLINK:
        name_of(path)->now = -1;
        break;
    default:
        die("unknown record");
    }
}

static void make_tree(const char *from, const char *to)
{
    char path[8192];
    mkdir(to, 0755);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n_names; i++) {
            const struct name *m = &names[i];
            if (strncmp(m->path, from, strlen(from)) != 0) continue;
            snprintf(path, sizeof path, "%s%s", to, m->path + strlen(from));
            if (pass == 0 && m->durable == -2 && mkdir(path, 0755) && errno != EEXIST) die(path);
            if (pass == 0 || m->durable < 0) continue;
            char *slash = strrchr(path, '/');
            struct stat st;
            *slash = 0;
            bool lost = stat(path, &st); /* with its folder */
            *slash = '/';
            if (lost) continue;
            const struct bytes *b = &files[m->durable].synced;
            FILE *f = fopen(path, "wbe");
            if (!f || fwrite(b->p, 1, b->n, f) != b->n || fclose(f)) die(path);
        }
}

int main(int argc, char **argv)
{
    struct pc_record r;
    long k = 0;
    FILE *f = argc >= 3 ? fopen(argv[1], "rbe") : NULL;
    if (!f) die("usage: tool_power_cut RECORD count | RECORD K FROM TO");
    long stop = argc == 5 ? strtol(argv[2], NULL, 10) : -1;
    for (; k != stop && fread(&r, sizeof r, 1, f) == 1; k++) {
        char *path = malloc(r.path_bytes + 1);
        char *path2 = malloc(r.path2_bytes + 1);
        uint8_t *data = malloc(r.data_bytes + 1);
        if (!path || !path2 || !data || fread(path, 1, r.path_bytes, f) != r.path_bytes ||
            fread(path2, 1, r.path2_bytes, f) != r.path2_bytes ||
            fread(data, 1, r.data_bytes, f) != r.data_bytes)
            die("the record is cut");
        if (argc == 5) apply(&r, path, path2, data);
        free(path);
        free(path2);
        free(data);
    }
    fclose(f);
    if (argc == 5)
        make_tree(argv[3], argv[4]);
    else
        printf("%ld\n", k);
    return 0;
}
