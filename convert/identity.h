/* The "source" object of pack.json: what a conversion was made from.
 *
 *   {"sha256":..., "prefix":..., "payload_bytes":..., ["synthetic":true,]
 *    "files":[{"name","bytes","header_bytes"}...]} */
#ifndef SL_CONVERT_IDENTITY_H
#define SL_CONVERT_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

struct sl_identity_file {
    const char *name;
    uint64_t bytes, header_bytes;
};

struct sl_identity {
    const char *sha256, *prefix;
    uint64_t payload_bytes;
    bool synthetic;
    int n_files;
    struct sl_identity_file (*file)(const void *src, int i); /* i < n_files */
    const void *src;
};

/* On one line, malloc'ed; NULL: no memory. */
char *sl_identity_render(const struct sl_identity *id);

#endif
