/* Opening a store: how many slots, which files on which drives, which way of reading.
 *
 * Every bank file is opened a second time for direct reads, copies of a bank as well. The folder of a
 * file stands for its drive: each has its own queue and its own measured speed. Threads come last, when
 * nothing can fail any more that they would use. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/size.h"
#include "offload/numa_place.h"
#include "offload/store_parts.h"

const char *sl_io_name(enum sl_io io)
{
    static const char *const names[] = {"auto", "uring", "pread", "mmap"};
    return names[io];
}

/* ------------------------------------------------------------------ sizes */

static uint64_t total_records(const struct sl_pack *p)
{
    uint64_t n = 0;
    for (int l = 0; l < p->cfg.n_layers; l++)
        if (p->bank_of[l] >= 0) n += (uint64_t)p->cfg.n_experts;
    return n;
}

static uint64_t floor_slots(const struct sl_pack *p)
{
    uint64_t all = total_records(p);
    uint64_t least = (uint64_t)p->cfg.top_k + 1;
    return least < all ? least : all;
}

uint64_t sl_store_slot_bytes(const struct sl_pack *p)
{
    return sl_align_up(p->slot_bytes, SL_PAGE);
}

uint64_t sl_store_floor_bytes(const struct sl_pack *p)
{
    return floor_slots(p) * sl_store_slot_bytes(p);
}

uint64_t sl_store_resident_bytes(const struct sl_pack *p)
{
    return total_records(p) * sl_store_slot_bytes(p);
}

static uint64_t total_sources(const struct sl_pack *p)
{
    uint64_t n = 1; /* the trunk, where it streams */
    for (int b = 0; b < p->n_banks; b++) n += 1 + (uint64_t)p->banks[b].n_copies;
    return n;
}

uint64_t sl_store_table_bytes(const struct sl_pack *p, uint64_t n_slots)
{
    uint64_t keys = (uint64_t)p->cfg.n_layers * (uint64_t)p->cfg.n_experts;
    uint64_t a_slot = sizeof(struct sl_slot) + 3 * sizeof(uint32_t);
    return sizeof(struct sl_store) + n_slots * a_slot + sl_evict_bytes(n_slots, keys) +
           keys * sizeof(uint32_t) + (uint64_t)p->cfg.n_experts * sizeof(uint32_t) +
           total_sources(p) * (sizeof(struct sl_source) + sizeof(struct sl_drive)) +
           sl_sweep_bytes(n_slots, keys, (uint64_t)p->cfg.n_experts) +
           (SL_STORE_READERS + 1) * SL_STORE_STACK;
}

/* ------------------------------------------------------------------ tables */

static int choose_slots(struct sl_store *s, uint64_t budget, struct sl_err *err)
{
    const struct sl_pack *p = s->p;
    uint64_t all = total_records(p);
    uint64_t n = budget ? budget / s->slot_bytes : all;
    if (n > all) n = all;
    if (n < floor_slots(p))
        return sl_fail(err, SL_E_BUDGET, NULL, "expert slots",
                       "%llu bytes hold %llu records of %llu; top-%d routing needs at least %llu "
                       "(%llu bytes)",
                       (unsigned long long)budget, (unsigned long long)n,
                       (unsigned long long)s->slot_bytes, p->cfg.top_k,
                       (unsigned long long)floor_slots(p),
                       (unsigned long long)sl_store_floor_bytes(p));
    if (n < 1 || n > UINT32_MAX - 1)
        return sl_fail(err, SL_E_BUDGET, NULL, "expert slots", "%llu slots cannot be had",
                       (unsigned long long)n);
    s->n_slots = (uint32_t)n;
    return 0;
}

static int no_memory(struct sl_err *err, size_t n)
{
    return sl_fail(err, SL_E_NOMEM, NULL, "expert slots", "out of memory for %zu slots", n);
}

static int make_tables(struct sl_store *s, const struct sl_store_opts *o, struct sl_err *err)
{
    const struct sl_pack *p = s->p;
    size_t n = s->n_slots;
    size_t keys = (size_t)p->cfg.n_layers * (size_t)p->cfg.n_experts;
    int rc = sl_arena_init(&s->arena, (size_t)(n * s->slot_bytes), "expert slots", err);
    if (rc) return rc;
    const struct sl_numa_ops *numa = o->numa ? o->numa : sl_numa_system();
    s->n_nodes = numa->nodes(numa->ctx);
    sl_numa_spread(numa, s->arena.base, s->slot_bytes, s->n_slots);
    /* Large pages: a direct read then hands few, large pieces of memory to the drive. One here went from
     * 0.9 to 1.9 GB/s by that alone (docs/results/io.md). */
    (void)madvise(s->arena.base, s->arena.bytes, MADV_HUGEPAGE);
    rc = sl_evict_open(&s->evict, o->evict, s->n_slots, keys, err);
    if (rc) return rc;
    s->slots = calloc(n + (o->stream ? o->stream->n_pieces : 0), sizeof *s->slots);
    s->where = malloc(keys * sizeof *s->where);
    s->empty = malloc(n * sizeof *s->empty);
    s->wanted = malloc(n * sizeof *s->wanted);
    s->guarded = malloc(n * sizeof *s->guarded);
    s->mark = calloc((size_t)p->cfg.n_experts, sizeof *s->mark);
    if (!s->slots || !s->where || !s->empty || !s->wanted || !s->guarded || !s->mark ||
        sl_sweep_open(s))
        return no_memory(err, n);
    for (size_t k = 0; k < keys; k++) s->where[k] = SL_NO_SLOT;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        s->slots[i].layer = s->slots[i].expert = -1;
        s->slots[i].frame = i;
        s->empty[i] = s->n_slots - 1 - i; /* slot 0 is taken first */
    }
    s->n_empty = s->n_slots;
    s->sweep.n_records = total_records(p);
    return 0;
}

