/* Conversion: preflight, then units in order, each synced and journaled, pack.json last.
 *
 *   preflight    open source, plan, scan scales, fix sizes, disk space        writes nothing
 *   begin        DST/.convert with the journal (and headers, for --free-source)
 *   units        trunk 0, bank 0, trunk 1, ... globals, vision; after each, shards no longer needed
 *                are freed
 *   finish       tokenizer files, pack.json, then DST/.convert goes
 *
 * A kill at any point leaves finished units and the journal; the same command takes up there. Whether
 * a pack is finished is one question: pack.json is there and .convert is not. */
#define _GNU_SOURCE
#include "convert/calib_bank.h"
#include "convert/convert.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pool.h"
#include "convert/free_source.h"
#include "convert/mix_plan.h"
#include "convert/pack_writer.h"
#include "convert/plan_space.h"
#include "convert/resume.h"
#include "convert/trellis_bank.h"
#include "offload/pack.h"
#include "offload/pack_sums.h"
#include "quant/w_device.h"

struct run {
    const char *src, *dst;
    struct sl_convert_opts o; /* bank_dirs made absolute */
    char **dirs;              /* owned strings behind o.bank_dirs */
    struct sl_convert_report *report;
    struct sl_err *err;
    char work[SL_PATH_MAX]; /* DST/.convert */
    char trunk_path[SL_PATH_MAX], vision_path[SL_PATH_MAX], manifest_path[SL_PATH_MAX];
    char made[SL_PATH_MAX]; /* topmost folder that begin() made, "" for none */

    struct sl_input *in;
    struct sl_plan *plan;
    struct sl_jobs *jobs;
    struct sl_journal *journal;
    struct sl_progress *progress;
    char *begin;
    bool *done;    /* [n_units] */
    int *last_use; /* [n_shards], NULL unless shards are freed */
    int trunk_fd;
    bool begun;     /* the journal exists: state is kept on failure */
    int calibrated; /* layers whose tokens have gone on to the next */
};

/* ---- what DST holds ------------------------------------------------------------------------------ */

enum dst_state { DST_NEW, DST_RESUME, DST_FINISHING };

static bool exists(const char *path)
{
    struct stat st;
    return !lstat(path, &st);
}

static int look_at_dst(const struct run *r, enum dst_state *state)
{
    struct stat st;
    char journal[SL_PATH_MAX];

    *state = DST_NEW;
    if (stat(r->dst, &st)) {
        if (errno == ENOENT) return 0;
        return sl_fail_errno(r->err, SL_E_IO, errno, r->dst, "look at");
    }
    if (!S_ISDIR(st.st_mode)) return sl_fail(r->err, SL_E_ARG, r->dst, NULL, "is not a folder");
    if (exists(r->manifest_path)) {
        *state = DST_FINISHING;
        if (exists(r->work)) return 0;
        return sl_fail(r->err, SL_E_ARG, r->dst, NULL, "already holds a finished pack");
    }
    if (sl_path_join(journal, r->work, "journal") && exists(journal)) {
        *state = DST_RESUME;
        return 0;
    }
    int n = sl_count_entries(r->dst, ".convert");
    if (n < 0) return sl_fail_errno(r->err, SL_E_IO, errno, r->dst, "look at");
    if (!n) return 0;
    return sl_fail(r->err, SL_E_ARG, r->dst, NULL,
                   "is not empty and holds no unfinished conversion");
}

/* The journal goes last: while it is there, a kill during this leads back here. */
static int remove_work(const struct run *r)
{
    char path[SL_PATH_MAX];
    DIR *d = opendir(r->work);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && strcmp(e->d_name, "journal") != 0 &&
            sl_path_join(path, r->work, e->d_name))
            unlink(path);
    if (d) closedir(d);
    if (sl_path_join(path, r->work, "journal")) unlink(path);
    if (rmdir(r->work) && errno != ENOENT)
        return sl_fail_errno(r->err, SL_E_IO, errno, r->work, "remove");
    return sl_sync_dir(r->dst, r->err);
}

static uint64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) ? 0 : (uint64_t)st.st_size;
}

