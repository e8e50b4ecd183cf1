/* A session in a file: the state at one position, and the logits that follow it.
 *
 *   64-byte header | pieces of sl_state_each() | logits [vocab] f32, if any | ids [position] i32
 *   | note of the host | u32 crc32 of all before
 *
 * KDA states cannot be rewound, so a file is good at exactly its position. It names the weights it was
 * computed with (source sha256, and the crc32s of the trunk: t8 and bf16 packs give different states).
 * Sizes follow from the config and the position, so a file of any other length is refused before it is
 * read, and its crc is checked before a byte of it reaches the session. The expanded keys are derived
 * and not stored. Little-endian, like everything we write. */
#include <fcntl.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "runtime/engine.h"

#define STATE_MAGIC   "SLSTATE1"
#define STATE_VERSION 2
enum { CRC_PIECE = 1 << 20, NOTE_MAX = 64 << 20 };

struct state_header {
    char magic[8];
    uint32_t version;
    uint32_t vocab;
    uint64_t position;
    uint64_t state_bytes;
    unsigned char source[16]; /* first half of the source's sha256 */
    uint32_t trunk_crc32;     /* of the trunk tensors' own crc32s, in file order */
    uint32_t has_logits;
    uint32_t note_bytes;
    uint32_t fast; /* 1: with an open tile, of the fast path */
};
_Static_assert(sizeof(struct state_header) == 64, "on disk");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structs go to the file as they lie");

/* Where a walk over the pieces stands. */
struct transfer {
    int fd;
    uint64_t at;
    uint32_t crc;
    const char *path;
    struct sl_err *err;
};

static int count_piece(void *ctx, void *data, uint64_t bytes)
{
    (void)data;
    *(uint64_t *)ctx += bytes;
    return 0;
}

static int write_piece(void *ctx, void *data, uint64_t bytes)
{
    struct transfer *t = ctx;
    int rc = sl_pwrite_all(t->fd, data, bytes, t->at, t->path, t->err);
    t->crc = sl_crc32(t->crc, data, bytes);
    t->at += bytes;
    return rc;
}

static int read_piece(void *ctx, void *data, uint64_t bytes)
{
    struct transfer *t = ctx;
    int rc = sl_pread_all(t->fd, data, bytes, t->at, t->path, SL_E_SOURCE, t->err);
    t->at += bytes;
    return rc;
}

