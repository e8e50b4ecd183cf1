#!/usr/bin/env python3
"""Load on `sluice serve`: many clients, some of which hang up, and what it does to answers and memory.

    scripts/load_serve.py SLUICE PACK [--clients 1,4,16] [--seconds 600] [--seats 1] [--quiet]

Starts the server, asks a set of questions one by one, then lets N clients ask them at once, streamed and
whole, for so many seconds in all; one in four hangs up half way. Every answer must be the one that was
given alone (same seed, same text), or a start of it where the client hung up; one stream carries one
id. At the end nothing may run or wait, the server must answer, and its memory must have stayed: the mean
resident set of the last quarter is at most 2 % + 4 MiB above that of the second.

Prints one line a check (ok, FAIL) and, unless --quiet, a table. Standard library only. Timings mean
something on a machine that does nothing else.
"""
import argparse
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

QUESTIONS = ["What is a kernel?", "hello", "How are files sorted?", "Name a git command.",
             "Why?", "In this chapter, we", "Explain sockets to a child.", "1 + 1 = 2"]


def body(i, stream):
    """Request i: the same number is always the same request."""
    q = QUESTIONS[i % len(QUESTIONS)]
    n = 8 + 7 * (i % 5)
    common = {"seed": i, "temperature": 0.7, "max_tokens": n, "stream": stream}
    if i % 3 == 0:
        return "/v1/completions", dict(common, prompt=q)
    effort = "none" if i % 2 else "low"
    return "/v1/chat/completions", dict(common, reasoning_effort=effort,
                                        messages=[{"role": "user", "content": q}])


def text_of(choice):
    """All channels in one text, so that whole and streamed answers can be compared."""
    if "text" in choice:
        return choice["text"], ""
    m = choice.get("message") or choice.get("delta")
    return m.get("content") or "", m.get("reasoning_content") or ""


class Client:
    def __init__(self, port):
        self.port = port

    def open(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)

    def post(self, i, stream, hang_up_after=None):
        """(status, content, reasoning, whole, seconds to the first byte of text, seconds, tokens)"""
        path, data = body(i, stream)
        c = self.open()
        began = time.monotonic()
        try:
            c.request("POST", path, json.dumps(data), {"Content-Type": "application/json"})
            if hang_up_after == 0:
                return None, "", "", False, 0, 0, 0
            r = c.getresponse()
            if r.status != 200:
                r.read()
                return r.status, "", "", False, 0, 0, 0
            if not stream:
                d = json.loads(r.read())
                content, reasoning = text_of(d["choices"][0])
                t = time.monotonic() - began
                return 200, content, reasoning, True, t, t, d["usage"]["completion_tokens"]
            content, reasoning, first, ids, chunks = "", "", 0, set(), 0
            for line in r:
                if not line.startswith(b"data: "):
                    continue
                if line.startswith(b"data: [DONE]"):
                    r.read()
                    t = time.monotonic() - began
                    return 200, content, reasoning, len(ids) == 1, first, t, chunks
                d = json.loads(line[6:])
                if "error" in d:
                    raise RuntimeError(d["error"]["message"])
                ids.add(d["id"])
                a, b = text_of(d["choices"][0])
                if a or b:
                    first = first or time.monotonic() - began
                    chunks += 1
                content += a
                reasoning += b
                if hang_up_after and chunks >= hang_up_after:
                    return None, content, reasoning, False, first, 0, chunks
            raise RuntimeError("the stream ended without [DONE]")
        finally:
            c.close()

    def get(self, path):
        c = self.open()
        try:
            c.request("GET", path)
            return c.getresponse().read()
        finally:
            c.close()

    def stats(self):
        return json.loads(self.get("/stats"))


class Load:
    def __init__(self, client, expected, seconds, n):
        self.client, self.expected, self.n = client, expected, n
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.wrong, self.first, self.whole, self.rss = [], [], [], []
        self.tokens = self.answers = self.hangups = self.busy = 0

    def one(self, rng):
        i = rng.randrange(len(self.expected))
        stream = rng.random() < 0.6
        hang = rng.choice([0, 1, 2, 5]) if rng.random() < 0.25 else None
        if hang:
            stream = True
        status, content, reasoning, whole, first, seconds, tokens = self.client.post(i, stream, hang)
        want = self.expected[i]
        with self.lock:
            if status == 429:
                self.busy += 1
            elif status is None:
                self.hangups += 1
                if not (want[0].startswith(content) and want[1].startswith(reasoning)):
                    self.wrong.append((i, content, want))
            else:
                if status != 200 or not whole or (content, reasoning) != want:
                    self.wrong.append((i, status, content, want))
                self.answers += 1
                self.tokens += tokens
                self.first.append(first)
                self.whole.append(seconds)
        if status == 429:
            time.sleep(0.2)

    def work(self, seed):
        rng = random.Random(seed)
        while time.monotonic() < self.end:
            try:
                self.one(rng)
            except Exception as e:  # any break of the protocol is a failure of the server
                with self.lock:
                    self.wrong.append(("exception", repr(e)))
                time.sleep(0.1)

    def run(self):
        threads = [threading.Thread(target=self.work, args=(1000 * self.n + k,)) for k in range(self.n)]
        began = time.monotonic()
        for t in threads:
            t.start()
        while time.monotonic() < self.end:
            self.rss.append(self.client.stats()["resident_bytes"])
            time.sleep(min(1, max(0.05, (self.end - began) / 40)))
        for t in threads:
            t.join()
        self.seconds = time.monotonic() - began
        return self