/* pack.json is written and .convert was being removed when a run was killed. */
static int finish_leftover(struct run *r)
{
    int rc = sl_journal_open(&r->journal, r->work, r->err);
    if (rc || !r->journal) return rc;
    r->begin = sl_resume_begin(NULL, &r->o);
    if (!r->begin) return sl_fail(r->err, SL_E_NOMEM, r->dst, NULL, "out of memory");
    if (r->o.dry_run ||
        (r->journal->n && sl_resume_check(r->journal, r->begin, r->dst, false, NULL)))
        return sl_fail(r->err, SL_E_ARG, r->dst, NULL, "already holds a finished pack");
    struct sl_pack *p;
    rc = sl_pack_open(&p, r->dst, NULL, 0, r->err);
    if (rc) return rc;
    struct sl_convert_report *out = r->report;
    out->n_layers = p->cfg.n_layers;
    out->n_banks = p->n_banks;
    out->experts = (uint64_t)p->n_banks * (uint64_t)p->cfg.n_experts;
    out->trunk_bytes = p->trunk_bytes;
    out->vision_bytes = p->vision_bytes;
    out->bank_bytes = sl_pack_bank_bytes(p);
    out->other_bytes = size_of(r->manifest_path);
    out->total_bytes = out->trunk_bytes + out->vision_bytes + out->bank_bytes + out->other_bytes;
    out->resumed = true;
    sl_pack_close(p);
    return remove_work(r);
}

/* ---- preflight ----------------------------------------------------------------------------------- */

static int check_opts(struct run *r)
{
    const struct sl_convert_opts *o = &r->o;
    if (!sl_fmt_is_expert(o->experts) && o->experts != SL_FMT_MIX)
        return sl_fail(r->err, SL_E_ARG, NULL, "--experts", "%s: not a format for experts",
                       sl_fmt_name(o->experts));
    if (o->live && o->experts == SL_FMT_MIX)
        return sl_fail(r->err, SL_E_ARG, NULL, "--calib",
                       "a mix is chosen before the first layer is written: give STATS, not a text");
    if ((o->calib || o->live) && !sl_trellis_is(o->experts))
        return sl_fail(r->err, SL_E_ARG, NULL, "--calib",
                       "%s experts are lossless: nothing to weigh", sl_fmt_name(o->experts));
    if (o->experts == SL_FMT_MIX && !o->calib)
        return sl_fail(r->err, SL_E_ARG, NULL, "--experts",
                       "a mix is chosen by statistics: give --calib STATS");
    if (o->sensitivity && o->experts != SL_FMT_MIX)
        return sl_fail(r->err, SL_E_ARG, NULL, "--sensitivity", "is for a mix");
    if (o->cuda && (!sl_w_device_takes(o->experts) || o->calib || o->live))
        return sl_fail(r->err, SL_E_ARG, NULL, "--device", "cuda: for w26 and w36 without --calib");
    if (!sl_fmt_is_trunk(o->trunk))
        return sl_fail(r->err, SL_E_ARG, NULL, "--trunk", "%s: not one of bf16, t8, t6, t4",
                       sl_fmt_name(o->trunk));
    for (int g = 0; g < SL_N_GROUPS; g++)
        if (o->trunk_of[g] != SL_FMT_NONE && !sl_fmt_is_trunk((enum sl_fmt)o->trunk_of[g]))
            return sl_fail(r->err, SL_E_ARG, NULL, "--trunk", "%s: not one of bf16, t8, t6, t4",
                           sl_fmt_name((enum sl_fmt)o->trunk_of[g]));
    if (!r->dst[0]) return sl_fail(r->err, SL_E_ARG, NULL, "DST", "is empty");
    if (!sl_path_join(r->work, r->dst, ".convert") ||
        !sl_path_join(r->trunk_path, r->dst, "trunk.bin") ||
        !sl_path_join(r->vision_path, r->dst, "vision.bin") ||
        !sl_path_join(r->manifest_path, r->dst, "pack.json"))
        return sl_fail(r->err, SL_E_ARG, r->dst, NULL, "path too long");
    return 0;
}

