"""`sluice export --format gguf` read by others: the package gguf, and llama.cpp.

With the package gguf: every tensor of the file, dequantised there, equals the checkpoint's, decoded
here from safetensors by its own few lines (products where GGUF stores products). The file imported
again gives the pack's logits within 2e-4.

With llama-cpp-python: the vocabulary gives the same ids. llama.cpp rounds activations to 8 bits before
MXFP4 and to bf16 before bf16, so the file is compared twice. As it is: the mean KL between sluice's
exact path and llama.cpp over eight windows of text is that rounding, which flips an expert now and then
(below 2e-3). Rewritten by the package gguf with every tensor widened to f32, so that only the model is
left to differ: mean KL below 1e-4 and the same greedy text.

    python3 tests/crosscheck/gguf_llama.py [CHECKPOINT]

CHECKPOINT: default $SLUICE_SHARED/models/k3-mini (../shared), else models/k3-nano. The text is
$SLUICE_SHARED/text/valid.txt, else README.md. Needs the packages numpy and gguf; llama-cpp-python (with
kimi-k3) for the second half.
"""

import glob
import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import gguf
except ImportError as e:
    print(f"SKIP gguf: the Python package {e.name} is not installed")
    sys.exit(0)

SLUICE = os.environ.get("SLUICE", "build/sluice")
SHARED = os.environ.get("SLUICE_SHARED", "../shared")
WINDOW, WINDOWS, GREEDY = 256, 8, 64

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def check(name, ok, why=""):
    print(f"ok {name}" if ok else f"FAIL {name}: {why}")
    return ok


def sluice(*args):
    r = subprocess.run([SLUICE, *map(str, args)], capture_output=True)
    if r.returncode:
        raise SystemExit(f"FAIL {args[0]}: {r.stderr.decode().strip()}")
    return r.stdout


class Checkpoint:
    def __init__(self, folder):
        self.at = {}
        for path in glob.glob(os.path.join(folder, "*.safetensors")):
            with open(path, "rb") as f:
                n = struct.unpack("<Q", f.read(8))[0]
                for name, t in json.loads(f.read(n)).items():
                    if name != "__metadata__":
                        self.at[name.removeprefix("language_model.")] = (path, 8 + n, t)

    def __contains__(self, name):
        return name in self.at

    def raw(self, name):
        path, base, t = self.at[name]
        a, b = t["data_offsets"]
        with open(path, "rb") as f:
            f.seek(base + a)
            return f.read(b - a), t["dtype"], t["shape"]

    def f32(self, name):
        data, dtype, shape = self.raw(name)
        if dtype == "BF16":
            v = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            v = np.frombuffer(data, {"F32": np.float32, "U8": np.uint8}[dtype])
        return v.reshape(shape)

    def expert(self, stem):
        codes = self.f32(stem + ".weight_packed")
        scales = self.f32(stem + ".weight_scale")
        v = np.empty((codes.shape[0], codes.shape[1] * 2), np.float32)
        v[:, 0::2] = E2M1[codes & 15]
        v[:, 1::2] = E2M1[codes >> 4]
        return v * np.ldexp(np.float32(1), scales.astype(np.int32) - 127).repeat(32, 1)


