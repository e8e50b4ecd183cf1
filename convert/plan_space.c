/* Disk space: what the plan needs at its worst moment, for each file system it writes to.
 *
 * The units are walked in the order in which they are written; with --free-source a shard's space
 * comes back after the last unit that reads it. So a 1.56 TB checkpoint can be turned into its pack on
 * a drive with little more than the checkpoint on it, and a drive that is too small is refused before
 * the first byte. */
#define _GNU_SOURCE
#include "convert/plan_space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/size.h"
#include "convert/free_source.h"

/* Folders and a block here and there. */
#define SLACK_BYTES ((int64_t)64 << 10)
#define FS_MAX      64

struct fs {
    dev_t dev;
    const char *path; /* first target on it */
    uint64_t free;
    int64_t used, peak;
};

struct space {
    struct fs fs[FS_MAX];
    int n;
};

/* Device of the nearest existing folder. */
static bool device_of(const char *path, dev_t *dev)
{
    char up[SL_PATH_MAX];
    struct stat st;
    snprintf(up, sizeof up, "%s", path);
    while (stat(up, &st)) {
        char *slash = strrchr(up, '/');
        if (slash == up)
            strcpy(up, "/");
        else if (slash)
            *slash = 0;
        else if (!strcmp(up, "."))
            return false;
        else
            strcpy(up, ".");
    }
    *dev = st.st_dev;
    return true;
}

static int target(struct space *s, const char *path, struct fs **out, struct sl_err *err)
{
    dev_t dev;
    if (!device_of(path, &dev))
        return sl_fail(err, SL_E_ARG, path, NULL, "no such folder, and none above it");
    for (int i = 0; i < s->n; i++)
        if (s->fs[i].dev == dev) {
            *out = &s->fs[i];
            return 0;
        }
    if (s->n == FS_MAX) return sl_fail(err, SL_E_ARG, path, NULL, "too many file systems");
    struct fs *f = &s->fs[s->n];
    int rc = sl_free_space(path, &f->free, err);
    if (rc) return rc;
    f->dev = dev;
    f->path = path;
    f->used = f->peak = 0;
    s->n++;
    *out = f;
    return 0;
}

static void use(struct fs *f, int64_t bytes)
{
    f->used += bytes;
    if (f->used > f->peak) f->peak = f->used;
}

/* Blocks of a leftover that will be cut or replaced before it grows again. */
static int64_t leftover(const char *path)
{
    char tmp[SL_PATH_MAX];
    struct stat st;
    int n = snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (n < 0 || n >= (int)sizeof tmp || stat(tmp, &st)) return 0;
    return (int64_t)st.st_blocks * 512;
}

/* Part of DST/NAME.tmp that finished units do not account for: it is cut off first. */
static int64_t unfinished(struct sl_plan *p, const char *name, enum sl_unit_kind kind,
                          const bool *done)
{
    char path[SL_PATH_MAX];
    if (!sl_path_join(path, p->dst, name)) return 0;
    int64_t n = leftover(path);
    for (int i = 0; i < sl_plan_n_units(p); i++) {
        struct sl_unit u;
        sl_plan_unit(p, i, &u);
        if (u.kind == kind && done[i]) n -= (int64_t)u.bytes;
    }
    return n > 0 ? n : 0;
}

static int64_t blocks(uint64_t bytes)
{
    return (int64_t)sl_align_up(bytes, SL_PAGE);
}

static int walk(struct space *s, struct sl_plan *p, const bool *done, const int *last_use,
                struct sl_err *err)
{
    struct fs *dst = NULL;
    int rc = target(s, p->dst, &dst, err);
    if (rc || !dst) return rc;
    int64_t own = SLACK_BYTES + (int64_t)p->n_banks * p->in->cfg.n_experts;
    if (last_use)
        own += (int64_t)sl_free_headers_bytes(p->in->source) +
               (int64_t)p->in->source->n_shards * SL_PAGE;
    dst->used -= unfinished(p, "trunk.bin", SL_UNIT_TRUNK, done) +
                 unfinished(p, "vision.bin", SL_UNIT_VISION, done);
    use(dst, own + (int64_t)p->live_price.scratch_bytes);
    int n = sl_plan_n_units(p);
    for (int i = 0; i < n; i++) {
        struct sl_unit u;
        struct fs *f = dst;
        sl_plan_unit(p, i, &u);
        if (u.kind == SL_UNIT_BANK) {
            rc = target(s, u.bank->path, &f, err);
            if (rc) return rc;
            if (!done[i]) f->used -= leftover(u.bank->path);
        }
        if (u.kind != SL_UNIT_NONE && !done[i]) use(f, blocks(u.bytes));
        for (int k = 0; last_use && k < p->in->source->n_shards; k++) {
            dev_t dev = 0;
            if (last_use[k] != i) continue;
            uint64_t gain = sl_free_gain(&p->in->source->shards[k], &dev);
            for (int q = 0; gain && q < s->n; q++)
                if (s->fs[q].dev == dev) s->fs[q].used -= (int64_t)gain;
        }
    }
    use(dst, blocks(p->manifest_bytes));
    use(dst, blocks(sl_plan_sums_bytes(p)));
    for (int i = 0; i < p->in->n_extra; i++) use(dst, blocks(p->extra_bytes[i]));
    return 0;
}

int sl_plan_space(struct sl_plan *p, const bool *done, const int *last_use, struct sl_space *out,
                  struct sl_err *err)
{
    struct space s = {.n = 0};
    memset(out, 0, sizeof *out);
    int rc = walk(&s, p, done, last_use, err);
    if (rc) return rc;
    for (int i = 0; i < s.n; i++) {
        const struct fs *f = &s.fs[i];
        uint64_t need = f->peak > 0 ? (uint64_t)f->peak : 0;
        out->free_bytes += f->free;
        if (need <= f->free) continue;
        if (!out->missing_bytes) {
            snprintf(out->short_path, sizeof out->short_path, "%s", f->path);
            out->short_need = need;
            out->short_free = f->free;
        }
        out->missing_bytes += need - f->free;
    }
    return 0;
}

int sl_space_refuse(const struct sl_space *s, struct sl_err *err)
{
    char gb[32];
    return sl_fail(err, SL_E_NOSPACE, s->short_path, "disk space",
                   "needs %llu bytes, %llu are free: %llu bytes (%s) are missing",
                   (unsigned long long)s->short_need, (unsigned long long)s->short_free,
                   (unsigned long long)(s->short_need - s->short_free),
                   sl_format_bytes(gb, sizeof gb, s->short_need - s->short_free));
}
