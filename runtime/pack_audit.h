/* What an open pack lacks or has too much of, as a whole: questions that the reader of one file cannot
 * ask. The reader (offload/) knows layouts; which tensors a model needs is known here.
 *
 * Faults make a pack unusable; notes name things that merely look odd. Each is one line. */
#ifndef SL_RUNTIME_PACK_AUDIT_H
#define SL_RUNTIME_PACK_AUDIT_H

#include "offload/pack.h"

struct sl_audit_sink {
    void (*fault)(void *ctx, const char *line);
    void (*note)(void *ctx, const char *line);
    void *ctx;
};

/* Every tensor that the config implies is there, in a shape the model accepts, and of a format that
 * its kind may have (fault); tensors that no config implies (note). */
int sl_audit_tensors(const struct sl_pack *p, const struct sl_audit_sink *sink, struct sl_err *err);

/* Files in the pack's folder and in its experts/ that the manifest does not name (note). */
void sl_audit_files(const struct sl_pack *p, const struct sl_audit_sink *sink);

/* tokenizer/ opens with the vocabulary of the config (fault), or is not there at all (note: only token
 * ids can be fed then). */
int sl_audit_tokenizer(const struct sl_pack *p, const struct sl_audit_sink *sink,
                       struct sl_err *err);

/* pack.json and tokenizer/ are what SHA256SUMS says (fault); there is no such file (note). */
int sl_audit_sums(const struct sl_pack *p, const struct sl_audit_sink *sink, struct sl_err *err);

/* Look-ahead maps, if the pack has them, read whole (fault). */
int sl_audit_maps(const struct sl_pack *p, const struct sl_audit_sink *sink, struct sl_err *err);

#endif
