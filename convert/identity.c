/* See identity.h. The order of the keys is part of a pack's bytes. */
#include "convert/identity.h"

#include <cjson/cJSON.h>

char *sl_identity_render(const struct sl_identity *id)
{
    char *text = NULL;
    cJSON *o = cJSON_CreateObject();
    bool ok = o && cJSON_AddStringToObject(o, "sha256", id->sha256) &&
              cJSON_AddStringToObject(o, "prefix", id->prefix) &&
              cJSON_AddNumberToObject(o, "payload_bytes", (double)id->payload_bytes);
    if (id->synthetic) ok = ok && cJSON_AddBoolToObject(o, "synthetic", true);
    cJSON *files = ok ? cJSON_AddArrayToObject(o, "files") : NULL;
    for (int i = 0; files && i < id->n_files; i++) {
        const struct sl_identity_file file = id->file(id->src, i);
        cJSON *f = cJSON_CreateObject();
        ok = cJSON_AddItemToArray(files, f) && cJSON_AddStringToObject(f, "name", file.name) &&
             cJSON_AddNumberToObject(f, "bytes", (double)file.bytes) &&
             cJSON_AddNumberToObject(f, "header_bytes", (double)file.header_bytes) && ok;
    }
    if (files && ok) text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}
