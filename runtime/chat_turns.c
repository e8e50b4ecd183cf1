/* The store of generated turns (chat_turns.h): an array, a hash to skip by, the oldest use leaves.
 *
 * A few thousand turns at most: a scan over their hashes is nothing beside rendering one message, so
 * there is no table to keep in order. */
#include "runtime/chat_turns.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/file.h"
#include "runtime/chat_parse.h"

#define TURNS_MAGIC "SLTURNS1"
enum { HEAD_BYTES = 16, TURN_HEAD_BYTES = 8, CRC_BYTES = 4 };

struct turn {
    uint64_t hash, used;
    bool thinking;
    char *key;
    size_t n_key;
    int32_t *ids;
    size_t n_ids;
};

struct sl_chat_turns {
    pthread_mutex_t lock;
    struct turn *v;
    size_t n, cap;
    size_t bytes, max_bytes;
    uint64_t clock;
};

/* One lookup of a render: the copy that it gave out last. */
struct lookup {
    struct sl_chat_turns *t;
    int32_t *ids;
};

static uint64_t fnv(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3;
    return h;
}

static size_t turn_bytes(const struct turn *v)
{
    return sizeof *v + v->n_key + v->n_ids * sizeof *v->ids;
}

int sl_chat_turns_open(struct sl_chat_turns **out, size_t max_bytes, struct sl_err *err)
{
    struct sl_chat_turns *t = calloc(1, sizeof *t);
    *out = t;
    if (!t) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for turns");
    pthread_mutex_init(&t->lock, NULL);
    t->max_bytes = max_bytes;
    return 0;
}

void sl_chat_turns_close(struct sl_chat_turns *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->n; i++) {
        free(t->v[i].key);
        free(t->v[i].ids);
    }
    free(t->v);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* The lock is held in all of these. */
static struct turn *find(struct sl_chat_turns *t, const char *key, size_t n)
{
    const uint64_t h = fnv(key, n);
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i].hash == h && t->v[i].n_key == n && memcmp(t->v[i].key, key, n) == 0)
            return &t->v[i];
    return NULL;
}

static void drop(struct sl_chat_turns *t, struct turn *v)
{
    const struct turn gone = *v;
    t->bytes -= turn_bytes(v);
    *v = t->v[--t->n];
    free(gone.key);
    free(gone.ids);
}

static void drop_oldest(struct sl_chat_turns *t)
{
    struct turn *oldest = t->v;
    for (size_t i = 1; i < t->n; i++)
        if (t->v[i].used < oldest->used) oldest = &t->v[i];
    drop(t, oldest);
}

/* Takes over key and ids of v on success. */
static int add(struct sl_chat_turns *t, struct turn *v, struct sl_err *err)
{
    struct turn *old = find(t, v->key, v->n_key);
    if (old) drop(t, old);
    while (t->n && t->bytes + turn_bytes(v) > t->max_bytes) drop_oldest(t);
    if (t->n == t->cap) {
        const size_t cap = t->cap ? 2 * t->cap : 16;
        struct turn *more = realloc(t->v, cap * sizeof *more);
        if (!more) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for turns");
        t->v = more;
        t->cap = cap;
    }
    v->hash = fnv(v->key, v->n_key);
    v->used = ++t->clock;
    t->v[t->n++] = *v;
    t->bytes += turn_bytes(v);
    return 0;
}

/* The key of what ids say. */
static int key_of(struct turn *v, const struct sl_chat_format *f, const int32_t *ids, size_t n,
                  struct sl_err *err)
{
    struct sl_chat_parser *p;
    int rc = sl_chat_parser_open(&p, f, v->thinking, NULL, NULL, err);
    if (rc) return rc;
    rc = sl_chat_parse(p, ids, n, err);
    if (!rc) rc = sl_chat_parse_end(p, err);
    if (!rc) rc = sl_chat_key(f, sl_chat_parser_message(p), v->thinking, &v->key, &v->n_key, err);
    sl_chat_parser_close(p);
    return rc;
}

