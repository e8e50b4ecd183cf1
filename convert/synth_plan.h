/* The plan of a synthetic pack: a plan as convert makes it, in which some tensors and banks are others. */
#ifndef SL_CONVERT_SYNTH_PLAN_H
#define SL_CONVERT_SYNTH_PLAN_H

#include "convert/plan_pack.h"
#include "convert/synth.h"

struct sl_synth_plan {
    struct sl_input in;   /* config and source object alone; there is nothing to read */
    struct sl_plan *plan; /* all layers' tensors and banks, shared ones repeated */
    char (*names)[128];   /* [n_tensors] */
    int *same;       /* [n_tensors] the tensor whose bytes these are; own index when distinct */
    int *layer_same; /* [n_layers] the layer whose trunk this is */
    int *bank_same;  /* [n_banks] the bank whose file this is */
    int n_trunk_layers, n_banks; /* distinct */
    uint64_t bank_bytes;         /* of distinct banks */
    uint64_t unshared_bytes;
};

int sl_synth_plan_open(struct sl_synth_plan *s, const char *dst, const struct sl_synth_opts *o,
                       struct sl_err *err);
void sl_synth_plan_close(struct sl_synth_plan *s); /* after a failure too */

#endif
