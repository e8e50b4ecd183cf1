/* Writing a synthetic pack: trunk, banks, tokenizer, manifest; all or nothing.
 *
 * There is no journal: a pack is made at the speed of the drive and can be made again. What a failed run
 * made is removed, by name, and nothing else: the folder was empty or did not exist. Writes are direct
 * where the file system takes them (whole pages from page-aligned buffers), so the page cache neither
 * slows them nor keeps what a run right after wants to measure the drive with. */
#define _GNU_SOURCE
#include "convert/synth.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"
#include "convert/pack_writer.h"
#include "convert/plan_space.h"
#include "convert/synth_files.h"
#include "convert/synth_fill.h"
#include "convert/synth_plan.h"
#include "convert/synth_routes.h"
#include "offload/pack_sums.h"

#define SLACK_BYTES ((uint64_t)64 << 10) /* folders */
#define MIN_VOCAB   256

enum { STREAM_TRUNK = 1, STREAM_BANK = 2 };

struct run {
    const char *dst;
    const struct sl_synth_opts *o;
    struct sl_synth_report *report;
    struct sl_err *err;
    struct sl_synth_plan s;
    struct sl_jobs *jobs;
    struct sl_progress *progress;
    char manifest[SL_PATH_MAX], trunk[SL_PATH_MAX], experts[SL_PATH_MAX], tokenizer[SL_PATH_MAX];
    bool made_dst, begun;
};

/* ---- files that are written by tasks ------------------------------------------------------------- */

/* No promise: where it is refused, writes go through the page cache. */
static void set_direct(int fd, bool on)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0) (void)fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
}

static int open_out(const char *path, uint64_t bytes, int *fd, struct sl_err *err)
{
    int rc = sl_tmp_open(fd, path, false, err);
    if (rc) return rc;
    if (ftruncate(*fd, (off_t)bytes)) rc = sl_fail_errno(err, SL_E_IO, errno, path, "set the size");
    /* A full disk shows now. Some file systems cannot reserve; they find out while writing. */
    else if (fallocate(*fd, 0, 0, (off_t)bytes) && errno != EOPNOTSUPP && errno != ENOSYS &&
             errno != EINVAL)
        rc = sl_fail_errno(err, SL_E_IO, errno, path, "reserve space");
    if (rc)
        sl_tmp_discard(*fd, path);
    else
        set_direct(*fd, true);
    return rc;
}

static int close_out(int fd, const char *path, int rc, struct sl_err *err)
{
    if (!rc && fdatasync(fd)) rc = sl_fail_errno(err, SL_E_IO, errno, path, "sync");
    if (rc) {
        sl_tmp_discard(fd, path);
        return rc;
    }
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return sl_tmp_publish(fd, path, err);
}

static int put(struct run *r, int fd, const char *path, const uint8_t *data, uint64_t bytes,
               uint64_t offset, struct sl_err *err)
{
    int rc = sl_pwrite_all(fd, data, bytes, offset, path, err);
    if (rc && fcntl(fd, F_GETFL) & O_DIRECT) { /* a drive with larger blocks than a page, perhaps */
        set_direct(fd, false);
        rc = sl_pwrite_all(fd, data, bytes, offset, path, err);
    }
    if (rc) return rc;
    sl_progress_add(r->progress, 0, bytes);
    return 0;
}

/* ---- trunk --------------------------------------------------------------------------------------- */

/* Rows of one tensor. */
struct strip {
    int tensor;
    uint64_t row, n;
    uint32_t crc32;
};

struct trunk_job {
    struct run *r;
    struct strip *strips;
    int n, fd;
};

/* Rows of a strip: whole pages, about a task's bytes. */
static uint64_t strip_rows(const struct sl_synth_plan *s, const struct sl_plan_tensor *t)
{
    uint64_t whole = SL_PAGE; /* fewest rows that fill pages: a page over its gcd with the row */
    for (uint64_t unit = t->dst_unit; whole > 1 && unit % 2 == 0; unit /= 2) whole /= 2;
    uint64_t n = s->plan->task_bytes / (t->dst_unit * whole);
    return whole * (n ? n : 1);
}

