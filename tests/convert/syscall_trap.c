/* See syscall_trap.h. */
#define _GNU_SOURCE
#include "tests/convert/syscall_trap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined PTRACE_GET_SYSCALL_INFO && !defined NO_TRAP
#define HAVE_TRAP 1
#else
#define HAVE_TRAP 0
#endif

#if HAVE_TRAP

static bool is_step(const struct __ptrace_syscall_info *info)
{
    switch (info->entry.nr) {
    case SYS_pwrite64:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_ftruncate:
    case SYS_fallocate:
    case SYS_mkdirat:
    case SYS_unlinkat:
    case SYS_renameat2:
#ifdef SYS_renameat
    case SYS_renameat:
#endif
#ifdef SYS_rename
    case SYS_rename:
#endif
#ifdef SYS_unlink
    case SYS_unlink:
    case SYS_rmdir:
    case SYS_mkdir:
#endif
        return true;
    case SYS_openat:
        return info->entry.args[2] & O_CREAT;
    default:
        return false;
    }
}

/* Makes the entered call fail (nr -1) or a write shorter; false where registers are not known. */
static bool alter(pid_t tid, const struct __ptrace_syscall_info *info, bool drop)
{
#ifdef __x86_64__
    struct user_regs_struct r;
    if (ptrace(PTRACE_GETREGS, tid, NULL, &r)) return false;
    if (drop)
        r.orig_rax = (unsigned long long)-1;
    else if (info->entry.nr == SYS_pwrite64)
        r.rdx /= 2;
    return !ptrace(PTRACE_SETREGS, tid, NULL, &r);
#else
    (void)tid;
    (void)info;
    return !drop;
#endif
}

static void set_result(pid_t tid, long value)
{
#ifdef __x86_64__
    struct user_regs_struct r;
    if (ptrace(PTRACE_GETREGS, tid, NULL, &r)) return;
    r.rax = (unsigned long long)value;
    ptrace(PTRACE_SETREGS, tid, NULL, &r);
#else
    (void)tid;
    (void)value;
#endif
}

struct trace {
    pid_t child;
    const struct st_plan *plan;
    struct st_end *end;
    pid_t pending; /* thread whose call must be finished first, 0 for none */
};

/* The plan's action at the entry of step N. */
static void act(struct trace *t, pid_t tid, const struct __ptrace_syscall_info *info)
{
    t->end->hit = true;
    switch (t->plan->action) {
    case ST_KILL:
        kill(t->child, SIGKILL);
        break;
    case ST_KILL_AFTER:
        alter(tid, info, false);
        t->pending = tid;
        break;
    case ST_FAIL:
        if (alter(tid, info, true))
            t->pending = tid;
        else
            t->end->supported = false;
        break;
    case ST_INTERRUPT:
        kill(t->child, SIGINT);
        break;
    case ST_COUNT:
        break;
    }
}

static void on_syscall(struct trace *t, pid_t tid)
{
    struct __ptrace_syscall_info info;
    memset(&info, 0, sizeof info);
    if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) <= 0) {
        t->end->supported = errno != EIO && errno != EINVAL;
        return;
    }
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY && is_step(&info) && ++t->end->steps == t->plan->at)
        act(t, tid, &info);
    else if (info.op == PTRACE_SYSCALL_INFO_EXIT && tid == t->pending) {
        t->pending = 0;
        if (t->plan->action == ST_KILL_AFTER)
            kill(t->child, SIGKILL);
        else
            set_result(tid, -t->plan->sys_errno);
    }
}

static void follow(struct trace *t)
{
    for (;;) {
        int st;
        pid_t tid = waitpid(-1, &st, __WALL);
        if (tid < 0) return;
        if (WIFEXITED(st) || WIFSIGNALED(st)) {
            if (tid != t->child) continue;
            t->end->exited = WIFEXITED(st);
            t->end->status = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
            return;
        }
        int sig = WSTOPSIG(st);
        if (sig == (SIGTRAP | 0x80)) on_syscall(t, tid);
        if (sig == (SIGTRAP | 0x80) || sig == SIGTRAP || sig == SIGSTOP) sig = 0;
        ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(intptr_t)sig);
    }
}

void st_run(int (*fn)(void *ctx), void *ctx, const struct st_plan *plan, struct st_end *end)
{
    int st;
    memset(end, 0, sizeof *end);
    pid_t child = fork();
    if (!child) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(99);
        raise(SIGSTOP);
        _exit(fn(ctx)); /* no leak check: it cannot run under ptrace */
    }
    if (child < 0 || waitpid(child, &st, 0) != child || !WIFSTOPPED(st)) return;
    if (ptrace(PTRACE_SETOPTIONS, child, NULL,
               PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)) {
        kill(child, SIGKILL);
        waitpid(child, &st, 0);
        return;
    }
    end->supported = true;
    struct trace t = {child, plan, end, 0};
    ptrace(PTRACE_SYSCALL, child, NULL, NULL);
    follow(&t);
}

#else

void st_run(int (*fn)(void *ctx), void *ctx, const struct st_plan *plan, struct st_end *end)
{
    (void)fn;
    (void)ctx;
    (void)plan;
    memset(end, 0, sizeof *end);
}

#endif
