/* Who may ask: API key, Host and Origin headers. Plain functions of strings. */
#ifndef SL_RUNTIME_SERVE_GUARD_H
#define SL_RUNTIME_SERVE_GUARD_H

#include <stdbool.h>

/* Is `header` (may be NULL) "Bearer KEY"? Takes the same time for every wrong key of every length: what
 * is compared are two hashes, all bytes of them. */
bool sl_guard_key(const char *header, const char *key);

/* Does a Host header name this machine's loopback: localhost, 127.0.0.0/8 or [::1], with any port? A
 * missing one does (HTTP/1.0, no browser). */
bool sl_guard_loopback_host(const char *host);

/* May a request with this Origin header (NULL: none, no browser) be answered? Own origin: its host and
 * port are those of the Host header. allowed: another one, "*" any, NULL none. */
bool sl_guard_origin(const char *origin, const char *host, const char *allowed);

#endif