int sl_chat_turns_put(struct sl_chat_turns *t, const struct sl_chat_format *f, bool thinking,
                      const int32_t *ids, size_t n, struct sl_err *err)
{
    struct turn v = {.thinking = thinking, .n_ids = n};
    if (!n || n > t->max_bytes / sizeof *ids || ids[n - 1] != f->eom) return 0;
    int rc = key_of(&v, f, ids, n, err);
    if (rc) return rc;
    if (turn_bytes(&v) > t->max_bytes) {
        free(v.key);
        return 0;
    }
    v.ids = malloc(n * sizeof *ids);
    if (v.ids) {
        memcpy(v.ids, ids, n * sizeof *ids);
        pthread_mutex_lock(&t->lock);
        rc = add(t, &v, err);
        pthread_mutex_unlock(&t->lock);
    } else {
        rc = sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for a turn");
    }
    if (rc) {
        free(v.key);
        free(v.ids);
    }
    return rc;
}

/* ids[n] from behind an opening; its end-of-message token, where there is one, is the last of them. */
static int learn_one(struct sl_chat_turns *t, const struct sl_chat_format *f, bool thinking,
                     const int32_t *ids, size_t n, struct sl_err *err)
{
    struct sl_chat_parser *p;
    struct sl_ids turn = {0};
    if (n && ids[n - 1] == f->eom) return sl_chat_turns_put(t, f, thinking, ids, n, err);
    int rc = sl_chat_parser_open(&p, f, thinking, NULL, NULL, err);
    if (!rc) rc = sl_chat_parse(p, ids, n, err);
    for (size_t i = 0; i < n && !rc; i++) rc = sl_ids_push(&turn, ids[i], err);
    if (!rc) rc = sl_chat_parser_closing(p, &turn, err);
    if (!rc) rc = sl_chat_turns_put(t, f, thinking, turn.v, turn.n, err);
    sl_ids_free(&turn);
    sl_chat_parser_close(p);
    return rc;
}

int sl_chat_turns_learn(struct sl_chat_turns *t, const struct sl_chat_format *f, bool thinking,
                        const int32_t *ids, size_t n, struct sl_err *err)
{
    /* Rendered alone, a conversation without messages is the opening. */
    const struct sl_chat none = {.no_thinking = !thinking, .effort = SL_EFFORT_UNSET};
    struct sl_chat_prompt head = {0};
    int rc = sl_chat_render(f, &none, NULL, NULL, &head, err);
    for (size_t i = 0; !rc && i + head.ids.n <= n; i++) {
        if (memcmp(ids + i, head.ids.v, head.ids.n * sizeof *ids) != 0) continue;
        const size_t from = i + head.ids.n;
        size_t to = from;
        while (to < n && ids[to] != f->eom) to++;
        if (to < n) to++;
        rc = learn_one(t, f, thinking, ids + from, to - from, err);
        i = to - 1;
    }
    sl_chat_prompt_free(&head);
    return rc;
}

static const int32_t *find_turn(void *ctx, const char *key, size_t n, size_t *n_ids)
{
    struct lookup *l = ctx;
    free(l->ids);
    l->ids = NULL;
    pthread_mutex_lock(&l->t->lock);
    struct turn *v = find(l->t, key, n);
    if (v) l->ids = malloc(v->n_ids * sizeof *v->ids);
    if (l->ids) { /* without memory it is not known: the text is encoded again */
        memcpy(l->ids, v->ids, v->n_ids * sizeof *v->ids);
        *n_ids = v->n_ids;
        v->used = ++l->t->clock;
    }
    pthread_mutex_unlock(&l->t->lock);
    return l->ids;
}

int sl_chat_turns_render(struct sl_chat_turns *t, const struct sl_chat_format *f,
                         const struct sl_chat *c, struct sl_chat_prompt *out, struct sl_err *err)
{
    struct lookup l = {.t = t};
    int rc = sl_chat_render(f, c, t ? find_turn : NULL, &l, out, err);
    free(l.ids);
    return rc;
}

void sl_chat_turns_count(struct sl_chat_turns *t, size_t *n, size_t *bytes)
{
    pthread_mutex_lock(&t->lock);
    *n = t->n;
    *bytes = t->bytes;
    pthread_mutex_unlock(&t->lock);
}

/* ---------------------------------------------------------------- files
 *
 *   "SLTURNS1" | u32 version | u32 turns | {u32 ids, u32 thinking, ids} ... | u32 crc32 of all before */

static int by_use(const void *x, const void *y)
{
    const struct turn *a = x;
    const struct turn *b = y;
    return (a->used > b->used) - (a->used < b->used);
}