static int hex_digit(char c)
{
    return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

static void fill_header(struct state_header *h, const struct sluice_session *s)
{
    const struct sl_pack *pack = s->p->pack;
    memset(h, 0, sizeof *h);
    memcpy(h->magic, STATE_MAGIC, sizeof h->magic);
    h->version = STATE_VERSION;
    h->vocab = (uint32_t)pack->cfg.vocab_size;
    h->position = s->state->position;
    h->has_logits = s->last != NULL;
    h->fast = (s->state->form & SL_STATE_FAST) != 0;
    const char *hex = pack->source_sha256;
    for (size_t i = 0; i < sizeof h->source && hex[2 * i] && hex[2 * i + 1]; i++)
        h->source[i] = (unsigned char)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
    for (int i = 0; i < pack->n_tensors; i++)
        h->trunk_crc32 =
            sl_crc32(h->trunk_crc32, &pack->tensors[i].crc32, sizeof pack->tensors[i].crc32);
    sl_state_each(s->state, count_piece, &h->state_bytes);
}

static int write_all(struct transfer *t, const struct sluice_session *s, const void *note,
                     size_t note_bytes)
{
    struct state_header h;
    fill_header(&h, s);
    h.note_bytes = (uint32_t)note_bytes;
    int rc = write_piece(t, &h, sizeof h);
    if (!rc) rc = sl_state_each(s->state, write_piece, t);
    if (!rc && h.has_logits)
        rc = write_piece(t, (void *)(uintptr_t)s->last, (uint64_t)h.vocab * sizeof(float));
    if (!rc) rc = write_piece(t, s->ids, h.position * sizeof *s->ids);
    if (!rc && note_bytes) rc = write_piece(t, (void *)(uintptr_t)note, note_bytes);
    uint32_t crc = t->crc;
    return rc ? rc : write_piece(t, &crc, sizeof crc);
}

int sluice_state_save(const sluice_session *s, const char *path, sluice_error *error)
{
    return sluice_state_save_note(s, path, NULL, 0, error);
}

int sluice_state_save_note(const sluice_session *s, const char *path, const void *note,
                           size_t note_bytes, sluice_error *error)
{
    struct sl_err err = {0};
    struct transfer t = {.path = path, .err = &err};
    if (note_bytes > NOTE_MAX)
        return sl_engine_give(
            error, &err,
            sl_fail(&err, SL_E_ARG, path, "note", "%zu bytes, at most %d", note_bytes, NOTE_MAX));
    if (s->spoiled)
        return sl_engine_give(
            error, &err,
            sl_fail(&err, SL_E_ARG, NULL, NULL, "a feed failed: there is no state to save"));
    int rc = sl_tmp_open(&t.fd, path, false, &err);
    if (rc) return sl_engine_give(error, &err, rc);
    rc = write_all(&t, s, note, note_bytes);
    if (rc)
        sl_tmp_discard(t.fd, path);
    else
        rc = sl_tmp_publish(t.fd, path, &err);
    return rc ? sl_engine_give(error, &err, rc) : 0;
}

/* Is it a state file, whole as far as its length tells? */
static int check_size(const struct state_header *h, uint64_t file_bytes, const char *path,
                      struct sl_err *err)
{
    if (memcmp(h->magic, STATE_MAGIC, sizeof h->magic) != 0)
        return sl_fail(err, SL_E_SOURCE, path, NULL, "is no state file");
    if (h->version != STATE_VERSION)
        return sl_fail(err, SL_E_SOURCE, path, "version", "%u, this build reads %d", h->version,
                       STATE_VERSION);
    uint64_t bytes = sizeof *h + h->state_bytes + sizeof(uint32_t) + h->note_bytes;
    if (h->has_logits) bytes += (uint64_t)h->vocab * sizeof(float);
    bytes += h->position * sizeof(int32_t); /* may wrap round; then the position is refused */
    if (h->state_bytes > file_bytes || h->position > file_bytes || h->note_bytes > NOTE_MAX ||
        bytes != file_bytes)
        return sl_fail(err, SL_E_SOURCE, path, NULL, "has %llu bytes, its header says %llu",
                       (unsigned long long)file_bytes, (unsigned long long)bytes);
    return 0;
}

/* Does an undamaged file fit this session: its model, its pack, its context? */
static int check_identity(const struct state_header *h, const struct sluice_session *s,
                          const char *path, struct sl_err *err)
{
    struct state_header want;
    fill_header(&want, s);
    if (memcmp(h->source, want.source, sizeof h->source) != 0 || h->vocab != want.vocab)
        return sl_fail(err, SL_E_SOURCE, path, "source", "was saved with another model");
    if (h->trunk_crc32 != want.trunk_crc32)
        return sl_fail(err, SL_E_SOURCE, path, "trunk",
                       "was saved with another pack of this model (its trunk differs)");
    if (h->fast != want.fast)
        return sl_fail(err, SL_E_SOURCE, path, "path",
                       want.fast ? "was saved on the exact path: go on with --exact"
                                 : "was saved on the fast path: go on without --exact");
    if (h->position > s->plan.info.ctx)
        return sl_fail(err, SL_E_CTX, path, "position", "%llu is beyond --ctx %llu",
                       (unsigned long long)h->position, (unsigned long long)s->plan.info.ctx);
    return 0;
}

static int check_crc(struct transfer *t, uint64_t file_bytes)
{
    unsigned char *buf = malloc(CRC_PIECE);
    if (!buf) return sl_fail(t->err, SL_E_NOMEM, t->path, NULL, "no memory");
    uint32_t crc = 0;
    uint32_t stored = 0;
    int rc = 0;
    uint64_t end = file_bytes - sizeof stored;
    for (uint64_t at = 0; at < end && !rc;) {
        size_t n = end - at < CRC_PIECE ? (size_t)(end - at) : CRC_PIECE;
        rc = sl_pread_all(t->fd, buf, n, at, t->path, SL_E_SOURCE, t->err);
        if (!rc) crc = sl_crc32(crc, buf, n);
        at += n;
    }
    free(buf);
    if (!rc) rc = sl_pread_all(t->fd, &stored, sizeof stored, end, t->path, SL_E_SOURCE, t->err);
    if (!rc && crc != stored)
        rc = sl_fail(t->err, SL_E_SOURCE, t->path, NULL, "crc32 %08x, expected %08x: damaged", crc,
                     stored);
    return rc;
}

/* The pieces at a position that is not the session's yet: their sum must be the header's. */
static int check_pieces(struct sluice_session *s, const struct state_header *h, const char *path,
                        struct sl_err *err)
{
    uint64_t bytes = 0;
    uint64_t here = s->state->position;
    s->state->position = h->position;
    sl_state_each(s->state, count_piece, &bytes);
    s->state->position = here;
    if (bytes == h->state_bytes) return 0;
    return sl_fail(err, SL_E_SOURCE, path, "state_bytes", "%llu, a state at position %llu has %llu",
                   (unsigned long long)h->state_bytes, (unsigned long long)h->position,
                   (unsigned long long)bytes);
}

/* Ids and note, which lie behind what goes straight into the session, into memory of their own. */
static int read_tail(const struct sluice_session *s, const struct state_header *h,
                     const struct transfer *t, int32_t **ids, void **note)
{
    uint64_t at = sizeof *h + h->state_bytes;
    if (h->has_logits) at += (uint64_t)h->vocab * sizeof(float);
    const size_t id_bytes = (size_t)h->position * sizeof **ids;
    *ids = malloc(id_bytes + 1);
    *note = h->note_bytes ? malloc(h->note_bytes) : NULL;
    if (!*ids || (h->note_bytes && !*note))
        return sl_fail(t->err, SL_E_NOMEM, t->path, NULL, "no memory");
    int rc = sl_pread_all(t->fd, *ids, id_bytes, at, t->path, SL_E_SOURCE, t->err);
    for (uint64_t i = 0; i < h->position && !rc; i++)
        if ((*ids)[i] < 0 || (*ids)[i] >= s->p->pack->cfg.vocab_size)
            rc = sl_fail(t->err, SL_E_SOURCE, t->path, "ids", "%d is outside the vocabulary",
                         (*ids)[i]);
    if (!rc && *note)
        rc = sl_pread_all(t->fd, *note, h->note_bytes, at + id_bytes, t->path, SL_E_SOURCE, t->err);
    return rc;
}

static int load(struct sluice_session *s, struct transfer *t, void **note, size_t *note_bytes)
{
    int32_t *ids = NULL;
    struct state_header h;
    uint64_t file_bytes;
    int rc = sl_file_size(t->path, &file_bytes, SL_E_SOURCE, t->err);
    if (!rc) rc = sl_pread_all(t->fd, &h, sizeof h, 0, t->path, SL_E_SOURCE, t->err);
    if (!rc) rc = check_size(&h, file_bytes, t->path, t->err);
    if (!rc) rc = check_crc(t, file_bytes);
    if (!rc) rc = check_identity(&h, s, t->path, t->err);
    if (!rc) rc = check_pieces(s, &h, t->path, t->err);
    if (!rc) rc = read_tail(s, &h, t, &ids, note);
    if (rc) {
        free(ids);
        return rc;
    }
    *note_bytes = h.note_bytes;
    memcpy(s->ids, ids, (size_t)h.position * sizeof *ids);
    free(ids);

    /* From here on only the drive can fail; a half-loaded state then needs a reset. */
    s->spoiled = true;
    s->last = NULL;
    sl_state_place(s->state, h.position);
    t->at = sizeof h;
    rc = sl_state_each(s->state, read_piece, t);
    if (!rc && h.has_logits) rc = read_piece(t, s->seat->own, (uint64_t)h.vocab * sizeof(float));
    if (rc) return rc;
    s->last = h.has_logits ? s->seat->own : NULL;
    s->spoiled = false;
    return 0;
}

int sluice_state_load(sluice_session *s, const char *path, sluice_error *error)
{
    void *note;
    size_t note_bytes;
    int rc = sluice_state_load_note(s, path, &note, &note_bytes, error);
    free(note);
    return rc;
}

int sluice_state_load_note(sluice_session *s, const char *path, void **note, size_t *note_bytes,
                           sluice_error *error)
{
    struct sl_err err = {0};
    struct transfer t = {.path = path, .err = &err};
    *note = NULL;
    *note_bytes = 0;
    t.fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = t.fd < 0 ? sl_fail_errno(&err, SL_E_SOURCE, errno, path, "open")
                      : load(s, &t, note, note_bytes);
    if (t.fd >= 0) close(t.fd);
    if (!rc) return 0;
    free(*note);
    *note = NULL;
    *note_bytes = 0;
    return sl_engine_give(error, &err, rc);
}