/* ------------------------------------------------------------------ drives */

/* Length of the folder's part of a path. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) : 0;
}

static int drive_of(struct sl_store *s, const char *path, uint32_t *drive)
{
    size_t n = folder_length(path);
    for (uint32_t d = 0; d < s->n_drives; d++) {
        const char *dir = s->drives[d].stats.dir;
        *drive = d;
        if (dir && strlen(dir) == (n ? n : 1) && !strncmp(dir, n ? path : ".", n ? n : 1)) return 0;
    }
    if (s->n_drives == SL_STORE_DRIVES) return 0; /* counts with the last */
    char *dir = n ? strndup(path, n) : strdup(".");
    if (!dir) return -1;
    *drive = s->n_drives++;
    s->drives[*drive].stats.dir = dir;
    return 0;
}

/* The trunk lies in a folder of its own, but on a drive with the banks as a rule: then it is that drive. */
static int drive_of_trunk(struct sl_store *s, const char *path, uint32_t *drive)
{
    struct stat trunk;
    struct stat bank;
    if (!fstat(s->p->trunk_fd, &trunk))
        for (uint32_t i = 0; i < s->n_sources; i++)
            if (!fstat(s->sources[i].file.plain_fd, &bank) && bank.st_dev == trunk.st_dev) {
                *drive = s->sources[i].drive;
                return 0;
            }
    return drive_of(s, path, drive);
}

static int add_source(struct sl_store *s, const char *path, const char *name, int fd,
                      const struct sl_read_ops *ops)
{
    struct sl_source *src = &s->sources[s->n_sources];
    if (fd == s->p->trunk_fd ? drive_of_trunk(s, path, &src->drive)
                             : drive_of(s, path, &src->drive))
        return -1;
    src->name = name;
    s->n_sources++;
    if (s->io == SL_IO_MMAP)
        src->file = (struct sl_direct_file){.plain_fd = fd, .direct_fd = -1};
    else
        sl_direct_open(&src->file, path, fd, ops);
    if (!sl_direct_in_effect(&src->file)) s->stats.direct_io = false;
    return 0;
}

static int open_files(struct sl_store *s, const struct sl_read_ops *ops, struct sl_err *err)
{
    const struct sl_pack *p = s->p;
    s->sources = calloc(total_sources(p) + 1, sizeof *s->sources);
    s->first_source = calloc((size_t)p->n_banks + 2, sizeof *s->first_source);
    s->drives = calloc(SL_STORE_DRIVES, sizeof *s->drives);
    if (!s->sources || !s->first_source || !s->drives) return no_memory(err, s->n_slots);
    s->stats.direct_io = true;
    for (int b = 0; b < p->n_banks; b++) {
        const struct sl_bank *k = &p->banks[b];
        s->first_source[b] = s->n_sources;
        int rc = add_source(s, k->path, k->label, k->fd, ops);
        for (int c = 0; c < k->n_copies && !rc; c++)
            rc = add_source(s, k->copies[c].path, k->copies[c].path, k->copies[c].fd, ops);
        if (rc) return no_memory(err, s->n_slots);
    }
    s->first_source[p->n_banks] = s->n_sources;
    if (s->stream) {
        char path[SL_PATH_MAX];
        if (!sl_path_join(path, p->dir, "trunk.bin"))
            return sl_fail(err, SL_E_PACK, p->dir, "trunk.bin", "the path is too long");
        if (add_source(s, path, "trunk.bin", p->trunk_fd, ops)) return no_memory(err, s->n_slots);
    }
    s->first_source[p->n_banks + 1] = s->n_sources;
    s->stats.n_drives = (int)s->n_drives;
    return 0;
}

/* ------------------------------------------------------------------ ways of reading */

static uint32_t at_most(uint32_t n, uint32_t most)
{
    return n < most ? n : most;
}

