/* The folder of the prefix cache (prefix_parts.h): one file a block of rows, one a snapshot.
 *
 *   128-byte header | ids | payload | u32 crc32 of all before          DIGEST.rows, DIGEST.snap
 *
 * A name is the digest of identity, parent and ids, so that a file can be checked against its own
 * name: a header that says something else than its ids hash to is refused. What a header promises about
 * sizes must be what this model has. The payload's checksum is verified while it is read back; a file
 * that fails is removed. Files of other models are left alone. One process uses a folder at a time. */
#include "runtime/prefix_parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"

#define PREFIX_MAGIC "SLPREFX1"
enum { PREFIX_VERSION = 1, CRC_BYTES = 4, FILES_MAX = 1 << 20 };

struct file_header {
    char magic[8];
    uint32_t version, kind; /* 'b' or 's' */
    unsigned char identity[32];
    unsigned char parent[SL_PREFIX_DIGEST], digest[SL_PREFIX_DIGEST];
    uint32_t block, n_ids;
    uint64_t position, payload_bytes;
    uint32_t reserved[6];
};
_Static_assert(sizeof(struct file_header) == 128, "on disk");

static uint64_t file_bytes(uint32_t n_ids, uint64_t payload)
{
    return sizeof(struct file_header) + n_ids * sizeof(int32_t) + payload + CRC_BYTES;
}

static bool file_path(const struct sl_prefix *p, char path[SL_PATH_MAX],
                      const unsigned char digest[SL_PREFIX_DIGEST], char kind)
{
    char name[2 * SL_PREFIX_DIGEST + 8];
    for (int i = 0; i < SL_PREFIX_DIGEST; i++) snprintf(name + 2 * i, 3, "%02x", digest[i]);
    memcpy(name + 2 * SL_PREFIX_DIGEST, kind == 'b' ? ".rows" : ".snap", 6);
    return sl_path_join(path, p->dir, name);
}

static void fill_header(const struct sl_prefix *p, struct file_header *h, char kind,
                        const struct sl_prefix_block *parent,
                        const unsigned char digest[SL_PREFIX_DIGEST], uint32_t n_ids,
                        uint64_t payload)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, PREFIX_MAGIC, sizeof h->magic);
    h->version = PREFIX_VERSION;
    h->kind = (uint32_t)kind;
    memcpy(h->identity, p->identity, sizeof h->identity);
    if (parent) memcpy(h->parent, parent->digest, SL_PREFIX_DIGEST);
    memcpy(h->digest, digest, SL_PREFIX_DIGEST);
    h->block = p->block;
    h->n_ids = n_ids;
    h->position = (parent ? parent->end : 0) + n_ids;
    h->payload_bytes = payload;
}

/* What is written or read in one go. */
struct stream {
    int fd;
    uint64_t at;
    uint32_t crc;
    const char *path;
};

static int write_piece(void *ctx, void *data, uint64_t bytes)
{
    struct stream *s = ctx;
    int rc = sl_pwrite_all(s->fd, data, bytes, s->at, s->path, NULL);
    s->crc = sl_crc32(s->crc, data, bytes);
    s->at += bytes;
    return rc;
}

static int read_piece(void *ctx, void *data, uint64_t bytes)
{
    struct stream *s = ctx;
    int rc = sl_pread_all(s->fd, data, bytes, s->at, s->path, SL_E_SOURCE, NULL);
    if (!rc) s->crc = sl_crc32(s->crc, data, bytes);
    s->at += bytes;
    return rc;
}

/* ---------------------------------------------------------------- writing */

void sl_prefix_unlink(struct sl_prefix *p, const unsigned char digest[SL_PREFIX_DIGEST], char kind,
                      struct sl_prefix_place *place, uint32_t n_ids, uint64_t payload)
{
    char path[SL_PATH_MAX];
    if (!p->dir || !place->in_file) return;
    place->in_file = false;
    p->disk_used -= file_bytes(n_ids, payload);
    if (file_path(p, path, digest, kind)) unlink(path);
}