def expected(ck, name, cfg):
    """What a tensor of the file should hold, in the order of its numbers there."""
    if not name.startswith("blk."):
        if name == "output_res_score.weight":
            return ck.f32("model.output_attn_res_norm.weight") * ck.f32("model.output_attn_res_proj.weight")[0]
        return ck.f32({"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight",
                       "output_norm.weight": "model.norm.weight"}[name])
    _, layer, part = name.split(".", 2)
    at = f"model.layers.{layer}."
    kda = at + "self_attn.A_log" in ck
    for mat, w in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        if part == f"ffn_{mat}_exps.weight":
            return np.stack([ck.expert(f"{at}block_sparse_moe.experts.{e}.{w}") for e in range(cfg["num_experts"])])
    scores = {"attn_res_score.weight": "self_attention_res", "ffn_res_score.weight": "mlp_res"}
    if part in scores:
        return ck.f32(f"{at}{scores[part]}_norm.weight") * ck.f32(f"{at}{scores[part]}_proj.weight")[0]
    attn, moe = at + "self_attn.", at + "block_sparse_moe."
    if part == "ssm_a":
        return -np.exp(ck.f32(attn + "A_log")[: cfg["num_attention_heads"]])
    if part in ("attn_k_b.weight", "attn_v_b.weight"):
        heads, nope = cfg["num_attention_heads"], cfg["qk_nope_head_dim"]
        b = ck.f32(attn + "kv_b_proj.weight").reshape(heads, -1, cfg["kv_lora_rank"])
        return b[:, :nope].transpose(0, 2, 1) if part[5] == "k" else b[:, nope:]
    return ck.f32({
        "attn_norm.weight": at + "input_layernorm.weight",
        "ffn_norm.weight": at + "post_attention_layernorm.weight",
        "attn_q.weight": attn + "q_proj.weight", "attn_k.weight": attn + "k_proj.weight",
        "attn_v.weight": attn + "v_proj.weight", "attn_output.weight": attn + "o_proj.weight",
        "ssm_conv1d_q.weight": attn + "q_conv1d.weight", "ssm_conv1d_k.weight": attn + "k_conv1d.weight",
        "ssm_conv1d_v.weight": attn + "v_conv1d.weight", "ssm_f_a.weight": attn + "f_a_proj.weight",
        "ssm_f_b.weight": attn + "f_b_proj.weight", "ssm_beta.weight": attn + "b_proj.weight",
        "ssm_dt.bias": attn + "dt_bias", "ssm_g.weight": attn + "g_proj.weight",
        "ssm_norm.weight": attn + "o_norm.weight", "attn_q_a.weight": attn + "q_a_proj.weight",
        "attn_q_a_norm.weight": attn + "q_a_layernorm.weight", "attn_q_b.weight": attn + "q_b_proj.weight",
        "attn_kv_a_mqa.weight": attn + "kv_a_proj_with_mqa.weight",
        "attn_kv_a_norm.weight": attn + "kv_a_layernorm.weight", "attn_gate.weight": attn + "g_proj.weight",
        "ffn_gate.weight": at + "mlp.gate_proj.weight", "ffn_up.weight": at + "mlp.up_proj.weight",
        "ffn_down.weight": at + "mlp.down_proj.weight", "ffn_gate_inp.weight": moe + "gate.weight",
        "exp_probs_b.bias": moe + "gate.e_score_correction_bias",
        "ffn_routed_down.weight": moe + "routed_expert_down_proj.weight",
        "ffn_routed_norm.weight": moe + "routed_expert_norm.weight",
        "ffn_routed_up.weight": moe + "routed_expert_up_proj.weight",
        "ffn_gate_shexp.weight": moe + "shared_experts.gate_proj.weight",
        "ffn_up_shexp.weight": moe + "shared_experts.up_proj.weight",
        "ffn_down_shexp.weight": moe + "shared_experts.down_proj.weight",
    }[part])


def compare_tensors(path, ck, cfg):
    r = gguf.GGUFReader(path)
    worst, bad = 0.0, []
    for t in r.tensors:
        got = gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(-1)
        want = np.ascontiguousarray(expected(ck, t.name, cfg), np.float32).reshape(-1)
        if t.name.endswith("ssm_a"):  # the exponential is ours there and numpy's here
            d = float(np.max(np.abs(got / want - 1)))
            worst = max(worst, d)
            if d > 2e-7:
                bad.append(t.name)
        elif got.size != want.size or not np.array_equal(got, want):
            bad.append(t.name)
    check("tensors", not bad, f"{len(bad)} of {len(r.tensors)} differ: {bad[:4]}")
    print(f"  {len(r.tensors)} tensors equal; ssm_a within {worst:.1e} of numpy's exponential")


def logits(pack, ids, tmp):
    out = os.path.join(tmp, "out.f32")
    if os.path.exists(out):
        os.remove(out)
    sluice("logits", pack, "--exact", "--ids", ",".join(map(str, ids)), "--out", out)
    return np.fromfile(out, np.float32).reshape(len(ids), -1)


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def kl(a, b):
    p, q = log_softmax(a), log_softmax(b)
    return (np.exp(p) * (p - q)).sum(-1)


