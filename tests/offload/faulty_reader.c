/* Fault injection under the store and the direct reader. */
#define _GNU_SOURCE
#include "tests/offload/faulty_reader.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static uint64_t next(struct faulty_reader *r)
{
    r->seed ^= r->seed << 13;
    r->seed ^= r->seed >> 7;
    r->seed ^= r->seed << 17;
    return r->seed;
}

/* What happens to one read. */
struct fate {
    enum fr_kind kind; /* of the rule that matched */
    int fail;          /* errno, 0: none */
    size_t at_most;
    long delay_us;
};

/* Under the lock. `again`: asked before, and held back then. */
static struct fate decide(struct faulty_reader *r, size_t n, off_t off, bool again)
{
    struct fate f = {FR_NONE, 0, n, 0};
    struct fr_rule *hit = NULL;
    if (!again) r->reads++;
    for (size_t i = 0; i < sizeof r->rules / sizeof *r->rules && !hit; i++) {
        struct fr_rule *u = &r->rules[i];
        if (u->kind != FR_NONE && u->times && (uint64_t)off >= u->from && (uint64_t)off < u->to)
            hit = u;
    }
    if (hit && hit->times > 0) hit->times--;
    if (hit) f.kind = hit->kind;
    if (f.kind == FR_GATE && !again) {
        r->arrived++;
        pthread_cond_broadcast(&r->changed);
    }
    if (r->seed) {
        if ((int)(next(r) % 1000) < r->permille_intr) f.fail = EINTR;
        if ((int)(next(r) % 1000) < r->permille_errno) f.fail = EIO;
        if ((int)(next(r) % 1000) < r->permille_short) f.at_most = 1 + next(r) % n;
        if (r->max_delay_us) f.delay_us = (long)(next(r) % (uint64_t)r->max_delay_us);
    }
    if (f.kind == FR_ERRNO) f.fail = (int)hit->value;
    if (f.kind == FR_SHORT && (size_t)hit->value < f.at_most) f.at_most = (size_t)hit->value;
    return f;
}

static ssize_t faulty_pread(void *ctx, int fd, void *buf, size_t n, off_t off)
{
    struct faulty_reader *r = ctx;
    pthread_mutex_lock(&r->lock);
    struct fate f = decide(r, n, off, false);
    if (f.kind == FR_GATE)
        while (!r->gate_open) pthread_cond_wait(&r->changed, &r->lock);
    r->errnos += f.fail == EIO;
    pthread_mutex_unlock(&r->lock);
    if (f.delay_us) nanosleep(&(struct timespec){0, f.delay_us * 1000}, NULL);
    if (f.kind == FR_END) return 0;
    if (f.fail) {
        errno = f.fail;
        return -1;
    }
    ssize_t got = pread(fd, buf, n, off);
    if (got > (ssize_t)f.at_most) got = (ssize_t)f.at_most;
    if (got > 0 && f.kind == FR_WRONG) *(unsigned char *)buf ^= 1;
    return got;
}

/* The same where the kernel has read already; what waits is asked about again. */
static ssize_t faulty_landing(void *ctx, void *buf, size_t n, off_t off, ssize_t got, bool again)
{
    struct faulty_reader *r = ctx;
    pthread_mutex_lock(&r->lock);
    struct fate f = decide(r, n, off, again);
    bool later = (f.kind == FR_GATE && !r->gate_open) || (f.delay_us && f.delay_us % 2 == 0);
    if (!later) r->errnos += f.fail == EIO;
    pthread_mutex_unlock(&r->lock);
    if (later) return SL_READ_LATER;
    if (f.kind == FR_END) return 0;
    if (f.fail) return -f.fail;
    if (got > (ssize_t)f.at_most) got = (ssize_t)f.at_most;
    if (got > 0 && f.kind == FR_WRONG) *(unsigned char *)buf ^= 1;
    return got;
}

void fr_init(struct faulty_reader *r)
{
    memset(r, 0, sizeof *r);
    r->ops = (struct sl_read_ops){faulty_pread, r, faulty_landing};
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
}

void fr_free(struct faulty_reader *r)
{
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
}

void fr_add(struct faulty_reader *r, enum fr_kind kind, uint64_t from, uint64_t to, int64_t value,
            int times)
{
    pthread_mutex_lock(&r->lock);
    size_t i = 0;
    while (i < sizeof r->rules / sizeof *r->rules && r->rules[i].kind != FR_NONE) i++;
    assert_true(i < sizeof r->rules / sizeof *r->rules);
    r->rules[i] = (struct fr_rule){kind, from, to, value, times};
    pthread_mutex_unlock(&r->lock);
}

void fr_clear(struct faulty_reader *r)
{
    pthread_mutex_lock(&r->lock);
    memset(r->rules, 0, sizeof r->rules);
    r->gate_open = false;
    r->arrived = 0;
    pthread_mutex_unlock(&r->lock);
}

void fr_open_gate(struct faulty_reader *r)
{
    pthread_mutex_lock(&r->lock);
    r->gate_open = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void fr_wait_at_gate(struct faulty_reader *r, int n)
{
    pthread_mutex_lock(&r->lock);
    while (r->arrived < n) pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

int fr_reads(struct faulty_reader *r)
{
    pthread_mutex_lock(&r->lock);
    int n = r->reads;
    pthread_mutex_unlock(&r->lock);
    return n;
}
