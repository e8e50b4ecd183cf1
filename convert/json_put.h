/* JSON text written straight to a stream: headers and manifests of half a million names need no tree. */
#ifndef SL_CONVERT_JSON_PUT_H
#define SL_CONVERT_JSON_PUT_H

#include <stdio.h>

/* s as a JSON string. Bytes from 0x80 up pass through: names are UTF-8 as they came. */
void sl_json_put_string(FILE *f, const char *s);

#endif
