/* One poll loop over the sockets of requests (see serve_watch.h). */
#define _GNU_SOURCE
#include "runtime/serve_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "runtime/serve_job.h"

struct sl_watch_conn {
    struct sl_watch_conn *next, **link;
    int fd;
    double deadline; /* monotonic, 0: none */
    void *what;
    uint64_t serial; /* of this `what`: a socket's number comes back, a serial never */
    bool gone;       /* told already */
};

struct sl_watch {
    void (*on_gone)(void *ctx, void *what);
    void *ctx;
    int wake; /* eventfd */
    pthread_t thread;
    pthread_mutex_t lock; /* of the rest */
    struct sl_watch_conn *first;
    int n;
    uint64_t serials;
    bool closing;
};

/* What one poll asks about. */
struct polled {
    struct pollfd *fds; /* [cap]; the first one is the wake-up */
    uint64_t *serials;  /* [cap] */
    int n, cap;
};

static void wake(struct sl_watch *w)
{
    const uint64_t one = 1;
    ssize_t n = write(w->wake, &one, sizeof one); /* full means that it wakes already */
    (void)n;
}

/* Ends what is late. Deadlines are kept to a second, so that moving one needs no wake-up. */
static void expire(struct sl_watch *w)
{
    double now = sl_serve_now();
    for (struct sl_watch_conn *c = w->first; c; c = c->next) {
        if (c->deadline == 0 || c->deadline > now) continue;
        c->deadline = 0;
        (void)shutdown(c->fd, SHUT_RDWR);
    }
}

static void tell_gone(struct sl_watch *w, const struct polled *p)
{
    for (struct sl_watch_conn *c = w->first; c; c = c->next)
        for (int i = 1; i < p->n && c->what && !c->gone; i++)
            if (p->serials[i] == c->serial &&
                (p->fds[i].revents & (POLLRDHUP | POLLHUP | POLLERR))) {
                c->gone = true;
                w->on_gone(w->ctx, c->what);
            }
}

/* False: no memory. */
static bool gather(const struct sl_watch *w, struct polled *p)
{
    if (p->cap < w->n + 1) {
        int cap = w->n + 16;
        struct pollfd *fds = realloc(p->fds, (size_t)cap * sizeof *fds);
        if (fds) p->fds = fds;
        uint64_t *serials = realloc(p->serials, (size_t)cap * sizeof *serials);
        if (serials) p->serials = serials;
        if (!fds || !serials) return false;
        p->cap = cap;
    }
    p->n = 0;
    p->fds[p->n++] = (struct pollfd){.fd = w->wake, .events = POLLIN};
    for (struct sl_watch_conn *c = w->first; c; c = c->next) {
        if (!c->what || c->gone) continue;
        p->serials[p->n] = c->serial;
        p->fds[p->n++] = (struct pollfd){.fd = c->fd, .events = POLLRDHUP};
    }
    return true;
}

static void *loop(void *arg)
{
    struct sl_watch *w = arg;
    struct polled p = {0};
    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        expire(w);
        bool ready = gather(w, &p);
        int timeout = w->n ? 1000 : -1;
        pthread_mutex_unlock(&w->lock);
        (void)poll(p.fds, ready ? (nfds_t)p.n : 0, ready ? timeout : 100);
        if (ready && (p.fds[0].revents & POLLIN)) {
            uint64_t drained;
            ssize_t got = read(w->wake, &drained, sizeof drained);
            (void)got;
        }
        pthread_mutex_lock(&w->lock);
        if (ready) tell_gone(w, &p);
    }
    pthread_mutex_unlock(&w->lock);
    free(p.fds);
    free(p.serials);
    return NULL;
}

int sl_watch_open(struct sl_watch **out, void (*on_gone)(void *ctx, void *what), void *ctx,
                  struct sl_err *err)
{
    *out = NULL;
    struct sl_watch *w = calloc(1, sizeof *w);
    if (!w) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory");
    w->on_gone = on_gone;
    w->ctx = ctx;
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake < 0) {
        int rc = sl_fail_errno(err, SL_E_IO, errno, NULL, "eventfd");
        free(w);
        return rc;
    }
    pthread_mutex_init(&w->lock, NULL);
    int sys = pthread_create(&w->thread, NULL, loop, w);
    if (sys) {
        close(w->wake);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return sl_fail_errno(err, SL_E_NOMEM, sys, NULL, "start a thread");
    }
    *out = w;
    return 0;
}

void sl_watch_close(struct sl_watch *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_mutex_unlock(&w->lock);
    wake(w);
    pthread_join(w->thread, NULL);
    close(w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static double deadline(double seconds)
{
    return seconds > 0 ? sl_serve_now() + seconds : 0;
}

struct sl_watch_conn *sl_watch_add(struct sl_watch *w, int fd, double seconds)
{
    struct sl_watch_conn *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (c->fd < 0) {
        free(c);
        return NULL;
    }
    c->deadline = deadline(seconds);
    pthread_mutex_lock(&w->lock);
    c->next = w->first;
    c->link = &w->first;
    if (c->next) c->next->link = &c->next;
    w->first = c;
    w->n++;
    pthread_mutex_unlock(&w->lock);
    wake(w);
    return c;
}

void sl_watch_remove(struct sl_watch *w, struct sl_watch_conn *c)
{
    if (!c) return;
    pthread_mutex_lock(&w->lock);
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    w->n--;
    close(c->fd);
    pthread_mutex_unlock(&w->lock);
    wake(w);
    free(c);
}

void sl_watch_deadline(struct sl_watch *w, struct sl_watch_conn *c, double seconds)
{
    if (!c) return;
    pthread_mutex_lock(&w->lock);
    c->deadline = deadline(seconds);
    pthread_mutex_unlock(&w->lock);
}

void sl_watch_set(struct sl_watch *w, struct sl_watch_conn *c, void *what)
{
    if (!c) return;
    pthread_mutex_lock(&w->lock);
    c->what = what;
    c->serial = ++w->serials;
    c->gone = false;
    pthread_mutex_unlock(&w->lock);
    if (what) wake(w);
}

int sl_watch_count(struct sl_watch *w)
{
    pthread_mutex_lock(&w->lock);
    int n = w->n;
    pthread_mutex_unlock(&w->lock);
    return n;
}
