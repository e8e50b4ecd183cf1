/* A made pack with a store over it and a reader that can fail: what most tests of the store begin with.
 * Helpers assert (cmocka). */
#ifndef SL_TESTS_STORE_SCENE_H
#define SL_TESTS_STORE_SCENE_H

#include "offload/store.h"
#include "tests/offload/faulty_reader.h"
#include "tests/offload/pack_maker.h"

struct store_scene {
    struct pm_pack m;
    struct sl_pack *p;
    struct sl_store *s;
    struct faulty_reader faults;
};

/* slots 0: all records; o.ops is the scene's reader, o.evict NULL: "lru", whose order is easy to tell. */
void ss_open(struct store_scene *c, const struct pm_spec *spec, uint64_t slots,
             struct sl_store_opts o);
void ss_close(struct store_scene *c);
struct sl_store_stats ss_stats(const struct store_scene *c);

#endif
