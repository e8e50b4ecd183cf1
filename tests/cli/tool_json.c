/* tool_json FILE [KEY...]: checks that FILE is one JSON value and prints the member that the keys lead
 * to (numbers pick array items): strings raw, arrays of numbers comma-separated, the rest as JSON.
 * Exit 1 for invalid JSON, 2 for a missing member. For scripts; no other JSON tool is assumed. */
#include <stdio.h>
#include <stdlib.h>
#include "base/json.h"

static void print(const cJSON *v)
{
    if (cJSON_IsString(v)) {
        printf("%s\n", v->valuestring);
    } else if (cJSON_IsArray(v)) {
        const cJSON *item;
        const char *sep = "";
        cJSON_ArrayForEach(item, v)
        {
            printf("%s%.17g", sep, item->valuedouble);
            sep = ",";
        }
        printf("\n");
    } else {
        char *text = cJSON_PrintUnformatted(v);
        printf("%s\n", text ? text : "?");
        cJSON_free(text);
    }
}

int main(int argc, char **argv)
{
    struct sl_err err = {0};
    cJSON *root;
    if (argc < 2) return 2;
    if (sl_json_read(&root, argv[1], 1u << 30, SL_E_SOURCE, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const cJSON *v = root;
    for (int i = 2; i < argc && v; i++)
        v = cJSON_IsArray(v) ? cJSON_GetArrayItem(v, (int)strtol(argv[i], NULL, 10))
                             : cJSON_GetObjectItemCaseSensitive(v, argv[i]);
    if (!v) fprintf(stderr, "%s: no such member\n", argv[1]);
    if (v && argc > 2) print(v);
    cJSON_Delete(root);
    return v ? 0 : 2;
}
