/* Records counted for both ways (see sweep_plan.h). */
#include "offload/sweep_plan.h"

#include "base/size.h"
#include "offload/plan_work.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t parts(uint64_t n, uint64_t each)
{
    return (n + each - 1) / each;
}

/* Records that a chunk of n tokens asks for, choice uniform: the most that it needs on average. */
static double distinct(const struct sl_sweep_in *in, uint64_t n)
{
    return in->n_moe * sl_distinct_experts(in->n_experts, in->top_k, (double)n);
}

static uint64_t short_chunk(const struct sl_sweep_in *in)
{
    const uint64_t n = smaller(in->panel, in->most);
    return n ? n : 1;
}

uint64_t sl_sweep_longest(const struct sl_sweep_in *in)
{
    const uint64_t least = short_chunk(in);
    const uint64_t ring = (uint64_t)in->top_k + 1;
    uint64_t bytes;
    if (in->n_slots >= in->n_records || in->n_slots <= ring || !in->token_bytes ||
        !sl_mul_u64(in->n_slots - ring, in->slot_bytes, &bytes) || bytes <= in->fixed_bytes)
        return least;
    const uint64_t n = smaller(in->most, (bytes - in->fixed_bytes) / in->token_bytes);
    return n > least ? n : least;
}

void sl_sweep_choose(const struct sl_sweep_in *in, uint64_t n_tokens, struct sl_sweep_choice *out)
{
    const uint64_t least = short_chunk(in);
    const uint64_t longest = sl_sweep_longest(in);
    *out = (struct sl_sweep_choice){.chunk = least, .n_chunks = parts(n_tokens, least)};
    if (n_tokens <= least || longest <= least) return;
    const uint64_t n_chunks = parts(n_tokens, longest);
    const uint64_t chunk = parts(n_tokens, n_chunks);
    const uint64_t bytes = in->fixed_bytes + chunk * in->token_bytes;
    const double once = distinct(in, least) - (double)in->n_slots;
    const double keep = once > 0 ? (double)out->n_chunks * once : 0;
    const double lend = (double)n_chunks * distinct(in, chunk) +
                        (double)parts(bytes, in->slot_bytes ? in->slot_bytes : 1);
    if (chunk <= least || lend >= keep) return;
    *out = (struct sl_sweep_choice){chunk, n_chunks, bytes};
}
