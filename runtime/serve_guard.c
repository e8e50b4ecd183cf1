/* Checks on request headers (see serve_guard.h). */
#include "runtime/serve_guard.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>
#include <sha2.h>

static void digest(uint8_t out[SHA256_DIGEST_LENGTH], const char *s)
{
    SHA2_CTX c;
    SHA256Init(&c);
    SHA256Update(&c, (const uint8_t *)s, strlen(s));
    SHA256Final(out, &c);
}

bool sl_guard_key(const char *header, const char *key)
{
    uint8_t want[SHA256_DIGEST_LENGTH];
    uint8_t got[SHA256_DIGEST_LENGTH];
    if (!header || strncasecmp(header, "Bearer ", 7) != 0) return false;
    header += 7;
    while (*header == ' ') header++;
    digest(want, key);
    digest(got, header);
    volatile uint8_t differ = 0;
    for (size_t i = 0; i < sizeof want; i++) differ |= (uint8_t)(want[i] ^ got[i]);
    return differ == 0;
}

static bool is_port(const char *s)
{
    return *s == 0 || (*s == ':' && s[1] && strspn(s + 1, "0123456789") == strlen(s + 1));
}

/* A dotted quad of 127.0.0.0/8 and nothing that only begins like one (127.0.0.1.example.com). */
static bool is_loopback_quad(const char *s)
{
    if (strncmp(s, "127.", 4) != 0) return false;
    size_t n = strspn(s, "0123456789.");
    return is_port(s + n);
}

bool sl_guard_loopback_host(const char *host)
{
    if (!host) return true;
    if (strncasecmp(host, "localhost", 9) == 0) return is_port(host + 9);
    if (strncmp(host, "[::1]", 5) == 0) return is_port(host + 5);
    return is_loopback_quad(host);
}

bool sl_guard_origin(const char *origin, const char *host, const char *allowed)
{
    if (!origin) return true;
    if (allowed && (strcmp(allowed, "*") == 0 || strcasecmp(allowed, origin) == 0)) return true;
    const char *at = strstr(origin, "://");
    return at && host && strcasecmp(at + 3, host) == 0;
}
