/* A pack's own bank is the honest thing to read: same file system, same files, nothing to write. */
#include "runtime/probe_path.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "offload/pack.h"

/* Smaller banks would be served from the drive's own cache. */
#define MIN_BANK ((uint64_t)256 << 20)

int sl_probe_path_find(struct sl_probe_path *out, const char *path, uint64_t record_bytes,
                       struct sl_err *err)
{
    char manifest[SL_PATH_MAX];
    memset(out, 0, sizeof *out);
    out->record_bytes = record_bytes ? record_bytes : SL_PROBE_RECORD;
    out->writes = true;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && strlen(path) < sizeof out->path) {
        memcpy(out->path, path, strlen(path) + 1); /* a file is read as it is */
        out->writes = false;
        return 0;
    }
    if (!sl_is_dir(path)) return sl_fail(err, SL_E_ARG, NULL, "--path", "%s is no folder", path);
    if (strlen(path) >= sizeof out->path || !sl_path_join(manifest, path, "pack.json"))
        return sl_fail(err, SL_E_ARG, NULL, "--path", "too long");
    memcpy(out->path, path, strlen(path) + 1);
    if (access(manifest, F_OK)) return 0;
    struct sl_pack *p;
    int rc = sl_pack_open(&p, path, NULL, 0, err);
    if (rc) return rc;
    if (!record_bytes && p->slot_bytes) out->record_bytes = p->slot_bytes;
    const struct sl_bank *best = NULL;
    for (int i = 0; i < p->n_banks; i++)
        if (!best || p->banks[i].file_bytes > best->file_bytes) best = &p->banks[i];
    if (best && best->file_bytes >= MIN_BANK && best->file_bytes / 16 >= out->record_bytes &&
        strlen(best->path) < sizeof out->path) {
        memcpy(out->path, best->path, strlen(best->path) + 1);
        out->writes = false;
    }
    sl_pack_close(p);
    return 0;
}
