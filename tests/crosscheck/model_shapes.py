"""Logits of `sluice logits` beside those of the numpy reference on checkpoints of unusual shape.

The fixtures pin two shapes down for good; this makes a dozen more, each with something that is easy
to get wrong: no low-rank query, two or eight convolution taps, a block of one layer or longer than the
model, no dense layer, all experts or one, no renormalisation, no latent norm, no output gate, odd
widths. Random weights and ids; a sequence ends before the first position whose routing hangs on less
than 1e-5, because there an f32 engine may rightly choose another expert. Each is computed twice, token
by token and in chunks, and the two files must be equal.

    python3 tests/crosscheck/model_shapes.py [CASE...]

SLUICE names the program (build/sluice), SLUICE_SHARED the folder with tools/k3ref.py and
tools/make_tiny.py (../shared). Needs numpy.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile

SLUICE = os.environ.get("SLUICE", "build/sluice")
TOOLS = os.path.join(os.environ.get("SLUICE_SHARED", "../shared"), "tools")

try:
    import numpy as np
except ImportError:
    print("SKIP model_shapes: the Python package numpy is not installed")
    sys.exit(0)
if not os.path.exists(os.path.join(TOOLS, "k3ref.py")):
    print("SKIP model_shapes: %s/k3ref.py not found" % TOOLS)
    sys.exit(0)
sys.path.insert(0, TOOLS)
import k3ref  # noqa: E402
import make_tiny  # noqa: E402

TOKENS = 40
MAX_LOG_PROB = 5e-4
MIN_MARGIN = 1e-5

# name: (preset, sizes of the maker, keys changed in text_config, tensor names dropped)
CASES = {
    "full_rank_query": ("a", {}, {"q_lora_rank": None}, ()),
    "two_taps": ("b", {"short_conv_kernel_size": 2}, {}, ()),
    "eight_taps": ("a", {"short_conv_kernel_size": 8}, {}, ()),
    "block_of_one": ("b", {"attn_res_block_size": 1}, {}, ()),
    "one_long_block": ("a", {"attn_res_block_size": 50}, {}, ()),
    "no_dense_layer": ("a", {"first_k_dense_replace": 0}, {}, ()),
    "three_dense_layers": ("b", {"first_k_dense_replace": 3}, {}, ()),
    "all_experts": ("a", {"num_experts_per_token": 24}, {}, ()),
    "one_expert": ("b", {"num_experts_per_token": 1}, {}, ()),
    "no_renormalize": ("b", {}, {"moe_renormalize": False}, ()),
    "no_latent_norm": ("a", {}, {"latent_moe_use_norm": False}, ("routed_expert_norm",)),
    "no_output_gate": ("b", {}, {"mla_use_output_gate": False}, ("MLA g_proj",)),
    "uncapped_up": ("a", {}, {"activation_situ_linear_beta": None}, ()),
    "gentle_decay": ("b", {"gate_lower_bound": -1.0}, {}, ()),
    "three_shared": ("a", {"num_shared_experts": 3}, {}, ()),
    "odd_widths": (
        "b",
        {
            "hidden_size": 51,
            "kda_head_dim": 13,
            "kv_lora_rank": 11,
            "q_lora_rank": 19,
            "qk_nope_head_dim": 5,
            "qk_rope_head_dim": 3,
            "v_head_dim": 7,
            "num_attention_heads": 5,
            "intermediate_size": 77,
            "moe_intermediate_size": 96,
        },
        {},
        (),
    ),
}


def make(folder, preset, sizes, keys, dropped):
    """A checkpoint by make_tiny, with what it has no option for changed on the way."""
    build, config = make_tiny.Maker.build, make_tiny.config

    def changed_build(self):
        tensors = build(self)
        o = self.o
        out = {}
        for name, t in tensors.items():
            layer = int(name.split(".layers.")[1].split(".")[0]) if ".layers." in name else -1
            mla = ".self_attn." in name and layer + 1 in o["full_attn_layers"]
            if "MLA g_proj" in dropped and mla and "g_proj" in name:
                continue
            if any(d in name for d in dropped):
                continue
            if keys.get("q_lora_rank", 0) is None and mla and ".q_" in name:
                if "q_b_proj" in name:
                    head = o["qk_nope_head_dim"] + o["qk_rope_head_dim"]
                    rows, cols = o["num_attention_heads"] * head, o["hidden_size"]
                    w = make_tiny.bf16(self.n(rows, cols, std=1.6 / np.sqrt(cols)))
                    out[name.replace("q_b_proj", "q_proj")] = ("BF16", w)
                continue
            out[name] = t
        return out

    def changed_config(o):
        c = config(o)
        c["text_config"].update(keys)
        return c

    make_tiny.Maker.build, make_tiny.config = changed_build, changed_config
    argv = sys.argv
    sys.argv = ["make_tiny", folder, "--preset", preset, "--seed", "11", "--set"]
    sys.argv += ["%s=%s" % (k, json.dumps(v)) for k, v in sizes.items()]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            make_tiny.main()
    finally:
        sys.argv = argv
        make_tiny.Maker.build, make_tiny.config = build, config


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def reference(folder):
    """Ids and logits up to the first close call of a router."""
    model = k3ref.K3(folder)
    rng = np.random.default_rng(5)
    ids, rows = [], []
    for tok in rng.integers(0, model.c["vocab_size"], TOKENS).tolist():
        trace = {}
        row = model.step(tok, trace)
        k, n = model.c["num_experts_per_token"], model.c["num_experts"]
        if k < n and min(float(min(v)) for v in trace["router_margin"].values()) < MIN_MARGIN:
            break
        ids.append(tok)
        rows.append(row)
    return ids, np.stack(rows)


def sluice(*args):
    p = subprocess.run([SLUICE, *args], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError("%s: exit status %d: %s" % (args[0], p.returncode, p.stderr.strip()))


def check(name):
    with tempfile.TemporaryDirectory() as tmp:
        source, pack = os.path.join(tmp, "source"), os.path.join(tmp, "pack")
        make(source, *CASES[name])
        order = np.argsort
        if name == "all_experts":  # the reference looks at one expert more than it takes
            np.argsort = lambda *a, **k: np.append(order(*a, **k), order(*a, **k)[-1])
        try:
            ids, want = reference(source)
        finally:
            np.argsort = order
        sluice("convert", source, pack)
        got = []
        for chunk in ("1", "17"):
            out = os.path.join(tmp, chunk + ".f32")
            sluice("logits", pack, "--exact", "--ids", ",".join(map(str, ids)), "--out", out, "--chunk", chunk)
            got.append(np.fromfile(out, "<f4").reshape(want.shape))
        if got[0].tobytes() != got[1].tobytes():
            print("FAIL %s: chunks of 1 and 17 differ" % name)
            return
        diff = float(np.abs(log_softmax(got[0]) - log_softmax(want)).max())
        what = "%d tokens, largest log-prob difference %.1e" % (len(ids), diff)
        if len(ids) < 8:
            print("FAIL %s: only %d tokens before a close call" % (name, len(ids)))
        elif diff < MAX_LOG_PROB:
            print("ok %s (%s)" % (name, what))
        else:
            print("FAIL %s: %s, more than %.0e" % (name, what, MAX_LOG_PROB))


def main():
    for name in sys.argv[1:] or CASES:
        try:
            check(name)
        except RuntimeError as e:
            print("FAIL %s: %s" % (name, e))


main()