static int make_dirs_absolute(struct run *r)
{
    char cwd[SL_PATH_MAX] = "";
    char path[SL_PATH_MAX];
    int n = r->o.n_bank_dirs;
    r->dirs = calloc((size_t)n + 1, sizeof *r->dirs);
    if (!r->dirs || !getcwd(cwd, sizeof cwd))
        return sl_fail(r->err, SL_E_NOMEM, r->dst, NULL, "out of memory");
    for (int i = 0; i < n; i++) {
        const char *given = r->o.bank_dirs[i];
        bool ok = given[0] &&
                  (given[0] == '/' ? strlen(given) < sizeof path : sl_path_join(path, cwd, given));
        if (!ok) return sl_fail(r->err, SL_E_ARG, given, "--bank-dir", "not a usable path");
        r->dirs[i] = strdup(given[0] == '/' ? given : path);
        if (!r->dirs[i]) return sl_fail(r->err, SL_E_NOMEM, given, NULL, "out of memory");
        struct stat st;
        if (!stat(given, &st) && !S_ISDIR(st.st_mode))
            return sl_fail(r->err, SL_E_ARG, given, "--bank-dir", "is not a folder");
    }
    r->o.bank_dirs = (const char *const *)r->dirs;
    return 0;
}

/* A bank of that name in a folder of the user's may belong to another pack. */
static int check_bank_files(const struct run *r)
{
    for (int i = 0; i < r->plan->n_banks; i++)
        if (exists(r->plan->banks[i].path))
            return sl_fail(r->err, SL_E_ARG, r->plan->banks[i].path, "--bank-dir",
                           "exists and is not of this conversion");
    return 0;
}

/* Files of finished units must still be what the journal says. */
static int check_finished(const struct run *r)
{
    uint64_t trunk_end = 0;
    const char *trunk = r->trunk_path;
    char tmp[SL_PATH_MAX + 8];
    for (int i = 0; i < sl_plan_n_units(r->plan); i++) {
        struct sl_unit u;
        sl_plan_unit(r->plan, i, &u);
        if (!r->done[i]) continue;
        if (u.kind == SL_UNIT_TRUNK) trunk_end = u.range->offset + u.range->bytes;
        const char *path = u.kind == SL_UNIT_BANK ? u.bank->path : r->vision_path;
        if ((u.kind == SL_UNIT_BANK || u.kind == SL_UNIT_VISION) && size_of(path) != u.bytes)
            return sl_fail(r->err, SL_E_PACK, path, NULL,
                           "%llu bytes, the journal says %llu; remove %s to start over",
                           (unsigned long long)size_of(path), (unsigned long long)u.bytes, r->dst);
    }
    if (!exists(trunk)) {
        snprintf(tmp, sizeof tmp, "%s.tmp", trunk);
        trunk = tmp;
    }
    if (size_of(trunk) < trunk_end)
        return sl_fail(r->err, SL_E_PACK, trunk, NULL,
                       "%llu bytes, the journal says at least %llu; remove %s to start over",
                       (unsigned long long)size_of(trunk), (unsigned long long)trunk_end, r->dst);
    return 0;
}

static void fill_report(struct run *r, const struct sl_space *space)
{
    struct sl_convert_report *out = r->report;
    const struct sl_plan *p = r->plan;
    out->source_bytes = r->in->file_bytes;
    out->trunk_bytes = p->trunk.bytes;
    out->bank_bytes = sl_plan_bank_bytes(p);
    out->vision_bytes = p->vision.bytes;
    out->other_bytes = sl_plan_other_bytes(p);
    out->total_bytes = sl_plan_total_bytes(p);
    out->free_bytes = space->free_bytes;
    out->missing_bytes = space->missing_bytes;
    out->n_layers = p->in->cfg.n_layers;
    out->n_banks = p->n_banks;
    out->experts = (uint64_t)p->n_banks * (uint64_t)p->in->cfg.n_experts;
    out->m4_escapes = p->escapes;
    out->jobs = r->jobs->n;
    out->buffer_bytes = (uint64_t)r->jobs->n * r->jobs->buf_bytes;
}

