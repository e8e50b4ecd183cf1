#!/bin/sh
# Writes docs/boards.md: what `plan` says about the released model on every board, with its recipe.
# Argument: output file (default docs/boards.md). The test of the same name checks that it is current.
set -u
SLUICE=${SLUICE:-build/sluice}
out=${1:-docs/boards.md}
order="jetson-orin-nx-16 jetson-agx-orin-64 jetson-agx-thor-128 desktop-64 desktop-192 workstation-256
server-512"

value() { sed -n "s/^ *\"$2\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "boards/$1.json" | head -n 1; }
# The source is one string that holds commas.
source_of() { sed -n 's/^ *"source": "\(.*\)",$/\1/p' "boards/$1.json"; }
title_of() { sed -n 's/^ *"title": "\(.*\)",$/\1/p' "boards/$1.json"; }

{
    cat <<'END'
# Boards

What `sluice plan k3 --board NAME` says about the released model (2.78 T parameters) on seven machine
classes. This file is written by `scripts/boards.sh`; a test keeps it current.

**Predicted, not measured.** The boards hold public specifications, each with its source. Vendors' peak
figures stand for drives and memory, so the predictions are upper bounds for those two. Arithmetic is
assumed a core, as each plan says. Everything is the CPU path: this build does not use a GPU, and a
figure for the GPU path would be invented.

How to read a plan:

- *found in memory* is a range, look-ahead off. Below: every expert equally likely, so the share of
  records that have a slot. Above: the largest of that share, the hit rate of k3-mini's routes at that
  share (replayed with the default policy: 16 % at 1/16, 27 % at 1/8, 45 % at 1/4, 71 % at 1/2), and,
  where one token's 1,472 records have slots, the public figure for reuse from one token to the next
  (29.5 %).
- *bound by* is the ceiling that is highest alone. The stages add up as the engine runs them, so a token
  takes longer than any one ceiling.
- A refusal is what `run` would say, with every term.
- For your own machine: `sluice probe --path DRIVE -o here.json`, then
  `sluice plan k3 --board here.json`. A measured board replaces every assumption above.
- To hold a prediction against a run: `sh scripts/plan_beside_run.sh PACK N [engine flags]`. Small models
  come out slower than planned: handing work to threads is not in the model, and there it is most of
  the time.
END
    for b in $order; do
        printf '\n## %s\n\n%s\n\n' "$(title_of "$b")" "$(source_of "$b")"
        printf 'Recipe: `--experts %s --trunk %s --ram %s --ctx %s`\n\n' "$(value "$b" experts)" \
            "$(value "$b" trunk)" "$(value "$b" ram_bytes)" "$(value "$b" ctx)"
        # shellcheck disable=SC2016
        printf '```\n$ sluice plan k3 --board %s\n' "$b"
        "$SLUICE" plan k3 --board "$b" 2>&1 | fold -s -w 110 | sed 's/ *$//'
        printf '```\n'
    done
} >"$out.tmp" && mv "$out.tmp" "$out"