/* Cold snapshots leave, the least recently used first, until `bytes` more fit. */
static bool make_room(struct sl_prefix *p, uint64_t bytes)
{
    if (bytes > p->disk_max) return false;
    while (p->disk_used > p->disk_max - bytes) {
        struct sl_prefix_snapshot *s = p->oldest;
        while (s && (s->place.pages || !s->place.in_file)) s = s->newer;
        if (!s) return false;
        p->stats.evicted++;
        sl_prefix_drop(p, s);
    }
    return true;
}

static bool write_file(struct sl_prefix *p, const struct file_header *h, const int32_t *ids,
                       struct sl_prefix_place *place)
{
    char path[SL_PATH_MAX];
    const uint64_t bytes = file_bytes(h->n_ids, h->payload_bytes);
    if (!p->dir || !file_path(p, path, h->digest, (char)h->kind) || !make_room(p, bytes))
        return false;
    struct stream s = {.path = path};
    if (sl_tmp_open(&s.fd, path, false, NULL)) return false;
    struct file_header copy = *h;
    int rc = write_piece(&s, &copy, sizeof copy);
    if (!rc) rc = write_piece(&s, (void *)(uintptr_t)ids, h->n_ids * sizeof *ids);
    if (!rc) rc = sl_prefix_each_page(p, place, h->payload_bytes, write_piece, &s);
    uint32_t crc = s.crc;
    if (!rc) rc = write_piece(&s, &crc, sizeof crc);
    if (rc) {
        sl_tmp_discard(s.fd, path);
        return false;
    }
    /* Written once, read rarely: not worth the page cache, which belongs to others. */
    if (fdatasync(s.fd) == 0) posix_fadvise(s.fd, 0, 0, POSIX_FADV_DONTNEED);
    if (sl_tmp_publish(s.fd, path, NULL)) return false;
    place->in_file = true;
    p->disk_used += bytes;
    return true;
}

bool sl_prefix_write_block(struct sl_prefix *p, struct sl_prefix_block *b)
{
    struct file_header h;
    fill_header(p, &h, 'b', b->parent, b->digest, p->block, sl_prefix_block_bytes(p));
    return write_file(p, &h, b->ids, &b->place);
}

bool sl_prefix_write_snapshot(struct sl_prefix *p, struct sl_prefix_snapshot *s)
{
    struct file_header h;
    fill_header(p, &h, 's', s->last, s->digest, s->n_tail, sl_prefix_snapshot_bytes(p, s->n_tail));
    return write_file(p, &h, s->tail, &s->place);
}

/* ---------------------------------------------------------------- reading back */

/* Opens and compares header and ids with what they must be; s stands at the payload. */
static bool open_file(struct sl_prefix *p, struct stream *s, const struct file_header *want,
                      const int32_t *ids)
{
    struct file_header h;
    uint64_t bytes;
    int32_t got[512];
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (s->fd < 0) return false;
    bool ok = !sl_file_size(s->path, &bytes, SL_E_SOURCE, NULL) &&
              bytes == file_bytes(want->n_ids, want->payload_bytes) &&
              !read_piece(s, &h, sizeof h) && memcmp(&h, want, sizeof h) == 0;
    for (uint32_t i = 0; ok && i < want->n_ids; i += 512) {
        const size_t n = want->n_ids - i < 512 ? want->n_ids - i : 512;
        ok = !read_piece(s, got, n * sizeof *got) && memcmp(got, ids + i, n * sizeof *got) == 0;
    }
    if (ok) return true;
    (void)p;
    close(s->fd);
    return false;
}

static bool close_file(struct stream *s, bool ok)
{
    uint32_t crc = 0;
    ok = ok && !sl_pread_all(s->fd, &crc, sizeof crc, s->at, s->path, SL_E_SOURCE, NULL) &&
         crc == s->crc;
    posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
    close(s->fd);
    return ok;
}

bool sl_prefix_read_block(struct sl_prefix *p, const struct sl_prefix_block *b, struct sl_state *st)
{
    char path[SL_PATH_MAX];
    struct stream s = {.path = path};
    struct file_header h;
    if (!p->dir || !b->place.in_file || !file_path(p, path, b->digest, 'b')) return false;
    fill_header(p, &h, 'b', b->parent, b->digest, p->block, sl_prefix_block_bytes(p));
    if (!open_file(p, &s, &h, b->ids)) return false;
    return close_file(&s, !sl_state_each_row(st, b->end - p->block, b->end, read_piece, &s));
}

