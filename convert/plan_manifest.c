/* pack.json: one line a tensor and a bank, so that a person can read and diff it.
 *
 * Checksums are strings of eight digits and every other value is known before anything is written, so
 * the text has its final length from the start: a dry run is exact to the byte. Nothing here depends
 * on time, host, number of jobs or path of the source. */
#define _GNU_SOURCE
#include "convert/calib_bank.h"
#include "convert/plan_pack.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/version.h"
#include "convert/json_put.h"

static void put_tensors(FILE *f, const char *key, const struct sl_plan_file *file)
{
    fprintf(f, "\"%s\":{", key);
    for (int i = 0; i < file->n_tensors; i++) {
        const struct sl_plan_tensor *t = &file->tensors[i];
        fputs(i ? ",\n" : "\n", f);
        sl_json_put_string(f, t->src.name);
        fprintf(f, ":{\"fmt\":\"%s\",\"shape\":[", sl_fmt_name(t->fmt));
        for (int d = 0; d < t->src.n_dims; d++)
            fprintf(f, "%s%" PRId64, d ? "," : "", t->src.shape[d]);
        fprintf(f, "],\"offset\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"crc32\":\"%08" PRIx32 "\"}",
                t->offset, t->bytes, t->crc32);
    }
    fputs("},\n", f);
}

static void put_range(FILE *f, const struct sl_plan_range *r)
{
    fprintf(f, "{\"offset\":%" PRIu64 ",\"bytes\":%" PRIu64 "}", r->offset, r->bytes);
}

static void put_all(FILE *f, const struct sl_plan *p, const char *config)
{
    int n_layers = p->in->cfg.n_layers;
    fprintf(f, "{\"format\":\"sluice-pack\",\"version\":%d,\"tool\":\"%s\",\n", SL_PACK_VERSION,
            SL_VERSION);
    fprintf(f, "\"source\":%s,\n\"config\":%s,\n", p->in->source_json, config);
    fprintf(f,
            "\"experts\":\"%s\",\"trunk\":\"%s\",\"slot_bytes\":%" PRIu32
            ",\"trunk_bytes\":%" PRIu64 ",\"vision_bytes\":%" PRIu64 ",\n",
            sl_fmt_name(p->experts), sl_fmt_name(p->trunk_fmt), p->slot_bytes, p->trunk.bytes,
            p->vision.bytes);
    if (p->experts == SL_FMT_MIX) fprintf(f, "\"mix\":%g,\n", p->mix_bits);
    if (p->calib) fprintf(f, "\"calib\":\"%s\",\n", sl_calib_file_sha256(p->calib));
    if (p->live) fprintf(f, "\"calib\":\"%s\",\n", p->live_price.identity);
    put_tensors(f, "tensors", &p->trunk);
    put_tensors(f, "vision", &p->vision);
    fputs("\"layers\":[", f);
    for (int l = 0; l < n_layers; l++) {
        fputs(l ? ",\n" : "\n", f);
        put_range(f, &p->layers[l]);
    }
    fputs("],\n\"globals\":", f);
    put_range(f, &p->globals);
    fputs(",\n\"banks\":[", f);
    for (int l = 0; l < n_layers; l++) {
        fputs(l ? ",\n" : "\n", f);
        if (p->bank_of[l] < 0) {
            fputs("null", f);
            continue;
        }
        const struct sl_plan_bank *b = &p->banks[p->bank_of[l]];
        fputs("{\"dir\":", f);
        sl_json_put_string(f, b->dir);
        fputs(",\"file\":", f);
        sl_json_put_string(f, strrchr(b->path, '/') + 1);
        putc('}', f);
    }
    fputs("]}\n", f);
}

int sl_plan_manifest(struct sl_plan *p, const char **text, size_t *len, struct sl_err *err)
{
    cJSON *tree = sl_config_to_json(&p->in->cfg);
    char *config = tree ? cJSON_PrintUnformatted(tree) : NULL;
    FILE *f = NULL;
    int bad = 1;

    free(p->manifest);
    p->manifest = NULL;
    *len = 0;
    if (config) f = open_memstream(&p->manifest, len);
    if (f) {
        put_all(f, p, config);
        bad = ferror(f);
        bad |= fclose(f);
    }
    cJSON_free(config);
    cJSON_Delete(tree);
    if (bad) return sl_fail(err, SL_E_NOMEM, p->dst, "pack.json", "out of memory");
    *text = p->manifest;
    return 0;
}
