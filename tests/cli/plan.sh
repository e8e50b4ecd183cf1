# sluice plan: the same groups as a run, refusals with every term, boards by name and by file, and what
# must hold between plans: more memory never means fewer slots or a slower token.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack

# A board that says what this test needs, and a smaller file than a released one.
cat >"$T/b.json" <<END
{"schema":1,"name":"b","title":"test board","measured":true,"source":"made up",
 "cpu":{"cores":2,"isa":"avx2","mul":[{"fmt":"m4","decode_gweights_per_s":20,"prefill_gweights_per_s":16}]},
 "memory":{"bytes":600000000000,"read_gbps":100,"numa_nodes":1,"unified":false},
 "drives":[{"name":"d","record_bytes":4096,"read":[{"depth":1,"gbps":2},{"depth":4,"gbps":5}]}],
 "power_w":100}
END

# ---- keys
run plan k3 --board "$T/b.json" --tokens 200 --json
cp "$T/out" "$T/k3.json"
check k3_plans "exit $status: $(head -c 300 "$T/err")" [ "$status" = 0 ]
for key in schema version commit flags isa threads pack board measured board_source experts trunk \
    pack_bytes limit_bytes planned_peak_bytes expert_slots slot_bytes ctx_tokens chunk_tokens \
    hit_rate_low hit_rate_high bytes_per_token expert_bytes_per_token trunk_bytes_per_token tok_per_s \
    tok_per_s_high_hits bound assumptions; do
    json "$T/k3.json" $key >/dev/null 2>&1 && ok "key_$key" || fail "key_$key" missing
done
for path in "groups 0 name" "groups 0 planned_bytes" "ttft_s 100" "ttft_s 4000" "ttft_s 200" \
    "stage_seconds attention" "stage_seconds experts" "stage_seconds waiting" "stage_seconds head" \
    "ceiling_seconds drive" "decode_per_million hours" "decode_per_million tb_read" \
    "decode_per_million kwh" "prefill_per_million hours"; do
    # shellcheck disable=SC2086
    json "$T/k3.json" $path >/dev/null 2>&1 && ok "key_${path// /_}" || fail "key_${path// /_}" missing
done
json "$T/k3.json" ttft_s 30000 >/dev/null 2>&1 && fail ttft_beyond_ctx "priced beyond the context" \
    || ok ttft_beyond_ctx

# ---- numbers that follow from others
num() { json "$1" $2; }
holds() { awk "BEGIN { exit !($1) }"; }
J=$T/k3.json
check hours_follow_from_rate "$(num $J 'decode_per_million hours') and $(num $J tok_per_s)" \
    holds "$(num $J 'decode_per_million hours') * $(num $J tok_per_s) * 3600 / 1e6 > 0.9999 && \
           $(num $J 'decode_per_million hours') * $(num $J tok_per_s) * 3600 / 1e6 < 1.0001"
check kwh_follow_from_hours "$(num $J 'decode_per_million kwh')" \
    holds "$(num $J 'decode_per_million kwh') / $(num $J 'decode_per_million hours') - 0.1 < 1e-9"
check drive_time_follows_from_bytes "$(num $J 'ceiling_seconds drive')" \
    holds "($(num $J bytes_per_token) / 5e9) / $(num $J 'ceiling_seconds drive') - 1 < 1e-6"
run plan k3 --board "$T/b.json" --hits 0 --json
check no_hits_read_all "$(json "$T/out" bytes_per_token)" \
    holds "$(json "$T/out" expert_bytes_per_token) - $(json "$T/out" bytes_per_token) < 100"
# m4: 16 of 896 records of 17,043,456 bytes in each of 92 layers.
check expert_bytes_of_a_token "$(json "$T/out" expert_bytes_per_token)" \
    [ "$(json "$T/out" expert_bytes_per_token)" = $((16 * 92 * 17043456)) ]
run plan k3 --board "$T/b.json" --experts mxfp4 --trunk bf16 --json
check formats_are_used "$(json "$T/out" expert_bytes_per_token)" \
    [ "$(json "$T/out" expert_bytes_per_token)" = $((16 * 92 * 17547264)) ]
