"""Packed products beside ggml's nearest types, on one core, in turns; beside what memory gives.

Runs tests/kernels/tool_peer_rates over the ggml libraries that llama-cpp-python carries, then `sluice probe`
for the read rate of memory. Rates are printed, not judged: they belong to the machine. What is checked: every
pair of types that the library knows was measured, with rates above 0 and the bits that the formats have.

    python3 tests/crosscheck/ggml_rates.py [-o TABLE.md]

$GGML_LIBS: a folder with libggml-base.so and libggml-cpu.so, in place of the package's. $SLUICE_ISA caps ours
(c, avx2, avx512). Kernels alone in turns: ratios hold on a busy machine, rates do not.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile

SLUICE = os.environ.get("SLUICE", "build/sluice")
TOOL = os.path.join(os.environ.get("BUILD", "build"), "tests/kernels/tool_peer_rates")
BITS = {"w16": 1.125, "w26": 2.125, "w36": 3.125, "m4": 4.125, "mxfp4": 4.25, "t4": 4.5, "t6": 6.5, "t8": 8.5}


def check(name, ok, why=""):
    print(f"ok {name}" if ok else f"FAIL {name}: {why}")
    return ok


def libraries():
    folder = os.environ.get("GGML_LIBS")
    if not folder:
        spec = importlib.util.find_spec("llama_cpp")
        folder = os.path.join(os.path.dirname(spec.origin), "lib") if spec and spec.origin else ""
    pair = [os.path.join(folder, f) for f in ("libggml-base.so", "libggml-cpu.so")]
    return pair if all(map(os.path.exists, pair)) else None


def rows(text):
    for line in text.splitlines():
        cells = [c.split() for c in line.split("|")]
        if len(cells) == 6 and len(cells[0]) == 4 and cells[0][0] in BITS:
            yield cells


def table(measured, isa, memory):
    lines = [
        f"ISA {isa}, one core; memory read by one thread {memory:.1f} GB/s.",
        "",
        "| ours | bits | theirs | bits | a8: G weights/s, GB/s | a8x2 | exact f32 | theirs | a8 / theirs | a8x2 / theirs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in measured:
        lines.append("| " + " | ".join([r[0][0], r[0][2], r[0][1], r[0][3], ", ".join(r[1]), ", ".join(r[2]),
                                        ", ".join(r[3]), ", ".join(r[4]), r[5][0], r[5][1]]) + " |")
    return "\n".join(lines)


def main():
    libs = libraries()
    if not libs:
        print("SKIP ggml_rates: no ggml libraries: llama-cpp-python is not installed and GGML_LIBS is not set")
        return 0
    if not os.path.exists(TOOL):
        print(f"SKIP ggml_rates: {TOOL} is not built")
        return 0
    run = subprocess.run([TOOL, *libs, "31"], capture_output=True, text=True)
    if run.returncode == 3:
        print(f"SKIP ggml_rates: {run.stderr.strip()}")
        return 0
    good = check("runs", run.returncode == 0, run.stderr.strip())
    measured = list(rows(run.stdout))
    asked = [l for l in run.stdout.splitlines() if l.split() and l.split()[0] in BITS]
    good &= check("every_row_is_read", len(measured) == len(asked) > 0, run.stdout)
    for r in measured:
        rates = [float(v) for cell in r[1:5] for v in cell]
        bits = float(r[0][2])
        good &= check(f"{r[0][0]}_beside_{r[0][1]}", min(rates) > 0 and abs(bits - BITS[r[0][0]]) < 0.01 * bits,
                      f"rates {rates}, bits {bits}")
    with tempfile.TemporaryDirectory() as folder:
        probe = subprocess.run([SLUICE, "probe", "--path", folder, "--quick", "--threads", "1", "--json"],
                               capture_output=True, text=True)
        good &= check("probe", probe.returncode == 0, probe.stderr.strip())
        if probe.returncode:
            return 1
        found = json.loads(probe.stdout)
    memory = found["board"]["memory"]["read_gbps"]
    good &= check("memory_rate", memory > 0, str(memory))
    text = table(measured, re.sub(r"[^a-z0-9+]", "", found["isa"]), memory)
    if "-o" in sys.argv:
        with open(sys.argv[sys.argv.index("-o") + 1], "w") as f:
            f.write(text + "\n")
    else:
        sys.stderr.write(text + "\n")
    return 0 if good else 1


sys.exit(main())
