/* O_DIRECT with a proof that it is one, and a plain path behind it.
 *
 * The proof costs two 4 KiB reads a file. An alignment test on our own buffers proves nothing: reads
 * that quietly went through the cache have passed for direct ones in other engines. */
#define _GNU_SOURCE
#include "offload/direct_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/size.h"
#include "offload/pack_layout.h"

/* Below Linux' own limit of 2 GiB less a page a call, and a multiple of a page. */
#define STEP_BYTES ((size_t)1 << 30)

static ssize_t plain_pread(void *ctx, int fd, void *buf, size_t n, off_t off)
{
    (void)ctx;
    return pread(fd, buf, n, off);
}

static const struct sl_read_ops plain_ops = {plain_pread, NULL, NULL};

/* Bytes that this thread had fetched from storage so far; false where the kernel does not say. */
static bool fetched_bytes(uint64_t *bytes)
{
    FILE *f = fopen("/proc/thread-self/io", "re");
    if (!f) return false;
    char line[128];
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        unsigned long long n;
        found = sscanf(line, "read_bytes: %llu", &n) == 1;
        if (found) *bytes = n;
    }
    fclose(f);
    return found;
}

/* A second direct read of the same page must reach the drive too; a cached one would not. */
static bool is_really_direct(int fd)
{
    _Alignas(4096) unsigned char page[SL_PAGE];
    uint64_t before = 0;
    uint64_t after = 0;
    if (pread(fd, page, sizeof page, 0) <= 0) return false;
    bool counted = fetched_bytes(&before);
    if (pread(fd, page, sizeof page, 0) <= 0) return false;
    if (!counted || !fetched_bytes(&after)) return true; /* no accounting here: believe the reads */
    return after > before;
}

void sl_direct_open(struct sl_direct_file *f, const char *path, int plain_fd,
                    const struct sl_read_ops *ops)
{
    f->plain_fd = plain_fd;
    f->ops = ops ? ops : &plain_ops;
    f->direct_fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (f->direct_fd < 0) return;
    struct stat a;
    struct stat b;
    bool same = !fstat(plain_fd, &a) && !fstat(f->direct_fd, &b) && a.st_dev == b.st_dev &&
                a.st_ino == b.st_ino;
    if (same && is_really_direct(f->direct_fd)) return;
    close(f->direct_fd);
    f->direct_fd = -1;
}

void sl_direct_close(struct sl_direct_file *f)
{
    if (f->direct_fd >= 0) close(f->direct_fd);
    f->direct_fd = -1;
}

static size_t step(size_t n)
{
    return n < STEP_BYTES ? n : STEP_BYTES;
}

/* Direct reads move whole pages. Stops early, without an error, where they cannot go on. */
static int64_t read_direct(const struct sl_direct_file *f, unsigned char *buf, size_t n,
                           uint64_t off, bool *end)
{
    size_t done = 0;
    while (done < n) {
        size_t want = step((size_t)sl_align_up(n - done, SL_PAGE));
        ssize_t got =
            f->ops->pread(f->ops->ctx, f->direct_fd, buf + done, want, (off_t)(off + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EINVAL) break; /* stricter alignment than a page */
        if (got < 0) return -errno;
        if (!got) {
            *end = true;
            break;
        }
        done += (size_t)got;
        if (done < n && done % SL_PAGE) {
            done -= done % SL_PAGE; /* the plain path continues at a byte; read the page again */
            break;
        }
    }
    return (int64_t)done;
}

static int64_t read_plain(const struct sl_direct_file *f, unsigned char *buf, size_t n,
                          uint64_t off)
{
    size_t done = 0;
    int e = 0;
    while (done < n && !e) {
        ssize_t got = f->ops->pread(f->ops->ctx, f->plain_fd, buf + done, step(n - done),
                                    (off_t)(off + done));
        if (got < 0 && errno == EINTR) continue;
        if (!got) break;
        if (got < 0)
            e = errno;
        else
            done += (size_t)got;
    }
    (void)posix_fadvise(f->plain_fd, (off_t)off, (off_t)n, POSIX_FADV_DONTNEED);
    return e ? -e : (int64_t)done;
}

int64_t sl_direct_read(const struct sl_direct_file *f, void *buf, size_t n, uint64_t off)
{
    if (off > INT64_MAX || n > INT64_MAX - off) return -EOVERFLOW;
    int64_t done = 0;
    bool end = false;
    if (f->direct_fd >= 0) {
        done = read_direct(f, buf, n, off, &end);
        if (done < 0) return done;
    }
    if ((size_t)done < n && !end) {
        int64_t rest =
            read_plain(f, (unsigned char *)buf + done, n - (size_t)done, off + (uint64_t)done);
        if (rest < 0) return rest;
        done += rest;
    }
    return (size_t)done < n ? done : (int64_t)n;
}