check and_named "$(json "$T/out" experts)" \
    [ "$(json "$T/out" experts) $(json "$T/out" trunk)" = "mxfp4 bf16" ]

# ---- more memory: never fewer slots, never slower, never more bytes a token
last_slots=0 last_rate=0 last_bytes=1e30
for ram in 80G 100G 150G 300G 500G; do
    run plan k3 --board "$T/b.json" --ram $ram --json
    s=$(json "$T/out" expert_slots) r=$(json "$T/out" tok_per_s) b=$(json "$T/out" bytes_per_token)
    check "more_memory_$ram" "slots $last_slots to $s, tok/s $last_rate to $r, bytes $last_bytes to $b" \
        holds "$s >= $last_slots && $r >= $last_rate && $b <= $last_bytes"
    check "inside_$ram" "$(json "$T/out" planned_peak_bytes)" \
        holds "$(json "$T/out" planned_peak_bytes) <= ${ram%G}e9"
    last_slots=$s last_rate=$r last_bytes=$b
done

# ---- the plan of a pack is the plan of its run
run plan "$P" --board "$T/b.json" --ctx 64 --chunk 16 --threads 2 --json
cp "$T/out" "$T/plan.json"
run run "$P" -p 'The function' -n 2 --ctx 64 --chunk 16 --threads 2 --stats "$T/stats.json"
groups() {
    i=0
    while name=$(json "$1" groups $i name 2>/dev/null); do
        case $name in tokenizer | process) ;; *) echo "$name $(json "$1" groups $i planned_bytes)" ;; esac
        i=$((i + 1))
    done
}
groups "$T/plan.json" >"$T/g1"
groups "$T/stats.json" >"$T/g2"
check plan_is_what_run_uses "$(diff "$T/g1" "$T/g2" | tr '\n' ' ')" cmp -s "$T/g1" "$T/g2"
check and_has_groups "$(cat "$T/g1")" [ "$(wc -l <"$T/g1")" -ge 6 ]

# ---- refusals
refused too_small 5 'needs .* allowed are 2.00 GB .*trunk .* \+ .*KDA state .* \+ .*MLA cache .* \+ .*activations .* \+ .*expert slots .*smallest that works: --ram [0-9]+' \
    plan k3 --board "$T/b.json" --ram 2G
want=$(sed -n 's/.*--ram \([0-9]*\)$/\1/p' "$T/err")
run plan k3 --board "$T/b.json" --ram "$want"
check advice_works "--ram $want: exit $status, $(head -c 200 "$T/err")" [ "$status" = 0 ]
refused board_too_small 5 'this machine allows .* at most' plan k3 --board jetson-orin-nx-16 --ctx 400000
refused unknown_board 3 "no board 'none'; .*desktop-64, .*workstation-256" plan k3 --board none
printf '{"schema":1}' >"$T/bad.json"
refused damaged_board 3 "bad.json: name" plan k3 --board "$T/bad.json"
refused format_of_a_pack 2 "--experts is for k3" plan "$P" --board "$T/b.json" --experts m4
refused unknown_format 2 "unknown format 'q9'" plan k3 --board "$T/b.json" --experts q9
refused format_of_another_place 2 "--trunk: 'm4' is not a trunk format" \
    plan k3 --board "$T/b.json" --trunk m4
refused path_of_a_board 2 "--path is for this machine" plan k3 --board "$T/b.json" --path .
refused context_too_long 2 "--ctx" plan k3 --board "$T/b.json" --ctx 99999999
refused stats_without_a_run 2 "--stats needs a run" plan k3 --board "$T/b.json" --stats x
refused trace_without_a_run 2 "--trace needs a run" plan k3 --board "$T/b.json" --trace x
refused missing_pack 4 "no-such" plan "$T/no-such" --board "$T/b.json"
refused hits_out_of_range 2 "--hits" plan k3 --board "$T/b.json" --hits 2

# ---- text
run plan k3 --board "$T/b.json"
check text_has_the_table "$(head -c 300 "$T/out")" grep -q '^expert slots  *[0-9.]* GB' "$T/out"
check text_says_measured "$(head -n 2 "$T/out")" grep -q '(measured)' "$T/out"