/* Cuts distinct tensors into strips; with strips NULL it only counts. */
static int cut(const struct sl_synth_plan *s, struct strip *strips)
{
    const struct sl_plan_file *f = &s->plan->trunk;
    int n = 0;
    for (int i = 0; i < f->n_tensors; i++) {
        const struct sl_plan_tensor *t = &f->tensors[i];
        if (s->same[i] != i) continue;
        uint64_t step = strip_rows(s, t);
        for (uint64_t row = 0; row < t->units; row += step, n++)
            if (strips)
                strips[n] = (struct strip){
                    .tensor = i, .row = row, .n = t->units - row < step ? t->units - row : step};
    }
    return n;
}

static uint64_t strip_bytes(const struct sl_synth_plan *s)
{
    uint64_t most = s->plan->task_bytes;
    for (int i = 0; i < s->plan->trunk.n_tensors; i++) {
        const struct sl_plan_tensor *t = &s->plan->trunk.tensors[i];
        uint64_t rows = strip_rows(s, t);
        if (rows > t->units) rows = t->units;
        if (rows * t->dst_unit > most) most = rows * t->dst_unit;
    }
    return most + SL_PAGE; /* the last strip is padded to a page */
}

static int write_strip(void *ctx, int task, uint8_t *buf, struct sl_err *err)
{
    struct trunk_job *k = ctx;
    struct run *r = k->r;
    struct strip *s = &k->strips[task];
    const struct sl_plan_tensor *t = &r->s.plan->trunk.tensors[s->tensor];
    struct sl_synth_rule rule;
    sl_synth_rule_of(&rule, &r->s.in.cfg, t->src.name, t->cols);
    for (uint64_t i = 0; i < s->n; i++) {
        uint64_t stream =
            sl_synth_stream(r->o->seed, STREAM_TRUNK, (uint64_t)s->tensor, s->row + i);
        uint8_t *row = buf + i * t->dst_unit;
        if (rule.kind != SL_SYNTH_ROUTER)
            sl_synth_row(&rule, t->fmt, t->cols, stream, row);
        else if (!sl_synth_router_bias(&r->s.in.cfg, stream, row))
            return sl_fail(err, SL_E_NOMEM, r->trunk, t->src.name, "out of memory");
    }
    uint64_t bytes = s->n * t->dst_unit;
    uint64_t padded = sl_align_up(bytes, SL_PAGE); /* zeros up to the next tensor */
    s->crc32 = sl_crc32(0, buf, bytes);
    memset(buf + bytes, 0, padded - bytes);
    return put(r, k->fd, r->trunk, buf, padded, t->offset + s->row * t->dst_unit, err);
}

static void set_crcs(const struct trunk_job *k)
{
    const struct sl_synth_plan *s = &k->r->s;
    struct sl_plan_tensor *t = s->plan->trunk.tensors;
    for (int i = 0; i < k->n; i++) {
        struct sl_plan_tensor *x = &t[k->strips[i].tensor];
        x->crc32 = sl_crc32_combine(x->crc32, k->strips[i].crc32, k->strips[i].n * x->dst_unit);
    }
    for (int i = 0; i < s->plan->trunk.n_tensors; i++) t[i].crc32 = t[s->same[i]].crc32;
}

static int write_trunk(struct run *r)
{
    struct trunk_job k = {.r = r, .n = cut(&r->s, NULL)};
    k.strips = calloc((size_t)k.n + 1, sizeof *k.strips);
    if (!k.strips) return sl_fail(r->err, SL_E_NOMEM, r->trunk, NULL, "out of memory");
    cut(&r->s, k.strips);
    int rc = open_out(r->trunk, r->s.plan->trunk.bytes, &k.fd, r->err);
    if (!rc) {
        rc = sl_jobs_run(r->jobs, k.n, write_strip, &k, r->err);
        rc = close_out(k.fd, r->trunk, rc, r->err);
    }
    if (!rc) set_crcs(&k);
    free(k.strips);
    return rc;
}

/* ---- banks --------------------------------------------------------------------------------------- */

struct bank_job {
    struct run *r;
    const struct sl_plan_bank *b;
    struct sl_bank_entry *entries; /* [n_experts] */
    int group, fd;
};

