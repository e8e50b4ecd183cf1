/* The server's figures as Prometheus text (/metrics) and as JSON for the page (/stats).
 *
 * Both are written from one snapshot. Rates are not computed here: counters with seconds beside them let
 * every reader choose its own window. */
#ifndef SL_RUNTIME_SERVE_METRICS_H
#define SL_RUNTIME_SERVE_METRICS_H

#include "runtime/serve_sched.h"
#include "runtime/serve_text.h"

struct sl_metrics {
    struct sl_sched_info sched;
    const char *model;
    double uptime_seconds;
    uint64_t http_requests; /* of all kinds */
    int connections;
    uint64_t resident_bytes; /* of this process, now */
};

void sl_metrics_prometheus(struct sl_serve_text *out, const struct sl_metrics *m);
void sl_metrics_json(struct sl_serve_text *out, const struct sl_metrics *m);

#endif