def percentile(v, p):
    v = sorted(v)
    return v[min(len(v) - 1, int(p * len(v)))] if v else 0


failed = 0


def check(name, good, why=""):
    global failed
    failed += not good
    print("ok " + name if good else "FAIL %s: %s" % (name, str(why)[:400]), flush=True)


def settle(client):
    for _ in range(600):
        s = client.stats()
        if not s["running"] and not s["queued"]:
            return s
        time.sleep(0.05)
    return s


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("sluice")
    p.add_argument("pack")
    p.add_argument("--clients", default="1,4,16")
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seats", type=int, default=1)
    p.add_argument("--requests", type=int, default=40, help="different requests")
    p.add_argument("--quiet", action="store_true")
    p.add_argument("--no-memory", action="store_true", help="do not judge memory (sanitizers)")
    a = p.parse_args()
    server = subprocess.Popen([a.sluice, "serve", a.pack, "--port", "0", "--queue", "12", "--seats",
                               str(a.seats), "--prefix-cache", "16MiB"],
                              stderr=subprocess.PIPE, text=True)
    lines = []
    port = None
    for line in server.stderr:
        lines.append(line)
        m = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        if m:
            port = int(m.group(1))
            break
    if not port:
        print("FAIL load: the server did not start: " + "".join(lines))
        return 1
    threading.Thread(target=lambda: lines.extend(server.stderr), daemon=True).start()
    client = Client(port)
    levels = [int(x) for x in a.clients.split(",")]
    expected = []
    for i in range(a.requests):
        status, content, reasoning, *_ = client.post(i, False)
        if status != 200:
            raise SystemExit("FAIL load: request %d alone: status %s" % (i, status))
        expected.append((content, reasoning))
    rss = []
    if not a.quiet:
        print("clients  answers  hung up    429  tok/s   first ms p50    p95   whole ms p50    p95")
    for n in levels:
        load = Load(client, expected, a.seconds / len(levels), n).run()
        s = settle(client)
        rss += load.rss
        check("answers_are_right_%d_clients" % n, not load.wrong and load.answers > 0,
              load.wrong[:2] or "no answers")
        check("nothing_stuck_%d_clients" % n, not s["running"] and not s["queued"], s)
        if not a.quiet:
            print("%7d  %7d  %7d  %5d  %5.0f  %13.0f  %5.0f  %13.0f  %5.0f" %
                  (n, load.answers, load.hangups, load.busy, load.tokens / load.seconds,
                   1e3 * percentile(load.first, .5), 1e3 * percentile(load.first, .95),
                   1e3 * percentile(load.whole, .5), 1e3 * percentile(load.whole, .95)), flush=True)
    status, content, reasoning, *_ = client.post(1, True)
    check("answers_afterwards", status == 200 and (content, reasoning) == expected[1], status)
    s = client.stats()
    check("hang_ups_were_noticed", s["cancelled"] > 0, s["cancelled"])
    if not a.no_memory and len(rss) >= 8:
        q = len(rss) // 4
        early, late = sum(rss[q:2 * q]) / q, sum(rss[-q:]) / q
        # A short run ends while the prefix cache is still being filled: there the plan is the bound.
        steady = late <= early * 1.02 + (4 << 20)
        short = a.seconds < 30 and late <= s["planned_peak_bytes"]
        check("memory_is_steady", steady or short,
              "%.1f MB in the second quarter, %.1f MB in the last" % (early / 1e6, late / 1e6))
        if not a.quiet:
            print("resident MB: %.1f in the second quarter, %.1f in the last; planned peak %.1f" %
                  (early / 1e6, late / 1e6, s["planned_peak_bytes"] / 1e6))
    server.send_signal(signal.SIGINT)
    check("server_ends_cleanly", server.wait(60) == 130, (server.returncode, "".join(lines)[-300:]))
    noise = [x for x in lines if "serving" not in x]
    check("server_had_nothing_to_say", not noise, "".join(noise)[-400:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
