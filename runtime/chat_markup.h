/* The fixed texts of the chat format (spec 6.2). The model was trained on exactly these bytes; the
 * advertised word `medium` is part of the text although the value is refused. */
#ifndef SL_RUNTIME_CHAT_MARKUP_H
#define SL_RUNTIME_CHAT_MARKUP_H

#define SL_CHAT_FENCE     "\n\n```json\n"
#define SL_CHAT_FENCE_END "\n```"

#define SL_CHAT_TOOLS_HEAD "# Tools\nHere are the available tools, described in JSONSchema."
#define SL_CHAT_TOOLS_MORE                                                                         \
    "## New Tools Available\n"                                                                     \
    "The system dynamically extends the toolset via lazy-loading.\n"                               \
    "You have access to all existing and extended tools.\n"                                        \
    "Here are the specs for the extended tools."

/* %s: the effort */
#define SL_CHAT_EFFORT_TEXT                                                                        \
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "   \
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"            \
    "Now the system is invoked with `thinking_effort=%s`."

#define SL_CHAT_TOOLS_REQUIRED                                                                     \
    "The system is invoked with `tool_choice=required`.\n"                                         \
    "You MUST call tools in the next message."
#define SL_CHAT_TOOLS_NONE                                                                         \
    "The system is invoked with `tool_choice=none`.\n"                                             \
    "You MUST NOT call any tools in the next message."

#define SL_CHAT_JSON_TEXT(word)                                                                    \
    "The system is invoked with `response_format=" word "`.\n"                                     \
    "Your response must be raw JSON data without markdown code blocks (```json) or any "           \
    "additional formatting."
#define SL_CHAT_SCHEMA_HEAD "\nThe JSON data must match the following schema:\n```json\n"

#endif