static int plan_freeing(struct run *r)
{
    if (!r->o.free_source) return 0;
    if (!r->in->source)
        return sl_fail(r->err, SL_E_ARG, r->src, "--free-source", "frees checkpoints, not %s",
                       r->in->gguf ? "GGUF files" : "packs");
    int rc = sl_free_check(r->in->source, r->dst, r->err);
    if (rc) return rc;
    r->last_use = calloc((size_t)r->in->source->n_shards + 1, sizeof *r->last_use);
    if (!r->last_use) return sl_fail(r->err, SL_E_NOMEM, r->src, NULL, "out of memory");
    sl_plan_shard_use(r->plan, r->last_use);
    return 0;
}

static int open_input(struct run *r, bool resume)
{
    /* Saved headers exist only where --free-source was given. */
    const char *saved = NULL;
    DIR *d = resume ? opendir(r->work) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n > 7 && !strcmp(e->d_name + n - 7, ".header")) saved = r->work;
    }
    if (d) closedir(d);
    return sl_input_open(&r->in, r->src, saved, r->err);
}

/* A pack of 1.5 TB that no prompt can enter is found out before it is written. */
static int check_tokenizer(const struct run *r)
{
    const struct sl_input *in = r->in;
    char dir[SL_PATH_MAX];
    if (!r->o.check_tokenizer) return 0;
    if (in->files_dir) return r->o.check_tokenizer(in->files_dir, &in->cfg, SL_E_SOURCE, r->err);
    if (!sl_path_join(dir, in->pack->dir, "tokenizer"))
        return sl_fail(r->err, SL_E_ARG, in->pack->dir, NULL, "path too long");
    return r->o.check_tokenizer(dir, &in->cfg, SL_E_PACK, r->err);
}

/* Jobs that the memory of a calibrated pass has room for, with the pass's own taken off. */
static void cap_jobs(struct run *r)
{
    const struct sl_live_price *live = &r->plan->live_price;
    const uint64_t each = live->job_bytes + sl_plan_job_bytes(r->plan);
    const uint64_t left =
        live->memory_bytes < SL_LIVE_BUDGET ? SL_LIVE_BUDGET - live->memory_bytes : 0;
    int n = r->o.jobs ? r->o.jobs : sl_cpu_count();
    if ((uint64_t)n * each > left) n = (int)(left / each);
    r->o.jobs = n < 1 ? 1 : n;
}

static int prepare_live(struct run *r)
{
    const struct sl_live_calib *live = r->o.live;
    const int threads = r->o.jobs ? r->o.jobs : sl_cpu_count();
    int rc = live->prepare(live->ctx, r->in, threads, &r->plan->live_price, r->err);
    if (rc) return rc;
    r->plan->live = live;
    r->report->live = r->plan->live_price;
    cap_jobs(r);
    return 0;
}

static int preflight(struct run *r, bool resume)
{
    struct sl_space space;
    int rc = open_input(r, resume);
    if (!rc) rc = check_tokenizer(r);
    if (!rc) rc = sl_plan_open(&r->plan, r->in, r->dst, &r->o, r->err);
    if (!rc && r->o.calib)
        rc = sl_calib_file_open(&r->plan->calib, r->o.calib, &r->in->cfg, r->err);
    if (!rc && r->o.live) rc = prepare_live(r);
    if (!rc && r->o.cuda && !r->o.dry_run) {
        const struct sl_config *c = &r->in->cfg;
        const int a = c->latent_size, b = c->moe_intermediate_size;
        rc = sl_w_device_open(&r->plan->device, (size_t)a * (size_t)b, a > b ? a : b, r->err);
    }
    if (rc) return rc;
    r->begin = sl_resume_begin(r->plan, &r->o);
    r->done = calloc((size_t)sl_plan_n_units(r->plan), sizeof *r->done);
    if (!r->begin || !r->done) return sl_fail(r->err, SL_E_NOMEM, r->dst, NULL, "out of memory");
    if (resume) rc = sl_resume_check(r->journal, r->begin, r->dst, true, r->err);
    if (!rc && !resume) rc = check_bank_files(r);
    if (!rc) rc = plan_freeing(r);
    if (!rc)
        rc = sl_jobs_open(&r->jobs, r->o.jobs, sl_plan_job_bytes(r->plan), SL_JOB_BUDGET, "convert",
                          r->err);
    if (!rc && resume) r->calibrated = sl_resume_calib_layers(r->journal);
    if (rc) return rc;
    if (!resume && r->o.experts == SL_FMT_MIX)
        rc =
            sl_mix_plan(r->plan, r->o.sensitivity, r->o.mix_bits, r->jobs, &r->report->mix, r->err);
    if (rc) return rc;
    rc = resume ? sl_resume_scan(r->journal, r->plan, r->err)
                : sl_plan_scan(r->plan, r->jobs, r->err);
    if (!rc) rc = sl_plan_fix_sizes(r->plan, r->err);
    if (!rc && resume) rc = sl_resume_units(r->journal, r->plan, r->done, r->err);
    if (!rc && resume) rc = check_finished(r);
    if (!rc) rc = sl_plan_space(r->plan, r->done, r->last_use, &space, r->err);
    if (rc) return rc;
    fill_report(r, &space);
    r->report->resumed = resume;
    if (r->o.dry_run || !space.missing_bytes) return 0;
    return sl_space_refuse(&space, r->err);
}

