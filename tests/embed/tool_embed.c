/* A host program: everything it knows of sluice is runtime/sluice.h.
 *
 *     tool_embed PACK TEXT N      prints N greedy tokens after TEXT, as bytes
 *
 * tests/cli/embed.sh builds it once more against the shared library alone, and compares its output with
 * that of `sluice run`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/sluice.h"

static int give_up(const sluice_error *e)
{
    fprintf(stderr, "tool_embed: %s\n", e->text);
    return e->exit_status;
}

static int continue_text(const sluice_pack *p, sluice_session *s, const char *text, long n,
                         sluice_error *e)
{
    int32_t *ids;
    size_t n_ids;
    int rc = sluice_encode(p, text, strlen(text), 0, &ids, &n_ids, e);
    if (rc) return rc;
    rc = sluice_feed(s, ids, n_ids, e);
    sluice_free(ids);
    for (long i = 0; i < n && !rc; i++) {
        int32_t id;
        size_t len;
        rc = sluice_next(s, NULL, &id, e); /* 1: the model has ended the text */
        if (rc) break;
        const char *bytes = sluice_token_bytes(p, id, &len);
        fwrite(bytes, 1, len, stdout);
    }
    return rc < 0 ? rc : 0;
}

int main(int argc, char **argv)
{
    sluice_pack *p = NULL;
    sluice_session *s = NULL;
    sluice_error e = {0};
    sluice_options o = {.ctx = 512};
    if (argc != 4) {
        fprintf(stderr, "usage: tool_embed PACK TEXT N\n");
        return 2;
    }
    int rc = sluice_pack_open(&p, argv[1], &o, &e);
    if (!rc) rc = sluice_session_open(&s, p, NULL, &e);
    if (!rc) rc = continue_text(p, s, argv[2], strtol(argv[3], NULL, 10), &e);
    sluice_session_close(s);
    sluice_pack_close(p);
    return rc ? give_up(&e) : 0;
}
