/* Folders of a conversion test: a room to work in, conversions into it, and whole-tree comparison.
 *
 * Helpers assert (cmocka). The room lies on a memory file system where there is one, since these tests
 * sync some ten thousand times; $TMPDIR decides first. */
#ifndef SL_TESTS_PACK_TREE_H
#define SL_TESTS_PACK_TREE_H

#include "convert/convert.h"

struct pt_room {
    char dir[200];
};
void pt_open(struct pt_room *r); /* also becomes $TMPDIR, so that checkpoint copies lie there */
void pt_close(struct pt_room *r);
const char *pt_path(const struct pt_room *r, const char *name); /* one of a few static buffers */

/* m4, bf16, one job. */
struct sl_convert_opts pt_opts(void);
void pt_convert(const char *src, const char *dst, const struct sl_convert_opts *o);

struct sl_pack;
struct sl_pack *pt_open_pack(const char *dir);

/* Same files with the same bytes; names the first that differs. */
void pt_expect_same(const char *a, const char *b);
bool pt_same(const char *a, const char *b, char *why, size_t n);
uint64_t pt_bytes(const char *dir); /* of all files below */
bool pt_exists(const char *path);
void pt_remove(const char *dir);

/* Shards, index and small files of a checkpoint into a new folder. */
void pt_copy_checkpoint(const char *src, const char *dst);
/* Changes bytes of a tensor in a checkpoint; at counts from the start of its data. */
void pt_poke(const char *ckpt, const char *tensor, uint64_t at, const void *bytes, size_t n);

#endif
