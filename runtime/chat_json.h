/* OpenAI-style JSON to a conversation and back: the one reader for server, chat files and tests.
 *
 * Texts of numbers and the order of keys are kept (cJSON would lose both), since tool declarations and
 * call arguments are rendered from them. Input is hostile: nesting is bounded, sizes are the caller's
 * to bound, ill-formed UTF-8 and lone surrogates are refused. */
#ifndef SL_RUNTIME_CHAT_JSON_H
#define SL_RUNTIME_CHAT_JSON_H

#include "base/buf.h"
#include "runtime/chat_message.h"

/* Reads of a request body (a JSON object) what makes the prompt, and ignores all other keys:
 *
 *   messages          array, not empty. role: system, developer (= system), user, assistant, tool.
 *                     content: string, null, or parts {"type":"text","text":...}. name; assistant:
 *                     reasoning_content or reasoning, tool_calls [{id, function: {name, arguments}}]
 *                     (arguments: string, or an object); tool: tool_call_id, name or tool; system: tools
 *   tools             array, kept as its text
 *   tool_choice       "auto", "none", "required"; a named function is refused: the format has no word for it
 *   response_format   {"type": "text" | "json_object" | "json_schema", "json_schema": {"schema": ...}}
 *   reasoning_effort  "low", "high", "max"; "none" turns thinking off; null: no message about it
 *   thinking          {"type": "enabled" | "disabled"}; chat_template_kwargs {"thinking": bool} too
 *
 * c starts from {0}. Errors are SL_E_ARG; the line in err begins with the JSON path of the culprit
 * ("messages[2].content: ..."), and param (may be NULL) receives that path, for error bodies. */
#define SL_CHAT_PARAM_MAX 128
int sl_chat_from_json(struct sl_chat *c, const char *text, size_t n, char param[SL_CHAT_PARAM_MAX],
                      struct sl_err *err);

/* Appends m as an OpenAI message object. Keys: role, content (null when there is none and there are
 * calls), reasoning_content if any, tool_calls if any, tool_call_id, name, tools. */
int sl_chat_message_json(struct sl_buf *out, const struct sl_chat_message *m, struct sl_err *err);
/* Appends {"messages": [...], "tools": ..., ...}: sl_chat_from_json() of it gives c again. */
int sl_chat_to_json(struct sl_buf *out, const struct sl_chat *c, struct sl_err *err);

#endif
