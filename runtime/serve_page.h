/* The page at "/": one HTML file, put into the binary by the Makefile (build/page.c).
 *
 * Its policy allows exactly the script and the style that it holds, by their hashes, and connections to
 * this server alone: whatever text a model writes, nothing else runs and nothing is loaded. */
#ifndef SL_RUNTIME_SERVE_PAGE_H
#define SL_RUNTIME_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char sl_serve_page[];
extern const size_t sl_serve_page_bytes;

/* Content-Security-Policy of an HTML text with at most one <script> and one <style> element, without
 * attributes; those without get 'none'. */
#define SL_SERVE_POLICY_MAX 512
void sl_serve_page_policy(char out[SL_SERVE_POLICY_MAX], const char *html, size_t len);

#endif