static int write_group(void *ctx, int task, uint8_t *buf, struct sl_err *err)
{
    const struct bank_job *k = ctx;
    const struct sl_config *c = &k->r->s.in.cfg;
    const int first = task * k->group;
    int end = first + k->group;
    if (end > c->n_experts) end = c->n_experts;
    uint8_t *at = buf;
    for (int x = first; x < end; x++) {
        struct sl_bank_entry *e = &k->entries[x];
        sl_synth_record(
            c, e, sl_synth_stream(k->r->o->seed, STREAM_BANK, (uint64_t)k->b->layer, (uint64_t)x),
            at);
        sl_record_checksums(e, at);
        at += e->bytes;
    }
    return put(k->r, k->fd, k->b->path, buf, (uint64_t)(at - buf), k->entries[first].offset, err);
}

static int write_bank(struct run *r, const struct sl_plan_bank *b)
{
    const int n = r->s.in.cfg.n_experts;
    struct bank_job k = {.r = r, .b = b, .group = sl_plan_group(r->s.plan)};
    k.entries = calloc((size_t)n, sizeof *k.entries);
    if (!k.entries) return sl_fail(r->err, SL_E_NOMEM, b->path, NULL, "out of memory");
    uint64_t at = sl_bank_first_record((uint32_t)n);
    for (int x = 0; x < n; x++) {
        k.entries[x] = r->s.plan->layout[0];
        k.entries[x].offset = at;
        at += k.entries[x].bytes;
    }
    int rc = open_out(b->path, b->file_bytes, &k.fd, r->err);
    if (!rc) {
        rc = sl_jobs_run(r->jobs, (n + k.group - 1) / k.group, write_group, &k, r->err);
        set_direct(k.fd, false);
        if (!rc)
            rc = sl_write_bank_head(k.fd, b->path, k.entries, (uint32_t)n, b->file_bytes, r->err);
        rc = close_out(k.fd, b->path, rc, r->err);
    }
    sl_progress_add(r->progress, 1, 0);
    free(k.entries);
    return rc;
}

/* ---- all ----------------------------------------------------------------------------------------- */

static int check(struct run *r)
{
    const struct sl_synth_opts *o = r->o;
    if (!sl_fmt_is_expert(o->experts))
        return sl_fail(r->err, SL_E_ARG, NULL, "--experts", "%s: not a format for experts",
                       sl_fmt_name(o->experts));
    if (!sl_fmt_is_trunk(o->trunk))
        return sl_fail(r->err, SL_E_ARG, NULL, "--trunk", "%s: not one of bf16, t8, t6, t4",
                       sl_fmt_name(o->trunk));
    if (o->cfg->vocab_size < MIN_VOCAB)
        return sl_fail(r->err, SL_E_ARG, NULL, "vocab_size",
                       "%d: a vocabulary of bytes needs %d or more", o->cfg->vocab_size, MIN_VOCAB);
    if (!sl_path_join(r->manifest, r->dst, "pack.json") ||
        !sl_path_join(r->trunk, r->dst, "trunk.bin") ||
        !sl_path_join(r->experts, r->dst, "experts") ||
        !sl_path_join(r->tokenizer, r->dst, "tokenizer"))
        return sl_fail(r->err, SL_E_ARG, r->dst, NULL, "path too long");
    struct stat st;
    if (stat(r->dst, &st)) {
        if (errno == ENOENT) return 0;
        return sl_fail_errno(r->err, SL_E_IO, errno, r->dst, "look at");
    }
    if (!S_ISDIR(st.st_mode)) return sl_fail(r->err, SL_E_ARG, r->dst, NULL, "is not a folder");
    int n = sl_count_entries(r->dst, NULL);
    if (n < 0) return sl_fail_errno(r->err, SL_E_IO, errno, r->dst, "look at");
    return n ? sl_fail(r->err, SL_E_ARG, r->dst, NULL, "is not empty") : 0;
}

static int fill_report(struct run *r)
{
    struct sl_synth_report *out = r->report;
    const struct sl_config *c = &r->s.in.cfg;
    uint64_t tokenizer = sl_synth_tokenizer_bytes(c);
    double *p = calloc((size_t)c->n_experts, sizeof *p);
    if (!tokenizer || !p) {
        free(p);
        return sl_fail(r->err, SL_E_NOMEM, r->dst, NULL, "out of memory");
    }
    out->zipf_exponent = sl_synth_popularity(p, c->n_experts, c->top_k, SL_SYNTH_REUSE);
    for (int i = 0; i < c->n_experts; i++) out->designed_reuse += p[i] * p[i] / c->top_k;
    free(p);
    out->trunk_bytes = r->s.plan->trunk.bytes;
    out->bank_bytes = r->s.bank_bytes;
    out->other_bytes = r->s.plan->manifest_bytes + tokenizer + sl_synth_sums_bytes();
    out->total_bytes = out->trunk_bytes + out->bank_bytes + out->other_bytes;
    out->unshared_bytes = r->s.unshared_bytes;
    out->n_layers = c->n_layers;
    out->n_trunk_layers = r->s.n_trunk_layers;
    out->n_moe = r->s.plan->n_banks;
    out->n_banks = r->s.n_banks;
    out->jobs = r->jobs->n;
    return 0;
}

