/* Shared ends of all commands: errors to stderr, checked stdout, signals (see commands.h). */
#include "runtime/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int sl_cmd_fail(const struct sl_err *err)
{
    if (err->code == SL_E_INTR && !err->text[0])
        fprintf(stderr, "sluice: interrupted\n");
    else
        fprintf(stderr, "sluice: %s\n", err->text);
    return sl_exit_status(err->code);
}

int sl_cmd_write(const void *data, size_t len, struct sl_err *err)
{
    errno = 0;
    if (fwrite(data, 1, len, stdout) == len) return 0;
    return sl_fail_errno(err, SL_E_IO, errno ? errno : EIO, "standard output", "write");
}

int sl_cmd_flush(struct sl_err *err)
{
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    return sl_fail_errno(err, SL_E_IO, errno ? errno : EIO, "standard output", "write");
}

static void on_signal(int sig)
{
    if (sl_interrupted()) _exit(128 + sig); /* asked twice: the first was not heard */
    sl_interrupt();
}

void sl_cmd_hold_standard_files(void)
{
    /* Opened the wrong way round, so that reading 0 or writing 1 still fails as a closed one does. */
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0)
            return;
}

void sl_cmd_catch_signals(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = on_signal;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sa.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &sa, NULL);
}