bool sl_prefix_read_snapshot(struct sl_prefix *p, const struct sl_prefix_snapshot *x,
                             struct sl_state *st)
{
    char path[SL_PATH_MAX];
    struct stream s = {.path = path};
    struct file_header h;
    if (!p->dir || !x->place.in_file || !file_path(p, path, x->digest, 's')) return false;
    fill_header(p, &h, 's', x->last, x->digest, x->n_tail, sl_prefix_snapshot_bytes(p, x->n_tail));
    if (!open_file(p, &s, &h, x->tail)) return false;
    return close_file(
        &s, !sl_state_each_recurrent(st, read_piece, &s) &&
                !sl_state_each_row(st, x->position - x->n_tail, x->position, read_piece, &s));
}

/* ---------------------------------------------------------------- the index, from the files */

struct found {
    struct file_header h;
    int32_t *ids;
    struct timespec time;
    struct sl_prefix_block *made; /* of it, NULL: none */
};
struct listing {
    struct found *v;
    size_t n, cap;
};

static bool hex_name(const char *name, const char *suffix)
{
    const size_t n = 2 * SL_PREFIX_DIGEST;
    return strspn(name, "0123456789abcdef") == n && strcmp(name + n, suffix) == 0;
}

/* Header and ids of one file, as far as they can be believed alone. */
static bool read_found(const struct sl_prefix *p, const char *path, char kind, struct found *f)
{
    struct stream s = {.path = path};
    struct stat st;
    s.fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (s.fd < 0) return false;
    f->ids = NULL;
    const struct file_header *h = &f->h;
    bool ok = fstat(s.fd, &st) == 0 && S_ISREG(st.st_mode) && !read_piece(&s, &f->h, sizeof f->h) &&
              memcmp(h->magic, PREFIX_MAGIC, sizeof h->magic) == 0 &&
              h->version == PREFIX_VERSION && h->kind == (uint32_t)kind &&
              memcmp(h->identity, p->identity, sizeof h->identity) == 0 && h->block == p->block;
    if (ok && kind == 'b')
        ok = h->n_ids == p->block && h->payload_bytes == sl_prefix_block_bytes(p);
    else if (ok)
        ok = h->n_ids < p->block && h->payload_bytes == sl_prefix_snapshot_bytes(p, h->n_ids);
    ok = ok && (uint64_t)st.st_size == file_bytes(h->n_ids, h->payload_bytes);
    if (ok) f->ids = malloc((h->n_ids + 1) * sizeof *f->ids);
    ok = ok && f->ids && !read_piece(&s, f->ids, h->n_ids * sizeof *f->ids);
    if (ok) f->time = st.st_mtim;
    if (!ok) free(f->ids);
    close(s.fd);
    return ok;
}

static int list(struct sl_prefix *p, struct listing *l, struct sl_err *err)
{
    DIR *d = opendir(p->dir);
    if (!d) return sl_fail_errno(err, SL_E_IO, errno, p->dir, "open");
    for (const struct dirent *e; (e = readdir(d)) != NULL && l->n < FILES_MAX;) {
        char path[SL_PATH_MAX];
        const char kind = hex_name(e->d_name, ".rows")   ? 'b'
                          : hex_name(e->d_name, ".snap") ? 's'
                                                         : 0;
        if (!kind || !sl_path_join(path, p->dir, e->d_name)) continue;
        if (l->n == l->cap) {
            const size_t cap = l->cap ? 2 * l->cap : 64;
            struct found *more = realloc(l->v, cap * sizeof *more);
            if (!more) break;
            l->v = more;
            l->cap = cap;
        }
        if (read_found(p, path, kind, &l->v[l->n]))
            l->n++;
        else
            p->stats.refused++;
    }
    closedir(d);
    return 0;
}