static int check_space(struct run *r)
{
    struct sl_space space = {.short_need = r->report->total_bytes + SLACK_BYTES};
    int rc = sl_free_space(r->dst, &space.short_free, r->err);
    if (rc) return rc;
    snprintf(space.short_path, sizeof space.short_path, "%s", r->dst);
    r->report->free_bytes = space.short_free;
    if (space.short_need > space.short_free)
        r->report->missing_bytes = space.short_need - space.short_free;
    return r->report->missing_bytes && !r->o->dry_run ? sl_space_refuse(&space, r->err) : 0;
}

static int write_all(struct run *r)
{
    struct sl_synth_plan *s = &r->s;
    const char *text;
    size_t len;
    int rc = 0;
    if (mkdir(r->dst, 0777)) {
        if (errno != EEXIST) return sl_fail_errno(r->err, SL_E_IO, errno, r->dst, "make");
    } else {
        r->made_dst = true;
    }
    r->begun = true;
    rc = sl_make_dirs(r->experts, r->err);
    if (!rc) rc = sl_make_dirs(r->tokenizer, r->err);
    if (!rc) rc = write_trunk(r);
    for (int i = 0; i < s->plan->n_banks && !rc; i++)
        if (s->bank_same[i] == i) rc = write_bank(r, &s->plan->banks[i]);
    if (!rc) rc = sl_synth_tokenizer(&s->in.cfg, r->tokenizer, r->err);
    if (!rc) rc = sl_plan_manifest(s->plan, &text, &len, r->err);
    return rc ? rc : sl_sums_publish(r->dst, text, len, r->err);
}

static void unmake(const struct run *r)
{
    char sums[SL_PATH_MAX];
    if (!r->begun) return;
    sl_remove_tree(r->experts);
    sl_remove_tree(r->tokenizer);
    unlink(r->trunk);
    unlink(r->manifest);
    if (sl_path_join(sums, r->dst, SL_SUMS_FILE)) unlink(sums);
    if (r->made_dst) rmdir(r->dst);
}

int sl_synth(const char *dst, const struct sl_synth_opts *o, struct sl_synth_report *report,
             struct sl_err *err)
{
    struct timespec t0;
    struct timespec t1;
    struct sl_synth_report own = {0};
    struct run *r = calloc(1, sizeof *r);
    if (!r) return sl_fail(err, SL_E_NOMEM, dst, NULL, "out of memory");
    *r = (struct run){.dst = dst, .o = o, .report = report ? report : &own, .err = err};
    memset(r->report, 0, sizeof *r->report);
    clock_gettime(CLOCK_MONOTONIC, &t0);
    int rc = check(r);
    if (!rc) rc = sl_synth_plan_open(&r->s, dst, o, err);
    if (!rc) {
        uint64_t group = (uint64_t)sl_plan_group(r->s.plan) * r->s.plan->record_max;
        uint64_t strip = strip_bytes(&r->s);
        rc = sl_jobs_open(&r->jobs, o->jobs, group > strip ? group : strip, SL_JOB_BUDGET, "synth",
                          err);
    }
    if (!rc) rc = fill_report(r);
    if (!rc) rc = check_space(r);
    if (!rc && !o->dry_run) {
        r->progress = sl_progress_open("synth", "banks", (uint64_t)r->s.n_banks,
                                       r->s.plan->trunk.bytes + r->s.bank_bytes);
        rc = write_all(r);
        sl_progress_close(r->progress);
        if (rc) unmake(r);
    }
    clock_gettime(CLOCK_MONOTONIC, &t1);
    r->report->seconds = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
    sl_jobs_close(r->jobs);
    sl_synth_plan_close(&r->s);
    free(r);
    return rc;
}
