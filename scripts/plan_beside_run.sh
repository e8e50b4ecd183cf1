#!/bin/sh
# What `plan` said beside what a run did, on this machine, minutes apart: probe, run, plan, one table.
#
#   sh scripts/plan_beside_run.sh PACK N [engine flags]
#
# N tokens are decoded after a prompt of two, the warm-up. Bytes are of experts and, where it streams, of the
# trunk. The plan is given the hit rate that the run had: how often
# experts repeat is a property of the text, not of the machine. Everything else is predicted from the
# probe. The pack's own bank is read by the probe; banks below 256 MiB: a temporary file beside it.
set -eu
SLUICE=${SLUICE:-build/sluice}
[ $# -ge 2 ] || { sed -n '4s/^# *//p' "$0" >&2; exit 2; }
pack=$1 n=$2
shift 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# value FILE KEY [KEY]: a number of a one-line JSON object, nested one level at most.
value() {
    if [ $# = 3 ]; then
        sed -n "s/.*\"$2\":{\([^}]*\)}.*/\1/p" "$1" | sed -n "s/.*\"$3\":\([-0-9.e+]*\).*/\1/p"
    else
        sed -n "s/.*\"$2\":\([-0-9.e+]*\).*/\1/p" "$1"
    fi
}

"$SLUICE" probe --path "$pack" -o "$dir/board.json"
"$SLUICE" run "$pack" --ids 1,2 -n $((n + 1)) --ignore-eos --temp 0 --stats "$dir/run.json" "$@" >/dev/null
hits=$(awk -v h="$(value "$dir/run.json" expert_hits)" -v m="$(value "$dir/run.json" expert_misses)" \
    'BEGIN { printf "%.6f", (h + m > 0 ? h / (h + m) : 0) }')
"$SLUICE" plan "$pack" --board "$dir/board.json" --hits "$hits" --json "$@" >"$dir/plan.json"

row() { # name, planned, measured
    awk -v n="$1" -v p="$2" -v m="$3" \
        'BEGIN { printf "| %s | %.4g | %.4g | %s |\n", n, p, m, (m > 0 ? sprintf("%+.1f %%", 100 * (p / m - 1)) : "") }'
}
per_token() { awk -v v="$1" -v t="$2" 'BEGIN { print (t > 0 ? v / t : 0) }'; }
tokens=$(value "$dir/run.json" decode_tokens)
all=$(awk -v a="$tokens" -v b="$(value "$dir/run.json" prefill_tokens)" 'BEGIN { print a + b }')

"$SLUICE" --version
echo "hit rate of the run: $hits; $tokens tokens decoded; flags: $*"
echo '| | planned | measured | planned is |'
echo '|---|---|---|---|'
row 'tokens a second' "$(value "$dir/plan.json" tok_per_s)" "$(value "$dir/run.json" decode_tok_per_s)"
# The prompt's tokens share their passes over the trunk.
per_pass=$(value "$dir/run.json" trunk_bytes_per_pass)
experts=$(awk -v b="$(value "$dir/run.json" expert_bytes_read)" -v n="$all" 'BEGIN { print b / n / 1e9 }')
trunk=$(awk -v b="$(value "$dir/run.json" trunk_bytes_streamed)" -v n="$tokens" 'BEGIN { print b / (n + 1) / 1e9 }')
row 'GB a token from the drive' "$(per_token "$(value "$dir/plan.json" bytes_per_token)" 1e9)" \
    "$(awk -v a="$experts" -v b="$trunk" 'BEGIN { print a + b }')"
[ "${per_pass:-0}" = 0 ] ||
    row 'of these trunk, GB' "$(per_token "$(value "$dir/plan.json" trunk_streamed_bytes)" 1e9)" "$trunk"
for stage in attention experts waiting head; do
    row "$stage, s a token" "$(value "$dir/plan.json" stage_seconds $stage)" \
        "$(per_token "$(value "$dir/run.json" decode_stage_seconds $stage)" "$tokens")"
done
row 'drive busy share' \
    "$(awk -v d="$(value "$dir/plan.json" ceiling_seconds drive)" -v t="$(value "$dir/plan.json" tok_per_s)" 'BEGIN { print d * t }')" \
    "$(value "$dir/run.json" decode_drive_busy_share)"
row 'peak memory, GB' "$(per_token "$(value "$dir/run.json" planned_peak_bytes)" 1e9)" \
    "$(per_token "$(value "$dir/run.json" measured_peak_bytes)" 1e9)"