/* ---- begin --------------------------------------------------------------------------------------- */

/* The topmost folder of path that does not exist yet. */
static void find_topmost(const char *path, char *made)
{
    char up[SL_PATH_MAX];
    made[0] = 0;
    snprintf(up, sizeof up, "%s", path);
    while (!exists(up)) {
        strcpy(made, up);
        char *slash = strrchr(up, '/');
        if (!slash || slash == up) break;
        *slash = 0;
    }
}

/* Takes back what begin() made: folders only, from the pack up to the topmost one. */
static void unmake(const struct run *r)
{
    char path[SL_PATH_MAX];
    sl_remove_tree(r->work);
    size_t stop = strlen(r->made);
    if (!stop) return;
    snprintf(path, sizeof path, "%s", r->dst);
    for (;;) {
        if (rmdir(path) || strlen(path) <= stop) return;
        char *slash = strrchr(path, '/');
        if (!slash) return;
        *slash = 0;
    }
}

static int begin(struct run *r)
{
    find_topmost(r->dst, r->made);
    int rc = sl_make_dirs(r->work, r->err);
    if (!rc) rc = sl_journal_open(&r->journal, r->work, r->err);
    if (rc) {
        if (rc != SL_E_ARG) unmake(r); /* ARG: another conversion has it */
        return rc;
    }
    if (r->journal->n)
        return sl_fail(r->err, SL_E_ARG, r->dst, NULL, "another conversion has begun here");
    if (r->o.free_source) rc = sl_free_save_headers(r->in->source, r->work, r->err);
    if (!rc) rc = sl_resume_create(r->journal, r->begin, r->plan, r->err);
    if (!rc) rc = sl_sync_dir(r->dst, r->err);
    if (rc) unmake(r);
    return rc;
}

/* ---- units --------------------------------------------------------------------------------------- */

static int write_trunk_unit(struct run *r, const struct sl_unit *u)
{
    int rc;
    if (r->trunk_fd < 0) {
        rc = sl_tmp_open(&r->trunk_fd, r->trunk_path, true, r->err);
        /* Its name too must be on the drive before the journal speaks of its bytes. */
        if (!rc) rc = sl_sync_dir(r->dst, r->err);
        if (rc) return rc;
    }
    if (ftruncate(r->trunk_fd, (off_t)u->range->offset))
        return sl_fail_errno(r->err, SL_E_IO, errno, r->trunk_path, "truncate");
    rc = sl_write_range(r->plan, u->file, u->range, r->trunk_fd, r->trunk_path, r->jobs,
                        r->progress, r->err);
    if (!rc && fdatasync(r->trunk_fd))
        rc = sl_fail_errno(r->err, SL_E_IO, errno, r->trunk_path, "sync");
    /* Room for whoever needs it; what is finished stays. */
    if (rc && ftruncate(r->trunk_fd, (off_t)u->range->offset)) return rc;
    return rc;
}

static int write_vision_unit(struct run *r, const struct sl_unit *u)
{
    int fd;
    int rc = sl_tmp_open(&fd, r->vision_path, false, r->err);
    if (rc) return rc;
    rc = sl_write_range(r->plan, u->file, u->range, fd, r->vision_path, r->jobs, r->progress,
                        r->err);
    if (!rc) return sl_tmp_publish(fd, r->vision_path, r->err);
    sl_tmp_discard(fd, r->vision_path);
    return rc;
}

