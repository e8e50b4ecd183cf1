/* One line on a terminal, drawn by whichever worker notices that 200 ms have passed.
 *
 * The rate forgets with a time constant of 10 s, so that it follows a drive that slows down, and is a
 * ratio of two sums that forget alike, so that it is right from the first draw. */
#define _GNU_SOURCE
#include "base/progress.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/size.h"

#define REDRAW_NS 200000000u
#define MEMORY_S  10.0

struct sl_progress {
    char verb[24], unit[24]; /* unit "": bytes only */
    uint64_t total_units, total_bytes;
    bool active; /* stderr is a terminal, or forced */
    bool forced; /* SLUICE_PROGRESS=1: whole lines, also at the end */
    atomic_uint_fast64_t units, bytes;
    atomic_uint_fast64_t old_units, old_bytes; /* of an earlier run, part of the above */
    atomic_uint_fast64_t next_ns;
    pthread_mutex_t draw;
    /* under draw */
    uint64_t last_ns, last_units, last_bytes; /* of this run */
    double sum_s, sum_units, sum_bytes;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct sl_progress *sl_progress_open(const char *verb, const char *unit, uint64_t total_units,
                                     uint64_t total_bytes)
{
    struct sl_progress *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    if (pthread_mutex_init(&p->draw, NULL)) {
        free(p);
        return NULL;
    }
    snprintf(p->verb, sizeof p->verb, "%s", verb);
    snprintf(p->unit, sizeof p->unit, "%s", unit ? unit : "");
    p->total_units = total_units;
    p->total_bytes = total_bytes;
    const char *env = getenv("SLUICE_PROGRESS");
    p->forced = env && !strcmp(env, "1");
    p->active = p->forced || isatty(STDERR_FILENO);
    p->last_ns = now_ns();
    atomic_store(&p->next_ns, p->last_ns + REDRAW_NS);
    return p;
}

static void update_rate(struct sl_progress *p, uint64_t units, uint64_t bytes)
{
    uint64_t now = now_ns();
    double dt = (double)(now - p->last_ns) * 1e-9;
    double keep = exp(-dt / MEMORY_S);
    p->sum_s = p->sum_s * keep + dt;
    p->sum_units = p->sum_units * keep + (double)(units - p->last_units);
    p->sum_bytes = p->sum_bytes * keep + (double)(bytes - p->last_bytes);
    p->last_ns = now;
    p->last_units = units;
    p->last_bytes = bytes;
}

/* "489/1447 GB": both in the unit of the total. */
static int format_amount(char *s, size_t n, uint64_t done, uint64_t total)
{
    static const char *const names[] = {"B", "kB", "MB", "GB"};
    int u = total >= 1000000000u ? 3 : total >= 1000000u ? 2 : total >= 1000u ? 1 : 0;
    double unit = pow(1000, u);
    double t = (double)total / unit;
    int digits = u == 0 || t >= 100 ? 0 : t >= 10 ? 1 : 2;
    return snprintf(s, n, "  %.*f/%.*f %s", digits, (double)done / unit, digits, t, names[u]);
}

static void format_line(struct sl_progress *p, uint64_t units, uint64_t bytes, char *s, size_t n)
{
    size_t at = (size_t)snprintf(s, n, "%s", p->verb);
    double left_s = NAN;
    if (p->unit[0]) {
        at += (size_t)snprintf(s + at, n - at, "  %llu/%llu %s", (unsigned long long)units,
                               (unsigned long long)p->total_units, p->unit);
        if (p->sum_units > 0 && p->total_units >= units)
            left_s = (double)(p->total_units - units) * p->sum_s / p->sum_units;
    }
    if (p->total_bytes) {
        at += (size_t)format_amount(s + at, n - at, bytes, p->total_bytes);
        double rate = p->sum_s > 0 ? p->sum_bytes / p->sum_s : 0;
        char text[32];
        sl_format_bytes(text, sizeof text, (uint64_t)rate);
        at += (size_t)snprintf(s + at, n - at, "  %s/s", text);
        left_s =
            rate > 0 && p->total_bytes >= bytes ? (double)(p->total_bytes - bytes) / rate : NAN;
    }
    char eta[32];
    snprintf(s + at, n - at, "  eta %s", sl_format_seconds(eta, sizeof eta, left_s));
}

static void draw(struct sl_progress *p)
{
    uint64_t units = atomic_load(&p->units);
    uint64_t bytes = atomic_load(&p->bytes);
    /* skip() adds to the old part first, so this never goes below zero */
    update_rate(p, units - atomic_load(&p->old_units), bytes - atomic_load(&p->old_bytes));
    char line[256];
    format_line(p, units, bytes, line, sizeof line);
    if (p->forced) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    struct winsize ws;
    size_t width = !ioctl(STDERR_FILENO, TIOCGWINSZ, &ws) && ws.ws_col ? ws.ws_col : 80;
    if (strlen(line) >= width) line[width - 1] = '\0'; /* a wrapped line cannot be rewritten */
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
}

static void add(struct sl_progress *p, uint64_t units, uint64_t bytes)
{
    atomic_fetch_add(&p->units, units);
    atomic_fetch_add(&p->bytes, bytes);
}

void sl_progress_add(struct sl_progress *p, uint64_t units, uint64_t bytes)
{
    if (!p) return;
    add(p, units, bytes);
    if (!p->active) return;
    uint64_t now = now_ns();
    uint_fast64_t due = atomic_load_explicit(&p->next_ns, memory_order_relaxed);
    if (now < due || !atomic_compare_exchange_strong(&p->next_ns, &due, now + REDRAW_NS)) return;
    pthread_mutex_lock(&p->draw);
    draw(p);
    pthread_mutex_unlock(&p->draw);
}

void sl_progress_skip(struct sl_progress *p, uint64_t units, uint64_t bytes)
{
    if (!p) return;
    pthread_mutex_lock(&p->draw); /* a draw between the two would count old work as new */
    atomic_fetch_add(&p->old_units, units);
    atomic_fetch_add(&p->old_bytes, bytes);
    add(p, units, bytes);
    pthread_mutex_unlock(&p->draw);
}

void sl_progress_close(struct sl_progress *p)
{
    if (!p) return;
    if (p->forced)
        draw(p);
    else if (p->active)
        fputs("\r\033[K", stderr);
    pthread_mutex_destroy(&p->draw);
    free(p);
}