static int put_u32(struct sl_buf *b, uint32_t v, struct sl_err *err)
{
    return sl_buf_add(b, &v, sizeof v, err);
}

static int image(struct sl_chat_turns *t, struct sl_buf *b, struct sl_err *err)
{
    int rc = sl_buf_str(b, TURNS_MAGIC, err);
    if (!rc) rc = put_u32(b, 1, err);
    if (!rc) rc = put_u32(b, (uint32_t)t->n, err);
    if (t->n) qsort(t->v, t->n, sizeof *t->v, by_use); /* oldest first, as load uses them */
    for (size_t i = 0; i < t->n && !rc; i++) {
        const struct turn *v = &t->v[i];
        rc = put_u32(b, (uint32_t)v->n_ids, err);
        if (!rc) rc = put_u32(b, v->thinking, err);
        if (!rc) rc = sl_buf_add(b, v->ids, v->n_ids * sizeof *v->ids, err);
    }
    return rc ? rc : put_u32(b, sl_crc32(0, b->s, b->n), err);
}

int sl_chat_turns_save(struct sl_chat_turns *t, const char *path, struct sl_err *err)
{
    struct sl_buf b = {0};
    pthread_mutex_lock(&t->lock);
    int rc = image(t, &b, err);
    pthread_mutex_unlock(&t->lock);
    if (!rc) rc = sl_write_file(path, b.s, b.n, err);
    sl_buf_free(&b);
    return rc;
}

static int check(const char *s, size_t n, const char *path, struct sl_err *err)
{
    if (n < HEAD_BYTES + CRC_BYTES || memcmp(s, TURNS_MAGIC, 8) != 0)
        return sl_fail(err, SL_E_SOURCE, path, NULL, "is no file of turns");
    if (sl_le32(s + 8) != 1)
        return sl_fail(err, SL_E_SOURCE, path, "version", "%u, this build reads 1", sl_le32(s + 8));
    uint32_t crc = sl_crc32(0, s, n - CRC_BYTES);
    uint32_t stored = sl_le32(s + n - CRC_BYTES);
    if (crc != stored)
        return sl_fail(err, SL_E_SOURCE, path, NULL, "crc32 %08x, expected %08x: damaged", crc,
                       stored);
    return 0;
}

static int load_turns(struct sl_chat_turns *t, const struct sl_chat_format *f, const char *s,
                      size_t end, const char *path, struct sl_err *err)
{
    const uint32_t count = sl_le32(s + 12);
    size_t at = HEAD_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        if (end - at < TURN_HEAD_BYTES)
            return sl_fail(err, SL_E_SOURCE, path, NULL, "turn %u of %u is cut", i, count);
        const size_t n = sl_le32(s + at);
        const bool thinking = sl_le32(s + at + 4) != 0;
        at += TURN_HEAD_BYTES;
        if (!n || n > (end - at) / sizeof(int32_t))
            return sl_fail(err, SL_E_SOURCE, path, NULL, "turn %u has %zu ids, which do not fit", i,
                           n);
        int32_t *ids = malloc(n * sizeof *ids);
        if (!ids) return sl_fail(err, SL_E_NOMEM, path, NULL, "no memory for a turn");
        memcpy(ids, s + at, n * sizeof *ids);
        at += n * sizeof *ids;
        int rc = sl_chat_turns_put(t, f, thinking, ids, n, err);
        free(ids);
        if (rc == SL_E_ARG)
            return sl_fail(err, SL_E_SOURCE, path, NULL, "turn %u has ids of another vocabulary",
                           i);
        if (rc) return rc;
    }
    if (at != end)
        return sl_fail(err, SL_E_SOURCE, path, NULL, "%zu bytes behind the last turn", end - at);
    return 0;
}

int sl_chat_turns_load(struct sl_chat_turns *t, const struct sl_chat_format *f, const char *path,
                       struct sl_err *err)
{
    char *s;
    size_t n;
    int rc = sl_read_file(&s, &n, path, (uint64_t)t->max_bytes + HEAD_BYTES + CRC_BYTES,
                          SL_E_SOURCE, err);
    if (rc) return rc;
    rc = check(s, n, path, err);
    if (!rc) rc = load_turns(t, f, s, n - CRC_BYTES, path, err);
    free(s);
    return rc;
}
