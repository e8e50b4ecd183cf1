/* One bank: header, index, records; one task a group of experts, one write a group.
 *
 *   task: read expert (one read) -> record -> decode, compare with the source -> crc32 -> next
 *         ... then one write of the group's records, which are neighbours in the file
 *
 * Sizes come from the plan, so every group's place is known before the first is read. */
#define _GNU_SOURCE
#include "convert/pack_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"
#include "convert/trellis_bank.h"
#include "quant/m4.h"

struct bank_job {
    const struct sl_plan *p;
    const struct sl_plan_bank *b;
    struct sl_progress *progress;
    struct sl_bank_entry *entries;         /* [n_experts] */
    const struct sl_trellis_bank *trellis; /* NULL for lossless formats */
    int group, n_groups, ahead;
    int fd;
};

static int not_equal(const struct bank_job *k, int expert, int m, const char *what,
                     struct sl_err *err)
{
    char field[64];
    snprintf(field, sizeof field, "expert %d, %s", expert, sl_mat_name(m));
    return sl_fail(err, SL_E_SOURCE, k->b->path, field, "%s; the source changed while it was read?",
                   what);
}

/* Zeros between the planes and behind the last: a record is 17 MB at full size, and clearing all of it
 * first is one pass over memory too many (5 % of a conversion). */
static void zero_padding(const struct sl_config *c, const struct sl_bank_entry *e, uint8_t *record)
{
    uint64_t at = 0;
    for (int m = 0; m < SL_N_MATS; m++) {
        const struct sl_plane_offsets *o = &e->planes[m][0];
        const uint32_t start[] = {o->codes, o->scales, o->row_scales, o->table};
        struct sl_planes p = {0};
        sl_fmt_planes((enum sl_fmt)e->fmt[m], (uint64_t)sl_mat_rows(c, m),
                      (uint64_t)sl_mat_cols(c, m), &p);
        const uint64_t bytes[] = {p.codes, p.scales, p.row_scales, p.table};
        for (int k = 0; k < 4; k++) {
            if (start[k] == SL_ABSENT) continue;
            memset(record + at, 0, start[k] - at);
            at = start[k] + bytes[k];
        }
    }
    memset(record + at, 0, e->bytes - at);
}

/* src to the record of layout e, zero padded. check: scales of one matrix for decoding, or the work
 * memory of a trellis encoder. */
static int fill_record(const struct bank_job *k, int expert, const struct sl_bank_entry *e,
                       const struct sl_in_expert *src, uint8_t *record, uint8_t *check,
                       struct sl_err *err)
{
    const struct sl_config *c = &k->p->in->cfg;
    size_t where;

    if (k->trellis)
        memset(record, 0, e->bytes);
    else
        zero_padding(c, e, record);
    for (int m = 0; k->trellis && m < SL_N_MATS; m++)
        if (sl_e8m0_has_nan(src->scales[m], sl_mat_scales_bytes(c, m), &where))
            return not_equal(k, expert, m, "a scale byte of 255 appeared", err);
    if (k->trellis) return sl_trellis_fill(k->trellis, k->p, expert, e, src, record, check, err);
    for (int m = 0; m < SL_N_MATS; m++) {
        const struct sl_plane_offsets *o = &e->planes[m][0];
        int rows = sl_mat_rows(c, m);
        int cols = sl_mat_cols(c, m);
        uint64_t n_scales = sl_mat_scales_bytes(c, m);
        memcpy(record + o->codes, src->codes[m], sl_mat_codes_bytes(c, m));
        if (sl_e8m0_has_nan(src->scales[m], n_scales, &where))
            return not_equal(k, expert, m, "a scale byte of 255 appeared", err);
        if (e->fmt[m] == SL_FMT_MXFP4)
            memcpy(record + o->scales, src->scales[m], n_scales);
        else if (!sl_m4_encode(src->codes[m], src->scales[m], rows, cols, record + o->scales,
                               record + o->row_scales))
            return not_equal(k, expert, m, "m4 cannot hold these scales", err);
    }
    /* The proof that the record gives back the source: decoded whole, compared whole. */
    for (int m = 0; m < SL_N_MATS; m++) {
        const struct sl_plane_offsets *o = &e->planes[m][0];
        const uint8_t *scales = record + o->scales;
        if (e->fmt[m] == SL_FMT_M4) {
            scales = check;
            if (!sl_m4_decode(record + o->scales, record + o->row_scales, sl_mat_rows(c, m),
                              sl_mat_cols(c, m), check))
                return not_equal(k, expert, m, "the record does not decode", err);
        }
        if (memcmp(record + o->codes, src->codes[m], sl_mat_codes_bytes(c, m)) ||
            memcmp(scales, src->scales[m], sl_mat_scales_bytes(c, m)))
            return not_equal(k, expert, m, "the record differs from the source", err);
    }
    return 0;
}

static void prefetch(const struct bank_job *k, int group)
{
    const struct sl_input *in = k->p->in;
    int end = (group + 1) * k->group;
    if (end > in->cfg.n_experts) end = in->cfg.n_experts;
    for (int x = group * k->group; x < end; x++) in->ops->prefetch_expert(in, k->b->layer, x);
}

