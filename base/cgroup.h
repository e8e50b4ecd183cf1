/* Control groups above this process: the folders in which the kernel keeps their limits.
 *
 * Limits hold along the whole path from the process's group to the root, so callers look at every folder
 * and take the smallest. root is "" for this machine, or a folder with proc/ and sys/ (tests). */
#ifndef SL_BASE_CGROUP_H
#define SL_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

/* Calls see for each folder, the group's own first, the mount last; dir is without root. What does not
 * exist is passed too: its files cannot be read. Nothing happens where there are no groups. */
void sl_cgroup_walk(const char *root, const char *controller,
                    void (*see)(void *ctx, const char *dir, bool v2), void *ctx);

/* First line of root/dir/name without its newline; false when it cannot be read. */
bool sl_cgroup_line(const char *root, const char *dir, const char *name, char *line, size_t n);

#endif
