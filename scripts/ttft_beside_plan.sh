#!/bin/sh
# Time to first token beside what `plan` said, on this machine: probe, then for each length plan and run.
#
#   sh scripts/ttft_beside_plan.sh PACK "100 4000 30000" [engine flags]
#
# Each run starts cold: an empty state, empty slots, and the pack's banks are read past the page cache. The
# prompt is made of ids drawn evenly. The context is the longest length unless --ctx is given. Lines are
# medians of ROUNDS runs (default 1); arms take turns.
set -eu
SLUICE=${SLUICE:-build/sluice}
ROUNDS=${ROUNDS:-1}
[ $# -ge 2 ] || { sed -n '4,8s/^# *//p' "$0" >&2; exit 2; }
pack=$1 lengths=$2
shift 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
longest=$(printf '%s\n' $lengths | sort -n | tail -n 1)
case " $* " in *" --ctx "*) ;; *) set -- --ctx $((longest + 2)) "$@" ;; esac

# value FILE KEY: a number at the top of a one-line JSON object.
value() { sed -n "s/.*\"$2\":\([-0-9.e+]*\).*/\1/p" "$1"; }
# prompt FILE N KEY: a number of plan's entry for N tokens.
prompt() { sed -n "s/.*{\"tokens\":$2,\([^}]*\)}.*/\1/p" "$1" | sed -n "s/.*\"$3\":\([-0-9.e+]*\).*/\1/p"; }
median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
ids() { # N ids below the vocabulary
    awk -v n="$1" -v v="$vocab" 'BEGIN { srand(7); for (i = 0; i < n; i++) printf "%s%d", i ? "," : "", int(rand() * v) }'
}

"$SLUICE" probe --path "$pack" -o "$dir/board.json" >"$dir/probe.txt" 2>&1
vocab=$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "$pack/pack.json" | head -n 1)
# Without what was read again for the slots' sake, behind the first token.
measured() {
    if [ "$2" = expert_bytes_read ]; then
        awk -v a="$(value "$1" "$2")" -v b="$(value "$1" expert_refill_bytes)" 'BEGIN { printf "%.0f", a - b }'
        echo
    else
        value "$1" "$2"
    fi
}
round=0
while [ $round -lt "$ROUNDS" ]; do
    for n in $lengths; do
        "$SLUICE" run "$pack" --ids "$(ids "$n")" -n 1 --ignore-eos --temp 0 \
            --stats "$dir/run-$n-$round.json" "$@" >/dev/null
    done
    round=$((round + 1))
done

"$SLUICE" --version
echo "flags: $*; rounds: $ROUNDS"
echo '| tokens | | planned | measured | planned is |'
echo '|---|---|---|---|---|'
for n in $lengths; do
    "$SLUICE" plan "$pack" --board "$dir/board.json" --tokens "$n" --json "$@" >"$dir/plan.json"
    row() { # name, key of plan, key of run, divisor
        m=$(for f in "$dir"/run-"$n"-*.json; do measured "$f" "$3"; done | median)
        awk -v n="$n" -v name="$1" -v p="$(prompt "$dir/plan.json" "$n" "$2")" -v m="$m" -v d="$4" \
            'BEGIN { printf "| %d | %s | %.4g | %.4g | %s |\n", n, name, p / d, m / d, (m > 0 ? sprintf("%+.1f %%", 100 * (p / m - 1)) : "") }'
    }
    row 'seconds to the first token' seconds prefill_seconds 1
    row 'GB of experts read' drive_bytes expert_bytes_read 1e9
    row 'sweeps' chunks prefill_chunks 1
    row 'GB lent' lent_bytes lent_peak_bytes 1e9
    for f in "$dir"/run-"$n"-0.json; do
        awk -v n="$n" -v p="$(value "$f" planned_peak_bytes)" -v m="$(value "$f" measured_peak_bytes)" \
            'BEGIN { printf "| %d | GB of memory at the peak | %.4g | %.4g | %+.1f %% |\n", n, p / 1e9, m / 1e9, 100 * (p / m - 1) }'
    done
done