def greedy_llama(m, ids, n):
    out = []
    m.reset()
    m.eval(ids)
    for _ in range(n):
        out.append(int(np.argmax(m.scores[m.n_tokens - 1])))
        m.eval(out[-1:])
    return out


def widened(path, out):
    """The same model with every tensor as f32, written by the package gguf."""
    r = gguf.GGUFReader(path)
    w = gguf.GGUFWriter(out, "kimi-k3")
    for key, f in r.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind = f.types[0]
        sub = f.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        w.add_key_value(key, f.contents(), kind, sub_type=sub)
    for t in r.tensors:
        v = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        w.add_tensor(t.name, v.reshape([int(d) for d in reversed(t.shape)]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def against(llama_cpp, path, windows, mine):
    m = llama_cpp.Llama(path, n_ctx=512, n_batch=512, logits_all=True, verbose=False, flash_attn=False,
                        type_k=0, type_v=0)
    divs, top, same = [], [], 0
    for (ids, ref), text in zip(windows, mine):
        m.reset()
        m.eval(ids)
        b = np.array(m.scores[: len(ids)])
        divs.append(kl(ref, b))
        top.append(np.mean(ref.argmax(-1) == b.argmax(-1)))
        same += text == greedy_llama(m, ids[:32], GREEDY)
    d = np.concatenate(divs)
    line = (f"mean KL {d.mean():.2e}, p99 {np.quantile(d, 0.99):.2e}, same argmax {100 * np.mean(top):.2f} %, "
            f"{same} of {len(windows)} greedy texts of {GREEDY} tokens the same")
    return d.mean(), same, line


def run_llama(path, pack, text, tmp):
    try:
        import llama_cpp
    except ImportError:
        print("SKIP llama: the Python package llama-cpp-python is not installed")
        return
    sample = open(text, "rb").read().replace(b"\0", b"\n\n")[:200000]
    flat = os.path.join(tmp, "text")
    with open(flat, "wb") as f:
        f.write(sample)
    ids = [int(i) for i in sluice("tokenize", pack, "--file", flat).decode().strip().split(",")]
    m = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    check("ids", m.tokenize(sample, add_bos=False, special=False) == ids, "token ids differ")
    step = max(1, (len(ids) - WINDOW) // WINDOWS)
    windows, mine = [], []
    for w in range(WINDOWS):
        part = ids[w * step : w * step + WINDOW]
        windows.append((part, logits(pack, part, tmp)))
        out = sluice("run", pack, "--exact", "--ids", ",".join(map(str, part[:32])), "-n", GREEDY, "--temp", 0,
                     "--ignore-eos", "--json")
        mine.append(json.loads(out)["ids"][-GREEDY:])
    mean, same, line = against(llama_cpp, path, windows, mine)
    check("kl_as_exported", mean < 2e-3, line)
    print(f"  as exported: {line}")
    wide = os.path.join(tmp, "wide.gguf")
    widened(path, wide)
    mean, same, line = against(llama_cpp, wide, windows, mine)
    check("kl_widened", mean < 1e-4, line)
    check("greedy_widened", same == WINDOWS, line)
    print(f"  widened to f32: {line}")


def main():
    mini = os.path.join(SHARED, "models/k3-mini")
    model = sys.argv[1] if len(sys.argv) > 1 else mini if os.path.isdir(mini) else "models/k3-nano"
    text = os.path.join(SHARED, "text/valid.txt")
    text = text if os.path.exists(text) else "README.md"
    cfg = json.load(open(os.path.join(model, "config.json")))
    cfg = cfg.get("text_config", cfg)
    with tempfile.TemporaryDirectory() as tmp:
        pack, path, again = (os.path.join(tmp, n) for n in ("a.pack", "a.gguf", "b.pack"))
        sluice("convert", model, pack)
        sluice("export", pack, path, "--format", "gguf")
        compare_tensors(path, Checkpoint(model), cfg)
        sluice("convert", path, again)
        ids = list(range(5, 205))
        d = np.abs(log_softmax(logits(pack, ids, tmp)) - log_softmax(logits(again, ids, tmp))).max()
        check("import", d <= 2e-4, f"log-probabilities differ by {d:.1e}")
        print(f"  imported again: log-probabilities within {d:.1e}")
        run_llama(path, pack, text, tmp)


main()