static int write_bank_unit(struct run *r, const struct sl_unit *u)
{
    char dir[SL_PATH_MAX];
    snprintf(dir, sizeof dir, "%s", u->bank->path);
    *strrchr(dir, '/') = 0;
    int rc = sl_is_dir(dir) ? 0 : sl_make_dirs(dir, r->err);
    return rc ? rc : sl_write_bank(r->plan, u->bank, r->jobs, r->progress, r->err);
}

static int free_shard(struct run *r, struct sl_shard *sh)
{
    int rc = 0;
    if (!sl_resume_freed(r->journal, sh->name))
        rc = sl_resume_note_freed(r->journal, sh->name, r->err);
    if (!rc) rc = sl_free_shard(sh, r->err);
    if (!rc) r->report->freed_bytes += sh->bytes;
    return rc;
}

/* Shards whose last reader was unit i; -1: those that no unit reads. */
static int free_shards(struct run *r, int i)
{
    int rc = 0;
    for (int k = 0; r->last_use && !rc && k < r->in->source->n_shards; k++)
        if (r->last_use[k] == i) rc = free_shard(r, &r->in->source->shards[k]);
    return rc;
}

/* Before unit i: the tokens of its layer up to the experts. */
static int calibrate_before(struct run *r, int i)
{
    const int layer = i / 2;
    if (!r->o.live || layer >= r->plan->in->cfg.n_layers || layer < r->calibrated || i % 2)
        return 0;
    return r->o.live->begin(r->o.live->ctx, layer, r->err);
}

/* After unit i, the bank of its layer or the place of one: the tokens go on to the next layer. */
static int calibrate_after(struct run *r, int i, bool was_done)
{
    const struct sl_live_calib *live = r->o.live;
    const int layer = i / 2;
    int rc = 0;
    if (!live || layer >= r->plan->in->cfg.n_layers || layer < r->calibrated || i % 2 == 0)
        return 0;
    if (was_done && r->plan->bank_of[layer] >= 0)
        rc = sl_live_run_experts(live, r->in, layer, r->jobs, r->err);
    if (!rc) rc = live->end(live->ctx, layer, r->err);
    if (!rc) rc = sl_resume_note_calib(r->journal, layer, r->err);
    return rc;
}

/* Shards that unit i was the last to read; a layer's own stay until its tokens have gone on. */
static int free_after(struct run *r, int i)
{
    if (!r->o.live || i >= 2 * r->plan->in->cfg.n_layers) return free_shards(r, i);
    if (i % 2 == 0) return 0;
    int rc = free_shards(r, i - 1);
    return rc ? rc : free_shards(r, i);
}

static int write_units(struct run *r)
{
    int n = sl_plan_n_units(r->plan);
    int rc = 0;
    for (int i = 0; !rc && i < n; i++) {
        struct sl_unit u;
        const bool was_done = r->done[i];
        sl_plan_unit(r->plan, i, &u);
        rc = calibrate_before(r, i);
        if (rc) return rc;
        /* A layer counts when its bank is done, or its trunk where it has none. */
        bool layer = i < 2 * r->plan->in->cfg.n_layers && i % 2;
        if (r->done[i]) {
            sl_progress_skip(r->progress, layer, u.bytes);
        } else if (sl_interrupted()) {
            rc = sl_fail(r->err, SL_E_INTR, NULL, NULL, "interrupted");
        } else {
            if (u.kind == SL_UNIT_TRUNK) rc = write_trunk_unit(r, &u);
            if (u.kind == SL_UNIT_BANK) rc = write_bank_unit(r, &u);
            if (u.kind == SL_UNIT_VISION) rc = write_vision_unit(r, &u);
            if (!rc && u.kind != SL_UNIT_NONE) rc = sl_resume_note_unit(r->journal, &u, r->err);
            sl_progress_add(r->progress, layer, 0);
        }
        if (!rc) rc = calibrate_after(r, i, was_done);
        if (!rc) rc = free_after(r, i);
    }
    return rc ? rc : free_shards(r, -1);
}

/* ---- finish -------------------------------------------------------------------------------------- */

