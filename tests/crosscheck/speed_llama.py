"""Decode and prefill beside llama.cpp: the same model, the same threads, arms in turn.

Exports the checkpoint's lossless pack as GGUF (MXFP4 experts, bf16 trunk, which llama.cpp reads as they are)
and times both programs from memory: 512 tokens of prefill in one piece, then 128 tokens of decode one by one.
The peer is called through its C interface, a batch at a time; its own sampling is left out on both sides.
Medians of the rounds, and their ratios, for packs of the same bits (mxfp4, bf16 trunk) and of fewer (m4 with
t8, w26 with t4).

    python3 tests/crosscheck/speed_llama.py [CHECKPOINT]        THREADS="1 2", ROUNDS=5

CHECKPOINT: default $SLUICE_SHARED/models/k3-mini (../shared), else models/k3-nano. Needs llama-cpp-python
(with kimi-k3). Rates mean something on a machine that does nothing else; the check is only that all ran."""

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import llama_cpp as lc
except ImportError as e:
    print(f"SKIP speed: the Python package {e.name} is not installed")
    sys.exit(0)

SLUICE = os.environ.get("SLUICE", "build/sluice")
SHARED = os.environ.get("SLUICE_SHARED", "../shared")
THREADS = [int(t) for t in os.environ.get("THREADS", "1 2").split()]
ROUNDS = int(os.environ.get("ROUNDS", "5"))
PREFILL, DECODE = 512, 128
PACKS = [("mxfp4", "bf16"), ("m4", "t8"), ("w26", "t4")]


def sluice(*args):
    r = subprocess.run([SLUICE, *map(str, args)], capture_output=True)
    if r.returncode:
        raise SystemExit(f"FAIL {args[0]}: {r.stderr.decode().strip()}")
    return r.stdout


class Peer:
    def __init__(self, path, threads):
        mp = lc.llama_model_default_params()
        self.model = lc.llama_model_load_from_file(path.encode(), mp)
        if not self.model:
            raise SystemExit("FAIL peer: it does not load the exported file")
        cp = lc.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch = 1024, PREFILL, PREFILL
        cp.n_threads = cp.n_threads_batch = threads
        self.ctx = lc.llama_init_from_model(self.model, cp)

    def feed(self, ids, pos):
        batch = lc.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, t in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = t, pos + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i == len(ids) - 1
        start = time.perf_counter()
        if lc.llama_decode(self.ctx, batch):
            raise SystemExit("FAIL peer: llama_decode")
        took = time.perf_counter() - start
        lc.llama_batch_free(batch)
        return took

    def rates(self):
        lc.llama_memory_clear(lc.llama_get_memory(self.ctx), True)
        prefill = PREFILL / self.feed([i % 4000 for i in range(PREFILL)], 0)
        lc.llama_memory_clear(lc.llama_get_memory(self.ctx), True)
        spent = sum(self.feed([(7 * i) % 4000], i) for i in range(DECODE))
        return prefill, DECODE / spent

    def close(self):
        lc.llama_free(self.ctx)
        lc.llama_model_free(self.model)


def ours(pack, what, n, threads):
    out = sluice("bench", what, pack, "-n", n, "--rounds", 1, "--threads", threads, "--json")
    return json.loads(out)["tok_per_s"]


def main():
    model = sys.argv[1] if len(sys.argv) > 1 else os.path.join(SHARED, "models/k3-mini")
    if not os.path.isdir(model):
        model = "models/k3-nano"
    quiet = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    with tempfile.TemporaryDirectory() as tmp:
        packs = {}
        for experts, trunk in PACKS:
            packs[experts] = os.path.join(tmp, experts)
            sluice("convert", model, packs[experts], "--experts", experts, "--trunk", trunk)
        gguf = os.path.join(tmp, "peer.gguf")
        sluice("export", packs["mxfp4"], gguf, "--format", "gguf")
        print("| threads | pack | prefill tok/s | to the peer | decode tok/s | to the peer |")
        print("|---|---|---|---|---|---|")
        for threads in THREADS:
            seen = {name: ([], []) for name in ["peer", *packs]}
            peer = Peer(gguf, threads)
            peer.rates()
            for _ in range(ROUNDS):
                p, d = peer.rates()
                seen["peer"][0].append(p)
                seen["peer"][1].append(d)
                for name, path in packs.items():
                    seen[name][0].append(ours(path, "prefill", PREFILL, threads))
                    seen[name][1].append(ours(path, "decode", DECODE, threads))
            peer.close()
            mid = {k: [statistics.median(x) for x in v] for k, v in seen.items()}
            for name, (p, d) in mid.items():
                print(f"| {threads} | {name} | {p:.0f} | {p / mid['peer'][0]:.2f} | {d:.0f} "
                      f"| {d / mid['peer'][1]:.2f} |")
    print("ok speed_measured")


main()
