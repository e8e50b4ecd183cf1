/* Bytes, hits and waiting with and without look-ahead, on a drive made slow on purpose.
 *
 *   tool_lookahead_stall PACK IDS.u16 SLOTS DELAY_US [tokens]
 *
 * Decode, one token at a time, reads by pread with a delay each. Arms take turns, three rounds; every arm
 * starts with empty slots. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/file.h"
#include "runtime/lookahead.h"
#include "tests/golden/golden_engine.h"

static int delay_us;

static ssize_t slow_pread(void *ctx, int fd, void *buf, size_t n, off_t off)
{
    (void)ctx;
    usleep((useconds_t)delay_us);
    return pread(fd, buf, n, off);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void arm(const char *pack, const int32_t *ids, int n, int slots, int named)
{
    static const struct sl_read_ops ops = {.pread = slow_pread};
    struct golden_engine e;
    struct sl_arena arena;
    struct sl_lookahead *la = NULL;
    struct sl_store_stats st;
    const struct golden_opts o = {
        .threads = 2, .chunk = 1, .slots = slots, .io = SL_IO_PREAD, .ops = &ops};
    golden_open(&e, pack, &o);
    if (sl_arena_init(&arena, 1 << 20, "look-ahead", NULL)) exit(1);
    if (named && sl_lookahead_open(&la, e.model, NULL, named, &arena, NULL)) exit(1);
    sl_graph_look_ahead(e.graph, la);
    const double start = seconds();
    golden_feed(&e, ids, n, NULL);
    const double all = seconds() - start;
    sl_store_get_stats(e.store, &st);
    printf("| %d | %.1f | %llu | %llu | %llu | %llu | %llu | %.1f | %.2f | %.2f |\n", named,
           (double)st.bytes_read / 1e6, (unsigned long long)st.hits,
           (unsigned long long)st.prefetch_used, (unsigned long long)st.misses,
           (unsigned long long)st.prefetch_wasted, (unsigned long long)st.prefetch_dropped,
           la && la->stats.named ? 100.0 * (double)la->stats.right / (double)la->stats.named : 0.0,
           st.stall_seconds, all);
    fflush(stdout);
    golden_close(&e);
    sl_arena_free(&arena);
}

int main(int argc, char **argv)
{
    static const int named[] = {0, 3, 6};
    char *bytes;
    size_t len;
    if (argc < 5) {
        fprintf(stderr, "usage: tool_lookahead_stall PACK IDS.u16 SLOTS DELAY_US [tokens]\n");
        return 2;
    }
    if (sl_read_file(&bytes, &len, argv[2], 1 << 28, SL_E_SOURCE, NULL)) return 1;
    int n = argc > 5 ? atoi(argv[5]) : 64;
    if ((size_t)n > len / 2) n = (int)(len / 2);
    if (n > 512) n = 512;
    int32_t ids[512];
    for (int i = 0; i < n; i++) ids[i] = sl_le16(bytes + 2 * i);
    free(bytes);
    delay_us = atoi(argv[4]);
    printf("| named | MB read | hits | brought ahead | misses | wasted | dropped | right %% | "
           "waiting s | "
           "all s |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
            arm(argv[1], ids, n, atoi(argv[3]), named[i]);
    return 0;
}
