#!/usr/bin/env python3
"""Runs the program on the full-size layout and compares every total with what is published.

    check_totals.py SLUICE DIR      DIR as written by make_sparse.py

Prints ok, FAIL and SKIP lines, and figures behind "#". Peak memory is the kernel's count for the child
process. The expected numbers come from the description of the release, none from the program; sizes of
packs, which the release cannot know, are bounded by its parameter counts and must agree between
inspect, which prices them from the config, and convert --dry-run, which lays them out.
"""
import json
import os
import subprocess
import sys
import time

GIB = 1 << 30
SLUICE, DIR = sys.argv[1], sys.argv[2]
failures = 0


def say(name, good, why=""):
    global failures
    failures += not good
    print(f"ok {name}" if good else f"FAIL {name}: {why}", flush=True)


def equal(name, found, wanted):
    say(name, found == wanted, f"{found}, expected {wanted}")


def run(name, *args):
    """The JSON report of one command; its time and peak memory are checked and printed."""
    start = time.monotonic()
    child = subprocess.Popen([SLUICE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = child.stdout.read(), child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start
    if child.returncode:
        say(name, False, f"exit status {child.returncode}: {err.decode(errors='replace')[:300]}")
        return None
    report = json.loads(out)
    peak = usage.ru_maxrss * 1024
    print(f"# {name}: {seconds:.1f} s, peak {peak / 1e6:.0f} MB")
    if "fsanitize" in report["flags"]:
        print(f"SKIP {name}_memory: a sanitizer multiplies it")
    else:
        say(f"{name}_memory", peak < GIB, f"peak {peak} bytes, 1 GiB allowed")
    return report


def check_inspect(r):
    equal("shards", r["shards"], 96)
    equal("tensors", r["tensors"], 497_220)
    equal("payload_bytes", r["payload_bytes"], 1_560_860_324_864)
    equal("file_bytes", r["file_bytes"], 1_560_936_091_448)
    equal("layers", r["layers"], {"total": 93, "kda": 69, "mla": 24, "dense": 1, "moe": 92})
    types = {k: v["tensors"] for k, v in r["dtypes"].items() if v["tensors"]}
    equal("tensors_by_type", types, {"BF16": 2_122, "F32": 506, "U8": 494_592})
    equal("bf16_params", r["dtypes"]["BF16"]["params"], 57_179_884_544)
    equal("f32_params", r["dtypes"]["F32"]["params"], 11_122_432)
    equal("mxfp4_params", r["groups"]["expert"]["params"], 2_722_740_830_208)
    groups = {"kda": 30_607_048_704, "mla": 5_572_657_152, "latent": 4_726_980_608,
              "shared": 12_155_092_992, "router": 590_872_576, "dense": 726_663_168,
              "embed": 1_174_405_120, "head": 1_174_405_120}
    for name, params in groups.items():
        g = r["groups"][name]
        equal(f"group_{name}", (g["params"], g["bytes"]), (params, 2 * params))
    assert sum(groups.values()) == 56_728_125_440
    equal("small_bf16", r["vectors"]["bf16"]["params"], 4_400_128)
    equal("small_f32", r["vectors"]["f32"]["params"], 11_122_432)
    equal("active_params", r["active_params"], 104_174_092_288)
    equal("experts", r["experts"], {"total": 82_432, "expert_bytes": 17_547_264})
    equal("expert_bytes", r["groups"]["expert"]["bytes"], 82_432 * 17_547_264)
    kinds = {k: (v["layers"], v["bytes"]) for k, v in r["layer_kinds"].items() if v["layers"]}
    equal("bytes_by_layer_kind", kinds, {
        "dense+kda": (1, 2_341_213_184), "moe+kda": (68, 68 * 16_990_092_800),
        "moe+mla": (24, 24 * 16_566_684_160)})
    equal("vision_bytes", r["groups"]["vision"]["bytes"], 92_289_024 + 802_428_928)


def near(name, found, low, slack):
    """At least the bytes that must be there, at most padding more."""
    say(name, low <= found <= low + slack, f"{found}, expected {low} and at most {slack} more")


def check_dry_run(name, r, inspect, experts, trunk):
    equal(f"{name}_source_bytes", r["source_bytes"], 1_560_936_091_448)
    equal(f"{name}_bank_bytes", r["bank_bytes"], inspect["pack"][f"banks_{experts}_bytes"])
    equal(f"{name}_trunk_bytes", r["trunk_bytes"], inspect["pack"][f"trunk_{trunk}_bytes"])
    near(f"{name}_vision_bytes", r["vision_bytes"], 894_717_952, 168 * 4096)
    parts = sum(r[k] for k in ("trunk_bytes", "bank_bytes", "vision_bytes", "other_bytes"))
    equal(f"{name}_total_is_the_sum", r["total_bytes"], parts)
    # Files take whole blocks of the file system, so that a little more is missing than bytes differ.
    lack = max(0, r["total_bytes"] - r["free_bytes"])
    near(f"{name}_missing_bytes", r["missing_bytes"], lack, 1 << 20)
    equal(f"{name}_experts", (r["experts"], r["banks"]), (82_432, 92))


def check_pack_sizes(r):
    matrices, small = 2 * 56_728_125_440, 2 * 4_400_128 + 4 * 11_122_432
    near("trunk_bf16", r["pack"]["trunk_bf16_bytes"], matrices + small, 2_628 * 4096)
    # 34 bytes for 32 weights, except routers, decay and beta projections, which stay bf16.
    plain = 590_872_576 + 69 * (917_504 + 1_572_864 + 688_128)
    low = (56_728_125_440 - plain) // 32 * 34 + 2 * plain + small
    near("trunk_t8", r["pack"]["trunk_t8_bytes"], low, 2_628 * 4096)
    near("bank_mxfp4", r["pack"]["bank_mxfp4_bytes"], 896 * 17_547_264, 1 << 20)
    # m4: half a byte a weight, half a byte a block of 32, a byte a row; records padded to pages.
    record = 33_030_144 // 2 + 33_030_144 // 64 + 3_072 + 3_072 + 3_584
    near("bank_m4", r["pack"]["bank_m4_bytes"], 896 * record, (1 << 20) + 896 * (4096 + 9 * 64))


def main():
    r = run("inspect", "inspect", DIR, "--json")
    if r:
        check_inspect(r)
        check_pack_sizes(r)
    for experts, trunk in (("m4", "bf16"), ("mxfp4", "t8")):
        name = f"dry_run_{experts}_{trunk}"
        out = os.path.join(os.path.dirname(DIR), "never.pack")
        d = run(name, "convert", DIR, out, "--experts", experts, "--trunk", trunk, "--dry-run", "--json")
        if d and r:
            check_dry_run(name, d, r, experts, trunk)
        say(f"{name}_writes_nothing", not os.path.lexists(out), f"{out} exists")
    sys.exit(failures != 0)


main()
