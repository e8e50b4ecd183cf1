# sluice replay and --trace: a traced run is replayed to the same counts, tables and JSON agree, and
# what is no trace is refused.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack

# ---- a run that decodes from its first token on: chunks of one
# with a few slots more than a step needs, so that experts come and go.
run plan "$P" --chunk 1 --ctx 64 --json
all=$(json "$T/out" expert_slots) slot=$(json "$T/out" slot_bytes)
ram=$(($(json "$T/out" planned_peak_bytes) - (all - 24) * slot))
run run "$P" --ids 3840,395,3105 -n 40 --ignore-eos --temp 0 --chunk 1 --ctx 64 --ram $ram \
    --trace "$T/a.trace" --stats "$T/stats.json"
check traced_run "exit $status: $(head -c 300 "$T/err")" [ "$status" = 0 ]
check trace_is_there "no file" [ -s "$T/a.trace" ]
check no_temporary_left "found one" [ ! -e "$T/a.trace.tmp" ]
[ "$(head -c 8 "$T/a.trace")" = SLTRACE1 ] && ok magic || fail magic "$(head -c 8 "$T/a.trace")"

slots=$(json "$T/stats.json" expert_slots)
hits=$(json "$T/stats.json" expert_hits)
misses=$(json "$T/stats.json" expert_misses)
# The process is measured, and between two starts a sanitizer's part of it differs by more than 24 slots.
if "$SLUICE" --version | grep -q fsanitize; then
    skip some_come_and_go "a sanitizer's own memory is in no plan"
else
    check some_come_and_go "$slots slots of $all" [ "$slots" -lt "$all" ]
fi
policy=$(json "$T/stats.json" evict)
run replay "$T/a.trace" --cache "$slots" --json
cp "$T/out" "$T/r.json"
check replays "exit $status: $(head -c 300 "$T/err")" [ "$status" = 0 ]
check all_requests "$(json "$T/r.json" requests) of $((hits + misses))" \
    [ "$(json "$T/r.json" requests)" = $((hits + misses)) ]
rate=$(json "$T/r.json" points 0 "${policy}_hit_rate")
check same_hits "rate $rate, counted $hits of $((hits + misses))" \
    awk "BEGIN { exit !($rate * ($hits + $misses) - $hits < 0.01 && $hits - $rate * ($hits + $misses) < 0.01) }"

# ---- sizes, table, picture
run replay "$T/a.trace" --cache 10 --cache 20KiB --record 1024 --svg "$T/r.svg"
check table "exit $status: $(head -c 300 "$T/err")" [ "$status" = 0 ]
for word in lrfu lru belady slots; do
    grep -q $word "$T/out" && ok "table_$word" || fail "table_$word" "$(cat "$T/out")"
done
grep -qE '^ +10 ' "$T/out" && grep -qE '^ +20 ' "$T/out" && ok slots_and_bytes \
    || fail slots_and_bytes "$(cat "$T/out")"
[ "$(grep -c '<polyline' "$T/r.svg")" = 3 ] && grep -q '</svg>' "$T/r.svg" && ok picture \
    || fail picture "$(head -c 300 "$T/r.svg")"

refused no_such_trace 3 "nowhere" replay "$T/nowhere"
refused not_a_trace 3 "not a route trace" replay "$P/pack.json"
refused bytes_without_record 2 "needs --record" replay "$T/a.trace" --cache 8G
refused no_slots 2 "neither slots nor" replay "$T/a.trace" --cache 0
head -c 50 "$T/a.trace" >"$T/cut.trace"
refused cut_trace 3 "ends inside a record" replay "$T/cut.trace"
refused trace_nowhere 4 "/nonexistent/t" run "$P" --ids 1 -n 1 --trace /nonexistent/t
refused unknown_policy 2 "fifo" run "$P" --ids 1 -n 1 --evict fifo
