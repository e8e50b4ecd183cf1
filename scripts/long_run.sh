#!/usr/bin/env bash
# Long decoding, watched: TOKENS (200000) tokens on the small model by one process, in sequences of CTX
# (20000) with slots for a part of its experts; then the error beyond the context, and SESSIONS (24) mixed
# sessions saved and loaded.
#
#     scripts/long_run.sh [OUT]      a table in OUT (build/long_run.md); exit 1 when something drifts
#
# Watched by tests/embed/tool_long_run.c: memory of the process, the share of experts found in memory, and
# that every sequence gives the same tokens.
set -u
cd "$(dirname "$0")/.." || exit 1
out=${1:-build/long_run.md}
sluice=${SLUICE:-build/sluice}
tokens=${TOKENS:-200000} ctx=${CTX:-20000} sessions=${SESSIONS:-24}
T=$(mktemp -d "${TMPDIR:-/tmp}/sluice-long.XXXXXX") || exit 1
trap 'rm -rf "$T"' EXIT
bad=0
say() { echo "$*" | tee -a "$out"; }
wrong() { say "WRONG: $*"; bad=1; }

make all build/tests/embed/tool_long_run >/dev/null || exit 1
"$sluice" convert models/k3-nano "$T/p" >/dev/null || exit 1
build/tests/embed/tool_long_run "$T/p" "$tokens" "$ctx" "$ctx" "${RAM_MB:-120}" >"$out" 2>"$T/err" ||
    wrong "long run: $(head -c 300 "$T/err")"
cat "$out"

# The limit of the context, and the error after it.
"$sluice" run "$T/p" --ctx 300 -p "The" -n 299 --ignore-eos --seed 3 >"$T/full" 2>"$T/err" ||
    wrong "a context filled to its limit: $(cat "$T/err")"
head -c 4000 README.md >"$T/prompt"
"$sluice" run "$T/p" --ctx 300 --prompt-file "$T/prompt" -n 1 >/dev/null 2>"$T/err"
[ $? = 5 ] || wrong "a prompt beyond the context exits with $?: $(cat "$T/err")"
say
say "beyond the context: $(cat "$T/err")"

# Mixed sessions: half a text saved, others in between, the other half must be that of one run.
for i in $(seq 1 "$sessions"); do
    "$sluice" run "$T/p" -p "Text $i is" -n 20 --ignore-eos --temp 0 >"$T/whole.$i" 2>/dev/null
    "$sluice" run "$T/p" -p "Text $i is" -n 10 --ignore-eos --temp 0 --save-state "$T/s.$i" >"$T/a.$i" 2>/dev/null
done
for i in $(seq "$sessions" -1 1); do
    "$sluice" run "$T/p" --load-state "$T/s.$i" -n 10 --ignore-eos --temp 0 >"$T/b.$i" 2>"$T/err"
    [ "$(cat "$T/a.$i" "$T/b.$i" | tr -d '\n')" = "$(tr -d '\n' <"$T/whole.$i")" ] ||
        wrong "session $i goes on differently: $(head -c 200 "$T/err")"
done
say "$sessions sessions saved, loaded in another order, same text: $([ $bad = 0 ] && echo yes || echo see above)"
exit $bad
