/* The page at "/": one HTML file, put into the binary by the Makefile. */
#ifndef SL_RUNTIME_SERVE_PAGE_H
#define SL_RUNTIME_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char sl_serve_page[];
extern const size_t sl_serve_page_bytes;

#endif
