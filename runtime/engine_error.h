/* Between the two error structs: sl_err inside, sluice_error at the public border. */
#ifndef SL_RUNTIME_ENGINE_ERROR_H
#define SL_RUNTIME_ENGINE_ERROR_H

#include "base/err.h"
#include "runtime/sluice.h"

/* Copies an internal error to the public one (may be NULL) and returns rc. */
int sl_engine_give(sluice_error *out, const struct sl_err *err, int rc);

/* Prints a public error as "sluice: LINE" on stderr and returns the exit status. */
int sl_engine_fail(const sluice_error *e);

#endif
