/* One process decodes for long: N tokens on a pack in sequences of CTX, sampled, with a line every STEP.
 *
 *     tool_long_run PACK N CTX STEP SLOTS_RAM_MB
 *
 * What must not drift: memory of the process, the share of experts found in memory, and the answer itself:
 * every sequence starts from the same ids and seed, so its tokens must have the same checksum each time. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/sluice.h"

static unsigned long rss_kb(void)
{
    char line[256];
    unsigned long kb = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %lu", &kb) == 1) break;
    if (f) fclose(f);
    return kb;
}

static int give_up(const sluice_error *e)
{
    fprintf(stderr, "tool_long_run: %s\n", e->text);
    return e->exit_status ? e->exit_status : 1;
}

struct watch {
    long done;
    unsigned long first_kb, most_kb;
    uint64_t hits, misses; /* at the line before */
};

static void print_line(struct watch *w, const sluice_session *s)
{
    sluice_stats st;
    unsigned long kb = rss_kb();
    sluice_get_stats(s, &st);
    uint64_t hits = st.expert_hits - w->hits;
    uint64_t misses = st.expert_misses - w->misses;
    printf("| %ld | %.1f | %.2f %% | %.0f |\n", w->done, (double)kb / 1024,
           100.0 * (double)hits / ((double)(hits + misses) + 1e-9),
           st.decode_seconds > 0 ? (double)st.decode_tokens / st.decode_seconds : 0.0);
    fflush(stdout);
    w->hits = st.expert_hits;
    w->misses = st.expert_misses;
    if (!w->first_kb) w->first_kb = kb;
    if (kb > w->most_kb) w->most_kb = kb;
}

int main(int argc, char **argv)
{
    sluice_error e = {0};
    sluice_pack *p = NULL;
    sluice_session *s = NULL;
    struct watch w = {0};
    uint32_t want = 0;
    int wrong = 0;
    if (argc != 6) {
        fprintf(stderr, "usage: tool_long_run PACK N CTX STEP RAM_MB\n");
        return 2;
    }
    long n = strtol(argv[2], NULL, 10);
    long ctx = strtol(argv[3], NULL, 10);
    long step = strtol(argv[4], NULL, 10);
    if (ctx < 2 || step < 1) return 2;
    sluice_options o = {.ctx = (uint64_t)ctx,
                        .threads = 1,
                        .ram_bytes = (uint64_t)strtol(argv[5], NULL, 10) * 1000000};
    if (sluice_pack_open(&p, argv[1], &o, &e) || sluice_session_open(&s, p, NULL, &e))
        return give_up(&e);
    printf("| tokens | memory, MiB | experts found in memory | tokens a second, mean "
           "|\n|---|---|---|---|\n");
    while (w.done < n) {
        const int32_t start[] = {1, 2, 3};
        sluice_sampling how = {.temperature = 1.0f, .top_p = 0.95f, .seed = 7, .ignore_eos = 1};
        uint32_t sum = 2166136261u;
        sluice_session_reset(s);
        if (sluice_feed(s, start, 3, &e)) return give_up(&e);
        for (long i = 3; i < ctx; i++) {
            int32_t id;
            if (sluice_next(s, &how, &id, &e) < 0) return give_up(&e);
            sum = (sum ^ (uint32_t)id) * 16777619u;
            if (++w.done % step == 0) print_line(&w, s);
        }
        if (!want) want = sum;
        wrong += sum != want;
        /* The context is full: one more is a clear error and spoils nothing. */
        int rc = sluice_feed(s, start, 1, &e);
        if (!rc || !e.text[0]) wrong++;
        if (w.done >= n) printf("\nbeyond the context: %s\n", e.text);
    }
    printf("memory after the first line %.1f MiB, at most %.1f MiB; %d sequences differ\n",
           (double)w.first_kb / 1024, (double)w.most_kb / 1024, wrong);
    if (w.most_kb > w.first_kb + 4096) wrong++;
    sluice_session_close(s);
    sluice_pack_close(p);
    return wrong != 0;
}
