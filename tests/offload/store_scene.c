/* See store_scene.h. */
#include "tests/offload/store_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

void ss_open(struct store_scene *c, const struct pm_spec *spec, uint64_t slots,
             struct sl_store_opts o)
{
    struct sl_err err = {0};
    pm_make(&c->m, spec);
    c->p = pm_open(&c->m);
    fr_init(&c->faults);
    o.slot_budget_bytes = slots * sl_store_slot_bytes(c->p);
    o.ops = &c->faults.ops;
    if (!o.evict) o.evict = "lru";
    if (sl_store_open(&c->s, c->p, &o, &err)) fail_msg("%s", err.text);
}

void ss_close(struct store_scene *c)
{
    sl_store_close(c->s);
    fr_free(&c->faults);
    sl_pack_close(c->p);
    pm_free(&c->m);
}

struct sl_store_stats ss_stats(const struct store_scene *c)
{
    struct sl_store_stats st;
    sl_store_get_stats(c->s, &st);
    return st;
}
