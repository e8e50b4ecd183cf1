/* From generated ids to the deltas of a job: channels, stop strings, log-probabilities, JSON checks.
 *
 *   id -> chat parser (or bytes, for a completion) -> UTF-8 -> stop strings (content only) -> delta
 *
 * Choices that the API leaves open:
 *   - Stop strings and logprobs are about the visible text (content), not about reasoning or calls.
 *   - A token's log-probability goes out with the delta in which its text begins.
 *   - JSON asked for by response_format is checked at the end. A mismatch gives finish_reason "error" and
 *     an error object in the choice, beside the text; cut by max_tokens it stays "length", with the
 *     error object. The HTTP status is 200: the text is there, the tokens were spent.
 *   - With parallel_tool_calls false the answer ends with its first call.
 *
 * Used by the scheduler's thread alone. */
#ifndef SL_RUNTIME_SERVE_ANSWER_H
#define SL_RUNTIME_SERVE_ANSWER_H

#include "runtime/chat_format.h"
#include "runtime/serve_job.h"
#include "runtime/sluice.h"

struct sl_answer;

/* format: of the pack, NULL where only completions are served. p, format and job outlive the answer. */
int sl_answer_open(struct sl_answer **out, struct sl_serve_job *job, const sluice_pack *p,
                   const struct sl_chat_format *format, struct sl_err *err);
void sl_answer_close(struct sl_answer *a); /* NULL is fine */

/* One generated id that is no stop token; token: its figures where logprobs are wanted, else NULL.
 * 0: go on; 1: the answer is complete (*finish says how); negative: SL_E_*. */
int sl_answer_token(struct sl_answer *a, int32_t id, const struct sl_serve_token *token,
                    enum sl_finish *finish, struct sl_err *err);

/* The end: flushes what is held back, judges JSON. stop_id: the stop token that ended it, -1: none.
 * Changes *finish where the answer is not what it seemed, and fills fault (status 0: none) then. */
int sl_answer_end(struct sl_answer *a, int32_t stop_id, enum sl_finish *finish,
                  struct sl_serve_fault *fault, struct sl_err *err);

uint64_t sl_answer_reasoning_tokens(const struct sl_answer *a);
/* The parser, for keeping the turn; NULL for a completion, or where a stop string cut it. */
struct sl_chat_parser *sl_answer_parser(struct sl_answer *a);

#endif
