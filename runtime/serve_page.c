/* The page's policy header (see serve_page.h). */
#define _GNU_SOURCE
#include "runtime/serve_page.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sha2.h>

enum { BASE64_SHA256 = 45 };

static void base64(char out[BASE64_SHA256], const uint8_t d[SHA256_DIGEST_LENGTH])
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *w = out;
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i += 3) {
        int left = SHA256_DIGEST_LENGTH - i;
        uint32_t v = (uint32_t)d[i] << 16 | (left > 1 ? (uint32_t)d[i + 1] << 8 : 0) |
                     (left > 2 ? d[i + 2] : 0);
        *w++ = digit[v >> 18];
        *w++ = digit[v >> 12 & 63];
        *w++ = left > 1 ? digit[v >> 6 & 63] : '=';
        *w++ = left > 2 ? digit[v & 63] : '=';
    }
    *w = 0;
}

/* 'sha256-...' of what stands between open and close, or 'none'. */
static void source(char *out, size_t n, const char *html, size_t len, const char *open,
                   const char *close)
{
    const char *from = memmem(html, len, open, strlen(open));
    const char *to = NULL;
    if (from) {
        from += strlen(open);
        to = memmem(from, len - (size_t)(from - html), close, strlen(close));
    }
    if (!to) {
        (void)snprintf(out, n, "'none'");
        return;
    }
    uint8_t d[SHA256_DIGEST_LENGTH];
    char text[BASE64_SHA256];
    SHA2_CTX c;
    SHA256Init(&c);
    SHA256Update(&c, (const uint8_t *)from, (size_t)(to - from));
    SHA256Final(d, &c);
    base64(text, d);
    (void)snprintf(out, n, "'sha256-%s'", text);
}

void sl_serve_page_policy(char out[SL_SERVE_POLICY_MAX], const char *html, size_t len)
{
    char script[64];
    char style[64];
    source(script, sizeof script, html, len, "<script>", "</script>");
    source(style, sizeof style, html, len, "<style>", "</style>");
    (void)snprintf(out, SL_SERVE_POLICY_MAX,
                   "default-src 'none'; script-src %s; style-src %s; connect-src 'self'; img-src "
                   "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                   script, style);
}
