/* See syscall_trap.h. */
#define _GNU_SOURCE
#include "tests/convert/syscall_trap.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
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

static const int steps[] = {
    SYS_pwrite64, SYS_fsync,    SYS_fdatasync, SYS_ftruncate, SYS_fallocate,
    SYS_mkdirat,  SYS_unlinkat, SYS_renameat2, SYS_openat,
#ifdef SYS_renameat
    SYS_renameat,
#endif
#ifdef SYS_rename
    SYS_rename,
#endif
#ifdef SYS_unlink
    SYS_unlink,   SYS_rmdir,    SYS_mkdir,
#endif
};
#define N_STEPS (sizeof steps / sizeof *steps)

/* Only steps stop the child: a conversion makes ten times as many other calls. */
static bool install_filter(void)
{
    struct sock_filter code[N_STEPS + 3];
    const struct sock_fprog prog = {N_STEPS + 3, code};
    code[0] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < N_STEPS; i++)
        code[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)steps[i],
                                                   (uint8_t)(N_STEPS - i), 0);
    code[1 + N_STEPS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[2 + N_STEPS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

/* An open that creates nothing is no step. */
static bool is_step(const struct __ptrace_syscall_info *info)
{
    return info->seccomp.nr != SYS_openat || info->seccomp.args[2] & O_CREAT;
}

/* Makes the entered call fail (nr -1) or a write shorter; false where registers are not known. */
static bool alter(pid_t tid, const struct __ptrace_syscall_info *info, bool drop)
{
#ifdef __x86_64__
    struct user_regs_struct r;
    if (ptrace(PTRACE_GETREGS, tid, NULL, &r)) return false;
    if (drop)
        r.orig_rax = (unsigned long long)-1;
    else if (info->seccomp.nr == SYS_pwrite64)
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

static void on_entry(struct trace *t, pid_t tid)
{
    struct __ptrace_syscall_info info;
    memset(&info, 0, sizeof info);
    if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) <= 0)
        t->end->supported = false;
    else if (info.op == PTRACE_SYSCALL_INFO_SECCOMP && is_step(&info) &&
             ++t->end->steps == t->plan->at)
        act(t, tid, &info);
}

static void on_exit_of_step(struct trace *t, pid_t tid)
{
    t->pending = 0;
    if (t->plan->action == ST_KILL_AFTER)
        kill(t->child, SIGKILL);
    else
        set_result(tid, -t->plan->sys_errno);
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
        if (st >> 8 == (SIGTRAP | PTRACE_EVENT_SECCOMP << 8)) on_entry(t, tid);
        if (sig == (SIGTRAP | 0x80) && tid == t->pending) on_exit_of_step(t, tid);
        if (sig == (SIGTRAP | 0x80) || sig == SIGTRAP || sig == SIGSTOP) sig = 0;
        ptrace(tid == t->pending ? PTRACE_SYSCALL : PTRACE_CONT, tid, NULL, (void *)(intptr_t)sig);
    }
}

void st_run(int (*fn)(void *ctx), void *ctx, const struct st_plan *plan, struct st_end *end)
{
    int st;
    memset(end, 0, sizeof *end);
    pid_t child = fork();
    if (!child) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) || !install_filter()) _exit(99);
        raise(SIGSTOP);
        _exit(fn(ctx)); /* no leak check: it cannot run under ptrace */
    }
    if (child < 0 || waitpid(child, &st, 0) != child || !WIFSTOPPED(st)) return;
    if (ptrace(PTRACE_SETOPTIONS, child, NULL,
               PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACESECCOMP |
                   PTRACE_O_EXITKILL)) {
        kill(child, SIGKILL);
        waitpid(child, &st, 0);
        return;
    }
    end->supported = true;
    struct trace t = {child, plan, end, 0};
    ptrace(PTRACE_CONT, child, NULL, NULL);
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