/* Blocks before snapshots; blocks by position, so that parents come first; snapshots by age. */
static int in_order(const void *x, const void *y)
{
    const struct found *a = x;
    const struct found *b = y;
    if (a->h.kind != b->h.kind) return a->h.kind == 'b' ? -1 : 1;
    if (a->h.kind == 'b') return (a->h.position > b->h.position) - (a->h.position < b->h.position);
    if (a->time.tv_sec != b->time.tv_sec) return a->time.tv_sec < b->time.tv_sec ? -1 : 1;
    return (a->time.tv_nsec > b->time.tv_nsec) - (a->time.tv_nsec < b->time.tv_nsec);
}

/* Does the file say of itself what its ids and its place in the chain say? *parent is its parent. */
static bool belongs(const struct sl_prefix *p, const struct found *f,
                    struct sl_prefix_block **parent)
{
    static const unsigned char none[SL_PREFIX_DIGEST];
    unsigned char digest[SL_PREFIX_DIGEST];
    *parent = NULL;
    if (memcmp(f->h.parent, none, sizeof none) != 0) {
        *parent = sl_prefix_find_block(p, f->h.parent);
        if (!*parent) return false;
    }
    return f->h.position == (*parent ? (*parent)->end : 0) + f->h.n_ids && f->h.position &&
           sl_prefix_digest(p, digest, *parent, (char)f->h.kind, f->ids, f->h.n_ids) &&
           memcmp(digest, f->h.digest, sizeof digest) == 0;
}

/* false: not used. The name need not be the digest that the header has: then it is refused too. */
static bool adopt(struct sl_prefix *p, struct found *f)
{
    struct sl_prefix_block *parent;
    struct sl_prefix_place *place = NULL;
    char path[SL_PATH_MAX];
    struct stat st;
    if (!belongs(p, f, &parent) || !file_path(p, path, f->h.digest, (char)f->h.kind) ||
        lstat(path, &st) || (f->h.kind == 'b' && sl_prefix_find_block(p, f->h.digest)))
        return false;
    if (f->h.kind == 'b') {
        f->made = sl_prefix_new_block(p, parent, f->ids);
        if (f->made) place = &f->made->place;
    } else {
        for (const struct sl_prefix_snapshot *s = parent ? parent->snapshots : p->root; s;
             s = s->next)
            if (memcmp(s->digest, f->h.digest, sizeof s->digest) == 0) return false;
        struct sl_prefix_snapshot *s = sl_prefix_new_snapshot(p, parent, f->ids, f->h.n_ids);
        if (s) place = &s->place;
    }
    if (!place) return false;
    place->in_file = true;
    p->disk_used += file_bytes(f->h.n_ids, f->h.payload_bytes);
    return true;
}

static int read_index(struct sl_prefix *p, struct sl_err *err)
{
    struct listing l = {0};
    int rc = list(p, &l, err);
    if (l.n) qsort(l.v, l.n, sizeof *l.v, in_order);
    for (size_t i = 0; i < l.n; i++) {
        struct found *f = &l.v[i];
        f->made = NULL;
        if (!rc && !adopt(p, f)) p->stats.refused++;
        if (f->made) f->made->refs++; /* until all snapshots are there */
        free(f->ids);
    }
    /* Rows that no snapshot needs go, files and all. */
    for (size_t i = 0; i < l.n; i++) sl_prefix_unref(p, l.v[i].made);
    free(l.v);
    if (!rc) make_room(p, 0);
    return rc;
}

int sl_prefix_dir_open(struct sl_prefix *p, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    int rc = sl_make_dirs(p->dir, err);
    if (rc) return rc;
    if (!sl_path_join(path, p->dir, "lock"))
        return sl_fail(err, SL_E_IO, p->dir, NULL, "path is too long");
    p->dir_lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (p->dir_lock < 0) return sl_fail_errno(err, SL_E_IO, errno, path, "open");
    if (flock(p->dir_lock, LOCK_EX | LOCK_NB)) {
        rc = sl_fail(err, SL_E_IO, p->dir, NULL, "is in use by another process");
        sl_prefix_dir_close(p);
        return rc;
    }
    return read_index(p, err);
}

void sl_prefix_dir_close(struct sl_prefix *p)
{
    if (p->dir_lock >= 0) close(p->dir_lock);
    p->dir_lock = -1;
    free(p->dir);
    p->dir = NULL;
}