static int write_group(void *ctx, int task, uint8_t *buf, struct sl_err *err)
{
    struct bank_job *k = ctx;
    const struct sl_input *in = k->p->in;
    uint8_t *scratch = buf;
    uint8_t *check = scratch + sl_align_up(in->scratch_bytes, SL_PAGE);
    uint64_t check_bytes = sl_mat_scales_bytes(&in->cfg, SL_GATE);
    if (sl_mat_scales_bytes(&in->cfg, SL_DOWN) > check_bytes)
        check_bytes = sl_mat_scales_bytes(&in->cfg, SL_DOWN);
    if (k->trellis) check_bytes = sl_trellis_work_bytes(k->p);
    uint8_t *records = check + sl_align_up(check_bytes, SL_PAGE);
    int first = task * k->group;
    int end = first + k->group;
    if (end > in->cfg.n_experts) end = in->cfg.n_experts;
    uint8_t *at = records;

    if (task + k->ahead < k->n_groups) prefetch(k, task + k->ahead);
    for (int x = first; x < end; x++) {
        struct sl_bank_entry *e = &k->entries[x];
        struct sl_in_expert src;
        int rc = in->ops->read_expert(in, k->b->layer, x, scratch, &src, err);
        if (!rc) rc = fill_record(k, x, e, &src, at, check, err);
        if (rc) return rc;
        sl_record_checksums(e, at);
        at += e->bytes;
    }
    uint64_t offset = k->entries[first].offset;
    uint64_t bytes = (uint64_t)(at - records);
    int rc = sl_pwrite_all(k->fd, records, bytes, offset, k->b->path, err);
    if (rc) return rc;
    (void)sync_file_range(k->fd, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    sl_progress_add(k->progress, 0, bytes);
    return 0;
}

int sl_write_bank_head(int fd, const char *path, const struct sl_bank_entry *entries, uint32_t n,
                       uint64_t file_bytes, struct sl_err *err)
{
    uint64_t bytes = sl_bank_first_record(n);
    uint8_t *head = calloc(1, bytes);
    if (!head) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    struct sl_bank_header h = {
        .version = SL_BANK_VERSION,
        .n_experts = n,
        .index_offset = SL_PAGE,
        .entry_bytes = sizeof(struct sl_bank_entry),
        .index_crc32 = sl_crc32(0, entries, n * sizeof *entries),
        .file_bytes = file_bytes,
    };
    memcpy(h.magic, SL_BANK_MAGIC, sizeof h.magic);
    h.header_crc32 = sl_crc32(0, &h, sizeof h - sizeof h.header_crc32);
    memcpy(head, &h, sizeof h);
    memcpy(head + SL_PAGE, entries, n * sizeof *entries);
    int rc = sl_pwrite_all(fd, head, bytes, 0, path, err);
    free(head);
    return rc;
}

int sl_write_bank(const struct sl_plan *p, const struct sl_plan_bank *b, struct sl_jobs *jobs,
                  struct sl_progress *progress, struct sl_err *err)
{
    int n = p->in->cfg.n_experts;
    struct bank_job k = {.p = p, .b = b, .progress = progress, .group = sl_plan_group(p), .fd = -1};
    struct sl_trellis_bank trellis = {.calib = NULL};
    int rc;

    k.n_groups = (n + k.group - 1) / k.group;
    k.ahead = jobs->n;
    k.entries = calloc((size_t)n, sizeof *k.entries);
    if (!k.entries) return sl_fail(err, SL_E_NOMEM, b->path, NULL, "out of memory");
    uint64_t at = sl_bank_first_record((uint32_t)n);
    for (int x = 0; x < n; x++) {
        k.entries[x] = p->layout[b->escape[x]];
        k.entries[x].offset = at;
        at += k.entries[x].bytes;
    }
    if (sl_trellis_is(p->experts)) {
        rc = sl_trellis_train(&trellis, p, b, jobs, err);
        if (rc) goto out;
        k.trellis = &trellis;
    }
    rc = sl_tmp_open(&k.fd, b->path, false, err);
    if (rc) goto out;
    /* Space for the whole bank at once: a full disk shows now, and the file lies in one piece. Some
     * file systems cannot; they find out while writing. */
    if (fallocate(k.fd, 0, 0, (off_t)b->file_bytes) && errno != EOPNOTSUPP && errno != ENOSYS &&
        errno != EINVAL)
        rc = sl_fail_errno(err, SL_E_IO, errno, b->path, "reserve space");
    for (int g = 0; !rc && g < k.ahead && g < k.n_groups; g++) prefetch(&k, g);
    if (!rc) rc = sl_jobs_run(jobs, k.n_groups, write_group, &k, err);
    if (!rc) rc = sl_write_bank_head(k.fd, b->path, k.entries, (uint32_t)n, b->file_bytes, err);
    if (rc)
        sl_tmp_discard(k.fd, b->path);
    else
        rc = sl_tmp_publish(k.fd, b->path, err);
out:
    sl_trellis_bank_free(&trellis);
    free(k.entries);
    return rc;
}
