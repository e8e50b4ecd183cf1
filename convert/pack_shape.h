/* A pack that exists only as shapes: what planners price before anything is downloaded.
 *
 * The same inventory, layout and formats that the converter uses, without a file behind them: sizes of
 * trunk, records and banks are those of a pack that `convert` would write (for m4: of one in which no
 * matrix has to stay mxfp4). Only sizes and names may be used of it; there is nothing to read. */
#ifndef SL_CONVERT_PACK_SHAPE_H
#define SL_CONVERT_PACK_SHAPE_H

#include "offload/pack.h"

/* SL_E_ARG for a format that this build does not have in that place. Close with sl_pack_close(). */
int sl_pack_of_shape(struct sl_pack **out, const struct sl_config *c, enum sl_fmt experts,
                     enum sl_fmt trunk, struct sl_err *err);

#endif
