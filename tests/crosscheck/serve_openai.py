"""`sluice serve` under the official `openai` Python client: chat, streaming, tools, logprobs, errors,
cancellation, completions, models.

    python3 tests/crosscheck/serve_openai.py

The model is k3-mini of $SLUICE_SHARED (default ../shared), or k3-nano of this repository where that is
absent. SLUICE names the program (build/sluice). Needs the package openai.

A small model does not call tools by itself: here a conversation with a call and its result is accepted,
and the call in an answer is shown with ids written by hand in tests/runtime/test_serve_answer.c.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

try:
    import openai
except ImportError:
    print("SKIP serve_openai: the Python package openai is not installed")
    sys.exit(0)

SLUICE = os.environ.get("SLUICE", "build/sluice")
SHARED = os.environ.get("SLUICE_SHARED", "../shared")
KEY = "crosscheck-key"


def case(name, good, why=""):
    print("ok " + name if good else "FAIL %s: %s" % (name, str(why)[:400]), flush=True)


def model_source():
    mini = os.path.join(SHARED, "models", "k3-mini")
    return mini if os.path.isdir(mini) else "models/k3-nano"


def start(pack):
    env = dict(os.environ, SLUICE_API_KEY=KEY)
    server = subprocess.Popen([SLUICE, "serve", pack, "--port", "0", "--queue", "1"],
                              stderr=subprocess.PIPE, text=True, env=env)
    for line in server.stderr:
        m = re.search(r"(http://127\.0\.0\.1:\d+)/", line)
        if m:
            return server, m.group(1)
        if "no HTTP library" in line:
            print("SKIP serve_openai: libmicrohttpd not found when this was built")
            sys.exit(0)
    raise SystemExit("FAIL serve_openai: the server did not start")


USER = [{"role": "user", "content": "What is a kernel?"}]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get weather for a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def refused(name, kind, call, code=None):
    try:
        call()
        case(name, False, "was accepted")
    except kind as e:
        case(name, code is None or e.code == code, repr(e))
    except Exception as e:
        case(name, False, repr(e))


def chat(client, model):
    args = dict(model=model, messages=USER, max_tokens=80, temperature=0.6, seed=1)
    whole = client.chat.completions.create(**args)
    m = whole.choices[0].message
    case("chat", bool(m.content or m.reasoning_content), whole)
    case("chat_usage", whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
         and whole.usage.prompt_tokens_details.cached_tokens <= whole.usage.prompt_tokens, whole.usage)
    content, reasoning, reason, usage, ids = "", "", None, None, set()
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **args):
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for c in chunk.choices:
            content += c.delta.content or ""
            reasoning += getattr(c.delta, "reasoning_content", None) or ""
            reason = c.finish_reason or reason
    case("stream_equals_whole", (content, reasoning, reason) ==
         (m.content, m.reasoning_content, whole.choices[0].finish_reason), (content, m.content))
    case("stream_usage", usage and usage.completion_tokens == whole.usage.completion_tokens, usage)
    case("stream_one_id", len(ids) == 1, ids)
    with client.chat.completions.stream(model=model, messages=USER, max_tokens=80, temperature=0.6, seed=1) as s:
        final = s.get_final_completion()
    case("stream_helper_equals_whole", final.choices[0].message.content == m.content, final)


def logprobs(client, model):
    r = client.chat.completions.create(model=model, messages=USER, max_tokens=20, temperature=0, logprobs=True,
                                       top_logprobs=4, reasoning_effort="none")
    tokens = r.choices[0].logprobs.content
    case("logprobs_spell_the_text",
         b"".join(bytes(t.bytes) for t in tokens).decode("utf-8", "replace") == r.choices[0].message.content, r)
    case("logprobs_greedy_is_the_top", all(t.token == t.top_logprobs[0].token for t in tokens), tokens)
    case("logprobs_fall", all(a.logprob >= b.logprob for t in tokens
                              for a, b in zip(t.top_logprobs, t.top_logprobs[1:])), tokens)
    streamed = []
    for chunk in client.chat.completions.create(model=model, messages=USER, max_tokens=20, temperature=0, logprobs=True,
                                                top_logprobs=4, reasoning_effort="none", stream=True):
        for c in chunk.choices:
            if c.logprobs and c.logprobs.content:
                streamed += c.logprobs.content
    case("logprobs_streamed_equal_whole", streamed == tokens, len(streamed))


def tools(client, model):
    plain = client.chat.completions.create(model=model, messages=USER, max_tokens=1)
    r = client.chat.completions.create(model=model, messages=USER, max_tokens=30, seed=2, tools=TOOLS,
                                       tool_choice="auto", parallel_tool_calls=False)
    case("tools_are_declared", r.usage.prompt_tokens > plain.usage.prompt_tokens + 30, r.usage)
    calls = r.choices[0].message.tool_calls
    case("tool_calls_parse", all(isinstance(json.loads(c.function.arguments), dict) for c in calls or []), calls)
    history = USER + [
        {"role": "assistant", "content": "", "reasoning_content": "call it", "tool_calls": [
            {"id": "call_1", "type": "function",
             "function": {"name": "get_weather", "arguments": "{\"city\":\"Paris\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "18C"}]
    r = client.chat.completions.create(model=model, messages=history, tools=TOOLS, max_tokens=5)
    case("tool_results_are_taken", r.usage.completion_tokens <= 5, r)
    bad = [dict(history[1], tool_calls=[{"id": "c", "type": "function",
                                         "function": {"name": "f", "arguments": "[1]"}}])]
    refused("arguments_must_be_an_object", openai.BadRequestError,
            lambda: client.chat.completions.create(model=model, messages=USER + bad + USER, max_tokens=1))


def formats(client, model):
    r = client.chat.completions.create(model=model, messages=USER, max_tokens=30, seed=3, reasoning_effort="none",
                                       response_format={"type": "json_object"})
    c = r.choices[0]
    try:
        good = isinstance(json.loads(c.message.content), dict)
    except ValueError:
        good = False
    told = (c.model_extra or {}).get("error")
    case("json_is_true_or_told", good != bool(told), (c.message.content, told))
    r = client.chat.completions.create(model=model, messages=USER, max_tokens=200, seed=4, stop=["a", "e"],
                                       reasoning_effort="none")
    text = r.choices[0].message.content
    case("stop_strings_are_not_shown", "a" not in text and "e" not in text, text)


def errors(client, model, base):
    refused("wrong_model", openai.NotFoundError,
            lambda: client.chat.completions.create(model="none", messages=USER), "model_not_found")
    refused("two_answers", openai.BadRequestError,
            lambda: client.chat.completions.create(model=model, messages=USER, n=2), "unsupported_parameter")
    refused("bad_temperature", openai.BadRequestError,
            lambda: client.chat.completions.create(model=model, messages=USER, temperature=-1), "invalid_value")
    refused("too_long", openai.BadRequestError,
            lambda: client.completions.create(model=model, prompt=[1] * 100000), "context_length_exceeded")
    other = openai.OpenAI(base_url=base + "/v1", api_key="wrong", max_retries=0)
    refused("wrong_key", openai.AuthenticationError, other.models.list, "invalid_api_key")


def cancellation(client, model):
    stream = client.completions.create(model=model, prompt="The function", max_tokens=3000, stream=True,
                                       extra_body={"ignore_eos": True})
    for _, _ in zip(range(3), stream):
        pass
    began = time.monotonic()
    stream.close()
    r = client.completions.create(model=model, prompt="The function", max_tokens=1)
    case("cancel_frees_the_engine", r.usage.completion_tokens == 1, r)
    print("note: an answer %.2f s after the hang-up" % (time.monotonic() - began))


def queue(client, model):
    streams = [client.completions.create(model=model, prompt="The function", max_tokens=3000, stream=True,
                                         extra_body={"ignore_eos": True}) for _ in range(2)]
    refused("full_queue", openai.RateLimitError,
            lambda: client.completions.create(model=model, prompt="a", max_tokens=1), "queue_full")
    for s in streams:
        s.close()


def main():
    with tempfile.TemporaryDirectory() as t:
        pack = os.path.join(t, "served.pack")
        subprocess.run([SLUICE, "convert", model_source(), pack], check=True, stdout=subprocess.DEVNULL)
        server, base = start(pack)
        try:
            client = openai.OpenAI(base_url=base + "/v1", api_key=KEY, max_retries=0, timeout=600)
            models = [m.id for m in client.models.list()]
            case("models", models == ["served"], models)
            model = models[0]
            case("model", client.models.retrieve(model).id == model)
            chat(client, model)
            logprobs(client, model)
            tools(client, model)
            formats(client, model)
            errors(client, model, base)
            r = client.completions.create(model=model, prompt="The function", max_tokens=5, temperature=0, logprobs=2)
            case("completion", len(r.choices[0].logprobs.tokens) == 5 and
                 "".join(r.choices[0].logprobs.tokens) == r.choices[0].text, r)
            cancellation(client, model)
            queue(client, model)
        finally:
            server.terminate()
            case("terminates", server.wait(60) == 0, server.returncode)


main()
