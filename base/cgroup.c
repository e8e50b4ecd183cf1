/* Walks /proc/self/cgroup and the mounts under /sys/fs/cgroup.
 *
 *   v2  "0::/a/b"            /sys/fs/cgroup, or /sys/fs/cgroup/unified beside v1
 *   v1  "4:cpu,cpuacct:/a"   /sys/fs/cgroup/cpu and /sys/fs/cgroup/cpu,cpuacct: names differ by system
 *
 * Inside a container the named path may not exist under the mount (v1 names the host's path while the
 * mount shows the container's own group as root): the mount itself is always passed. */
#define _GNU_SOURCE
#include "base/cgroup.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

struct walk {
    void (*see)(void *ctx, const char *dir, bool v2);
    void *ctx;
};

bool sl_cgroup_line(const char *root, const char *dir, const char *name, char *line, size_t n)
{
    char path[SL_PATH_MAX];
    int len = snprintf(path, sizeof path, "%s%s/%s", root, dir, name);
    if (len < 0 || (size_t)len >= sizeof path) return false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(line, (int)n, f) != NULL;
    fclose(f);
    if (ok) line[strcspn(line, "\n")] = '\0';
    return ok;
}

static void up_tree(const struct walk *w, const char *mount, const char *group, bool v2)
{
    char dir[SL_PATH_MAX];
    /* "/../x" is how a group outside the namespace shows: it is not under our mount. */
    if (strstr(group, "/..")) group = "";
    int n = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof dir) (void)snprintf(dir, sizeof dir, "%s", mount);
    const size_t keep = strlen(mount);
    for (;;) {
        w->see(w->ctx, dir, v2);
        char *slash = strrchr(dir + keep, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* "cpu,memory" holds "memory". */
static bool has_word(const char *list, const char *word)
{
    const size_t want = strlen(word);
    for (;;) {
        const size_t n = strcspn(list, ",");
        if (n == want && !memcmp(list, word, n)) return true;
        if (!list[n]) return false;
        list += n + 1;
    }
}

static void v1_mount(const struct walk *w, const char *name, const char *group)
{
    char mount[SL_PATH_MAX];
    int n = snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", name);
    if (n > 0 && (size_t)n < sizeof mount) up_tree(w, mount, group, false);
}

static void one_line(const struct walk *w, const char *controller, char *line)
{
    char *list = strchr(line, ':');
    char *group = list ? strchr(list + 1, ':') : NULL;
    if (!group) return;
    list++;
    *group++ = '\0';
    if (!*list) {
        up_tree(w, "/sys/fs/cgroup", group, true);
        up_tree(w, "/sys/fs/cgroup/unified", group, true);
    } else if (has_word(list, controller)) {
        v1_mount(w, controller, group);
        if (strcmp(list, controller) != 0) v1_mount(w, list, group);
    }
}

void sl_cgroup_walk(const char *root, const char *controller,
                    void (*see)(void *ctx, const char *dir, bool v2), void *ctx)
{
    const struct walk w = {see, ctx};
    char line[SL_PATH_MAX];
    int n = snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *f = n > 0 && (size_t)n < sizeof line ? fopen(line, "re") : NULL;
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        one_line(&w, controller, line);
    }
    fclose(f);
}
