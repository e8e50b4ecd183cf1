/* Runs a program at a terminal of its own and plays a script to it.
 *
 *     tool_pty SCRIPT PROGRAM ARGS...
 *
 * Lines of the script: `expect TEXT` waits until the program has printed TEXT (after what the expect
 * before it found), `send TEXT` types it. \n \r \t \e \\ and \xHH are understood. Afterwards the rest of
 * the output is read. Everything the program printed goes to stdout, its exit status becomes ours; 99 when
 * it ended before an expected text came. There are no times in here: a program that hangs hangs us. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static char *seen;
static size_t n_seen, n_matched;

static void die(const char *what)
{
    fprintf(stderr, "tool_pty: %s: %s\n", what, strerror(errno));
    exit(98);
}

static size_t unescape(char *s)
{
    char *to = s;
    for (const char *c = s; *c; c++) {
        if (*c != '\\' || !c[1]) {
            *to++ = *c;
            continue;
        }
        c++;
        if (*c == 'x' && c[1] && c[2]) {
            const char hex[3] = {c[1], c[2], 0};
            *to++ = (char)strtol(hex, NULL, 16);
            c += 2;
        } else {
            *to++ = *c == 'n'   ? '\n'
                    : *c == 'r' ? '\r'
                    : *c == 't' ? '\t'
                    : *c == 'e' ? '\x1b'
                                : *c;
        }
    }
    *to = 0;
    return (size_t)(to - s);
}

/* false: the program has ended (a terminal without its other end gives EIO). */
static int read_some(int fd)
{
    char buf[4096];
    const ssize_t n = read(fd, buf, sizeof buf);
    if (n < 0 && errno == EINTR) return 1;
    if (n <= 0) return 0;
    char *more = realloc(seen, n_seen + (size_t)n);
    if (!more) die("realloc");
    seen = more;
    memcpy(seen + n_seen, buf, (size_t)n);
    n_seen += (size_t)n;
    return 1;
}

static int expect(int fd, const char *text, size_t n)
{
    for (;;) {
        const char *at =
            n_seen > n_matched ? memmem(seen + n_matched, n_seen - n_matched, text, n) : NULL;
        if (at) {
            n_matched = (size_t)(at - seen) + n;
            return 1;
        }
        if (!read_some(fd)) return 0;
    }
}

static int play(int fd, FILE *script)
{
    char line[8192];
    while (fgets(line, sizeof line, script)) {
        line[strcspn(line, "\n")] = 0;
        char *arg = strchr(line, ' ');
        if (!arg) continue;
        *arg++ = 0;
        size_t n = unescape(arg);
        if (strcmp(line, "expect") == 0) {
            if (expect(fd, arg, n)) continue;
            fprintf(stderr, "tool_pty: ended before '%s'\n", arg);
            return 0;
        }
        for (size_t at = 0; at < n;) {
            const ssize_t done = write(fd, arg + at, n - at);
            if (done < 0 && errno != EINTR) break;
            if (done > 0) at += (size_t)done;
        }
    }
    return 1;
}

static void run_program(int master, char **argv)
{
    const struct winsize size = {.ws_row = 24, .ws_col = 100};
    const char *name = ptsname(master);
    if (!name || setsid() < 0) die("terminal");
    const int fd = open(name, O_RDWR);
    if (fd < 0 || ioctl(fd, TIOCSCTTY, 0) || ioctl(fd, TIOCSWINSZ, &size)) die("terminal");
    dup2(fd, 0);
    dup2(fd, 1);
    dup2(fd, 2);
    if (fd > 2) close(fd);
    close(master);
    signal(SIGINT, SIG_DFL);
    setenv("TERM", "xterm", 1);
    execv(argv[0], argv);
    die(argv[0]);
}

int main(int argc, char **argv)
{
    if (argc < 3) return 97;
    FILE *script = fopen(argv[1], "r");
    const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (!script || master < 0 || grantpt(master) || unlockpt(master)) die("open");
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (!child) run_program(master, argv + 2);
    const int played = play(master, script);
    fclose(script);
    while (read_some(master)) continue;
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    fwrite(seen, 1, n_seen, stdout);
    if (!played) return 99;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