/* Not sl_tmp_publish: on failure that removes the file, and finished units live in this one. */
static int publish_trunk(struct run *r)
{
    char tmp[SL_PATH_MAX + 8];
    if (r->trunk_fd < 0) {
        if (exists(r->trunk_path)) return 0; /* by an earlier run, killed just after */
        int rc = sl_tmp_open(&r->trunk_fd, r->trunk_path, true, r->err);
        if (rc) return rc;
    }
    snprintf(tmp, sizeof tmp, "%s.tmp", r->trunk_path);
    if (fsync(r->trunk_fd)) return sl_fail_errno(r->err, SL_E_IO, errno, tmp, "sync");
    if (rename(tmp, r->trunk_path))
        return sl_fail_errno(r->err, SL_E_IO, errno, r->trunk_path, "rename");
    return sl_sync_dir(r->dst, r->err);
}

static int copy_extras(struct run *r)
{
    char dir[SL_PATH_MAX];
    if (!sl_path_join(dir, r->dst, "tokenizer"))
        return sl_fail(r->err, SL_E_ARG, r->dst, NULL, "path too long");
    int rc = sl_make_dirs(dir, r->err);
    return rc ? rc : sl_input_copy_extras(r->in, dir, r->err);
}

static int finish(struct run *r)
{
    const char *text;
    size_t len;
    int rc = publish_trunk(r);
    if (!rc) rc = copy_extras(r);
    if (!rc) rc = sl_plan_manifest(r->plan, &text, &len, r->err);
    if (!rc) rc = sl_sums_publish(r->dst, text, len, r->err);
    return rc ? rc : remove_work(r);
}

/* ---- all ----------------------------------------------------------------------------------------- */

static int convert(struct run *r)
{
    enum dst_state state;
    int rc = check_opts(r);
    if (!rc) rc = make_dirs_absolute(r);
    if (!rc) rc = look_at_dst(r, &state);
    if (rc) return rc;
    if (state == DST_FINISHING) return finish_leftover(r);
    if (state == DST_RESUME) rc = sl_journal_open(&r->journal, r->work, r->err);
    if (!rc) rc = preflight(r, state == DST_RESUME);
    if (rc || r->o.dry_run) return rc;
    if (state == DST_NEW)
        rc = begin(r);
    else if (r->o.free_source)
        rc = sl_free_save_headers(r->in->source, r->work, r->err);
    if (rc) return rc;
    r->begun = true;
    if (r->o.live)
        rc = r->o.live->start(r->o.live->ctx, r->jobs->pool, r->work, r->calibrated, r->err);
    if (rc) return rc;
    r->progress = sl_progress_open("convert", "layers", (uint64_t)r->in->cfg.n_layers,
                                   r->plan->trunk.bytes + r->plan->vision.bytes +
                                       sl_plan_bank_bytes(r->plan));
    rc = write_units(r);
    return rc ? rc : finish(r);
}

static void close_run(struct run *r)
{
    sl_progress_close(r->progress);
    if (r->trunk_fd >= 0) close(r->trunk_fd);
    sl_journal_close(r->journal);
    sl_jobs_close(r->jobs);
    sl_plan_close(r->plan);
    sl_input_close(r->in);
    free(r->begin);
    free(r->done);
    free(r->last_use);
    for (int i = 0; r->dirs && i < r->o.n_bank_dirs; i++) free(r->dirs[i]);
    free(r->dirs);
}

int sl_convert(const char *src, const char *dst, const struct sl_convert_opts *o,
               struct sl_convert_report *report, struct sl_err *err)
{
    struct timespec t0;
    struct timespec t1;
    struct sl_convert_report own = {0};
    struct run r = {.src = src,
                    .dst = dst,
                    .o = *o,
                    .report = report ? report : &own,
                    .err = err,
                    .trunk_fd = -1};

    clock_gettime(CLOCK_MONOTONIC, &t0);
    memset(r.report, 0, sizeof *r.report);
    int rc = convert(&r);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    r.report->seconds = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
    if (rc && r.begun && err)
        sl_fail(err, rc, NULL, NULL, "%s; finished parts are kept: run the same command to resume",
                err->text);
    close_run(&r);
    if (!report) sl_mix_report_close(own.mix);
    return rc;
}
