/* A plan for people and for scripts: memory by group, bytes and seconds a token, the price of a million.
 *
 * Nothing is decided here: groups come from the planner that `run` uses, seconds from the cost model. */
#ifndef SL_RUNTIME_PLAN_REPORT_H
#define SL_RUNTIME_PLAN_REPORT_H

#include "offload/plan_cost.h"
#include "runtime/engine.h"

enum { SL_PLAN_PROMPTS = 4 };

struct sl_plan_report {
    const char *pack; /* as given: "k3" or a folder */
    const struct sl_pack *shape;
    const struct sl_board *board;
    const struct sl_pack_work *work;
    const struct sl_engine_plan *plan;
    struct sl_cost_in in;
    double hits_low, hits_high;
    struct sl_token_cost low, high; /* at those hit rates: low hits are the slow end */
    int n_prompts;
    struct {
        uint64_t tokens;
        struct sl_prompt_cost cost;
    } prompts[SL_PLAN_PROMPTS];
};

/* Fills costs from shape, board, work and plan. hits < 0: the range of sl_cost_hits; otherwise that
 * rate at both ends. prompt > 0: one more prompt length beside 100, 4,000 and 30,000; lengths beyond
 * the context are left out. */
void sl_plan_report_fill(struct sl_plan_report *r, double hits, uint64_t prompt);

int sl_plan_report_json(const struct sl_plan_report *r, struct sl_err *err);
int sl_plan_report_text(const struct sl_plan_report *r, struct sl_err *err);

#endif
