/* Queue of merges: numbers out in ascending order, whatever order they went in. */
#ifndef SL_RUNTIME_TOKENIZER_QUEUE_H
#define SL_RUNTIME_TOKENIZER_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_QUEUE_LANES 3
#define SL_QUEUE_NONE  UINT64_MAX /* no number that is queued */

struct sl_queue {
    struct sl_queue_lane {
        uint64_t *v; /* [lane_room], ascending from head to tail */
        size_t head, tail;
    } lane[SL_QUEUE_LANES];
    uint64_t *heap; /* [heap_room] */
    size_t n_heap, heap_room, lane_room;
    uint64_t front[SL_QUEUE_LANES + 1]; /* smallest of each lane and of the heap, NONE: empty */
};

/* Room for n numbers at one time; start from {0}. Empties the queue. False: no memory. */
bool sl_queue_reset(struct sl_queue *q, size_t n);
void sl_queue_free(struct sl_queue *q);

/* No more than n (of reset) at one time; x < SL_QUEUE_NONE. */
void sl_queue_push(struct sl_queue *q, uint64_t x);
/* The smallest, taken out; SL_QUEUE_NONE when empty. */
uint64_t sl_queue_pop(struct sl_queue *q);

#endif