/* Threads, and before them io_uring where it is wanted and to be had. */
static int start_reading(struct sl_store *s, const struct sl_store_opts *o, struct sl_err *err)
{
    struct sl_err why = {0};
    uint32_t asked = (uint32_t)o->n_readers;
    if (s->io == SL_IO_AUTO || s->io == SL_IO_URING) {
        s->depth = asked ? asked : SL_STORE_DEPTH;
        int rc = sl_uring_open(&s->uring, s, &why);
        if (rc == SL_E_NOMEM || (rc && s->io == SL_IO_URING))
            return sl_fail(err, rc == SL_E_NOMEM ? rc : SL_E_ARG, NULL, "io", "uring: %.200s",
                           why.text);
        if (rc) (void)snprintf(s->stats.io_note, sizeof s->stats.io_note, "%.90s", why.text);
        s->io = rc ? SL_IO_PREAD : SL_IO_URING;
    }
    if (s->io == SL_IO_URING) {
        int rc = sl_store_start_threads(s, sl_uring_thread, 1, err);
        if (!rc && s->check_crc)
            rc = sl_store_start_threads(s, sl_store_checker, SL_STORE_CHECKERS, err);
        return rc;
    }
    s->depth = asked ? asked : SL_STORE_READERS;
    return sl_store_start_threads(s, sl_store_reader,
                                  at_most(s->depth * s->n_drives, SL_STORE_THREADS_MAX), err);
}

static int check_opts(const struct sl_pack *pack, const struct sl_store_opts *o, struct sl_err *err)
{
    if (o->n_readers < 0 || o->n_readers > SL_STORE_THREADS_MAX)
        return sl_fail(err, SL_E_ARG, NULL, "readers", "%d, allowed are 1 to %d", o->n_readers,
                       SL_STORE_THREADS_MAX);
    if (o->piece_bytes % SL_PAGE)
        return sl_fail(err, SL_E_ARG, NULL, "piece", "%u is not a multiple of %d", o->piece_bytes,
                       SL_PAGE);
    if (!pack->n_banks)
        return sl_fail(err, SL_E_ARG, NULL, "expert slots", "the pack has no routed experts");
    return 0;
}

int sl_store_open(struct sl_store **out, const struct sl_pack *pack,
                  const struct sl_store_opts *opts, struct sl_err *err)
{
    static const struct sl_store_opts defaults;
    const struct sl_store_opts *o = opts ? opts : &defaults;
    *out = NULL;
    int rc = check_opts(pack, o, err);
    if (rc) return rc;
    struct sl_store *s = calloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_E_NOMEM, NULL, "expert slots", "out of memory");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->landed, NULL);
    pthread_cond_init(&s->check, NULL);
    s->p = pack;
    s->io = o->io;
    s->check_crc = o->check_crc;
    if (o->check_crc && o->check_first) {
        s->seen = calloc((size_t)pack->n_banks * (size_t)pack->cfg.n_experts, sizeof *s->seen);
        if (!s->seen) {
            sl_store_close(s);
            return sl_fail(err, SL_E_NOMEM, NULL, "expert slots", "out of memory");
        }
    }
    s->piece_bytes = o->piece_bytes ? o->piece_bytes : SL_STORE_PIECE;
    s->slot_bytes = sl_store_slot_bytes(pack);
    rc = choose_slots(s, o->slot_budget_bytes, err);
    if (!rc) rc = make_tables(s, o, err);
    if (!rc && o->stream) rc = sl_stream_open(s, o->stream, err);
    if (!rc) rc = open_files(s, o->ops, err);
    if (!rc) rc = start_reading(s, o, err);
    if (rc) {
        sl_store_close(s);
        return rc;
    }
    s->stats.n_slots = s->n_slots;
    s->stats.slot_bytes = s->slot_bytes;
    s->stats.io = s->io;
    s->stats.depth = (int)s->depth;
    *out = s;
    return 0;
}

int sl_store_nodes(const struct sl_store *s)
{
    return s->n_nodes;
}

int sl_store_node_of(const struct sl_store *s, const void *address)
{
    const uint64_t at = (uint64_t)((const unsigned char *)address - s->arena.base);
    return sl_numa_node_of(s->n_nodes, s->n_slots, at / s->slot_bytes);
}

void sl_store_close(struct sl_store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    if (s->uring) sl_uring_wake(s->uring);
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->check);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
    sl_uring_close(s->uring);
    for (uint32_t i = 0; i < s->n_sources; i++) sl_direct_close(&s->sources[i].file);
    for (uint32_t d = 0; d < s->n_drives; d++) free((char *)(uintptr_t)s->drives[d].stats.dir);
    sl_evict_close(s->evict);
    sl_sweep_close(s);
    sl_arena_free(&s->arena);
    free(s->seen);
    sl_stream_close(s->stream);
    free(s->slots);
    free(s->where);
    free(s->empty);
    free(s->wanted);
    free(s->guarded);
    free(s->mark);
    free(s->sources);
    free(s->first_source);
    free(s->drives);
    pthread_cond_destroy(&s->check);
    pthread_cond_destroy(&s->landed);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
