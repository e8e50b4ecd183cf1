/* Reads that go around the page cache, where the file system lets them.
 *
 * Expert records are read once and kept in our own slots; a second copy in the page cache would eat
 * the memory that the slots could use. So a file is opened a second time with O_DIRECT. Some file
 * systems refuse that, some accept it and still use the cache: one page is read twice, and the kernel's
 * own accounting must count both reads as fetched from the drive. Otherwise the plain descriptor is
 * used and what was read is dropped from the cache afterwards. */
#ifndef SL_OFFLOAD_DIRECT_FILE_H
#define SL_OFFLOAD_DIRECT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* How bytes come from a descriptor; tests put errors, short counts and delays here. Any thread. */
struct sl_read_ops {
    ssize_t (*pread)(void *ctx, int fd, void *buf, size_t n, off_t off); /* as pread(2) */
    void *ctx;
    /* The same for io_uring: a read has ended with `got` (bytes or -errno); returns what is to be
     * believed, or SL_READ_LATER: the read counts as still under way, and is asked about again soon
     * (`again`). From one thread. NULL: believed as it is. */
    ssize_t (*landed)(void *ctx, void *buf, size_t n, off_t off, ssize_t got, bool again);
};
#define SL_READ_LATER ((ssize_t)-100000)

struct sl_direct_file {
    int plain_fd;  /* the caller's, never closed here */
    int direct_fd; /* -1 where O_DIRECT is not in effect */
    const struct sl_read_ops *ops;
};

/* path is the file behind plain_fd (another one under that name is noticed and not used). ops NULL:
 * pread(2). Never fails: without O_DIRECT the plain descriptor serves. */
void sl_direct_open(struct sl_direct_file *f, const char *path, int plain_fd,
                    const struct sl_read_ops *ops);
void sl_direct_close(struct sl_direct_file *f);
static inline bool sl_direct_in_effect(const struct sl_direct_file *f)
{
    return f->direct_fd >= 0;
}

/* Up to n bytes at off into buf. off and buf are multiples of 4096, and buf has room for n rounded up
 * to 4096. Returns the bytes found, fewer than n only at the end of the file, or -errno. Interrupted
 * and short reads go on. Safe from several threads at once. */
int64_t sl_direct_read(const struct sl_direct_file *f, void *buf, size_t n, uint64_t off);

#endif
