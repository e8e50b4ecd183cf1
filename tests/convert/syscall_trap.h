/* Ends or fails a program at its N-th step on disk, from outside.
 *
 * The function runs in a child under ptrace; steps are system calls that change the disk (write, sync,
 * rename, unlink, mkdir, truncate, create, ...). So nothing in the product knows of these tests, and
 * every step counts, library code included. Linux with ptrace and seccomp filters; short writes and
 * failures also need x86-64 registers. */
#ifndef SL_TESTS_SYSCALL_TRAP_H
#define SL_TESTS_SYSCALL_TRAP_H

#include <stdbool.h>

enum st_action {
    ST_COUNT,      /* run to the end */
    ST_KILL,       /* SIGKILL instead of step N */
    ST_KILL_AFTER, /* SIGKILL right after step N; a write has then written half */
    ST_FAIL,       /* step N returns -errno instead of being done */
    ST_INTERRUPT   /* SIGINT before step N */
};

struct st_plan {
    enum st_action action;
    int at; /* counts from 1 */
    int sys_errno;
};

struct st_end {
    bool supported;
    bool hit; /* step N was reached */
    bool exited;
    int status; /* exit status */
    int steps;  /* seen */
};

/* fn(ctx) in the child; its value is the exit status. Only call from a process without threads. */
void st_run(int (*fn)(void *ctx), void *ctx, const struct st_plan *plan, struct st_end *end);

#endif
