/* Files: whole reads and writes, atomic replacement, and the crc and sha256 wrappers.
 *
 * Everything we write goes to a temporary name in the same folder, is synced and renamed, and the
 * folder is synced after it: a reader sees the old file or the whole new one. */
#ifndef SL_BASE_FILE_H
#define SL_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/err.h"

#define SL_PATH_MAX 4096

/* Joins into buf[SL_PATH_MAX]; false when it does not fit. */
bool sl_path_join(char *buf, const char *dir, const char *name);
bool sl_is_dir(const char *path);
/* mkdir -p. SL_E_IO. */
int sl_make_dirs(const char *path, struct sl_err *err);
/* rm -r of a folder that we made; symbolic links are removed, not followed. Best effort. */
void sl_remove_tree(const char *path);

/* Exactly n bytes at off; retries EINTR and short reads; end of file before n is an error of `code`
 * that says how much was there. EIO is SL_E_IO whatever `code` is. */
int sl_pread_all(int fd, void *buf, size_t n, uint64_t off, const char *file, int code,
                 struct sl_err *err);
int sl_pwrite_all(int fd, const void *buf, size_t n, uint64_t off, const char *file,
                  struct sl_err *err);

/* Whole file into malloc'ed memory (one NUL appended, not counted). Larger than max_bytes: error of
 * `code`. Missing file too. */
int sl_read_file(char **out, size_t *len, const char *path, uint64_t max_bytes, int code,
                 struct sl_err *err);
/* Temporary name, write, fsync, rename, fsync of the folder. Nothing is left behind on failure. */
int sl_write_file(const char *path, const void *data, size_t len, struct sl_err *err);

/* Steps of the same for writers of large files: tmp is "PATH.tmp". A PATH that is there and is no
 * regular file (a folder, a device) is refused by open, before any work. publish = fsync, close,
 * rename, folder sync; on failure the temporary is removed. */
int sl_tmp_open(int *fd, const char *path, bool keep_existing, struct sl_err *err);
int sl_tmp_publish(int fd, const char *path, struct sl_err *err);
void sl_tmp_discard(int fd, const char *path);
int sl_sync_dir(const char *path, struct sl_err *err); /* path is the folder itself */

int sl_file_size(const char *path, uint64_t *bytes, int code, struct sl_err *err);
/* Free bytes for an ordinary user on the file system that holds path (or its nearest existing parent). */
int sl_free_space(const char *path, uint64_t *bytes, struct sl_err *err);

/* crc32 of zlib (polynomial 0xEDB88320), start with 0; any length. */
uint32_t sl_crc32(uint32_t crc, const void *data, size_t len);
uint32_t sl_crc32_combine(uint32_t a, uint32_t b, uint64_t len_b);

/* sha256 in lower-case hex, 64 characters and NUL. */
struct sl_sha256;
struct sl_sha256 *sl_sha256_open(void); /* NULL: no memory */
void sl_sha256_add(struct sl_sha256 *s, const void *data, size_t len);
void sl_sha256_close(struct sl_sha256 *s, char hex[65]); /* hex may be NULL; of NULL s: "" */

/* Little-endian loads and stores at any alignment. */
static inline uint16_t sl_le16(const void *p)
{
    const unsigned char *b = p;
    return (uint16_t)(b[0] | b[1] << 8);
}
static inline uint32_t sl_le32(const void *p)
{
    const unsigned char *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static inline uint64_t sl_le64(const void *p)
{
    return (uint64_t)sl_le32(p) | (uint64_t)sl_le32((const unsigned char *)p + 4) << 32;
}

#endif
