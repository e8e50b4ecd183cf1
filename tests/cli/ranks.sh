# Plans of ranks of a p36 pack: measured by calibrate --ranks, kept in pack.json, moved by --bits; the
# same logits for any chunk, threads, way of reading and look-ahead; bytes that follow the plan.
. tests/cli/lib/common.sh
nano_pack
REF=$T/nano.pack
IDS=$NANO/golden/valid-ids.u16
P=$T/p36.pack
run convert $NANO "$P" --experts p36
check converts "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]

refused bits_need_a_plan 2 'no plan of ranks between 2.125 and 3.125' run "$P" --ids 1 -n 1 --bits 2.6
refused bits_are_a_number 2 'bits' run "$P" --ids 1 -n 1 --bits much
refused ranks_need_a_reference 2 'go together' calibrate "$P" --ids $IDS --ranks
refused ranks_write_no_file 2 'writes into PACK' calibrate "$P" --ids $IDS --ranks --ref "$REF" -o "$T/x"
refused ranks_need_p36 2 'refinement' calibrate "$REF" --ids $IDS --ranks --ref "$REF" --tokens 512 --window 256
run run "$P" --ids 3840,395,3105 -n 4 --temp 0 --bits 2.125
check base_alone_needs_no_plan "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]

run calibrate "$P" --ids $IDS --ranks --ref "$REF" --tokens 256 --window 128 --bits 2.625 --json
check measures "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
check reaches_the_target "$(json "$T/out" bits) bits" \
    awk -v b="$(json "$T/out" bits)" 'BEGIN { exit !(b > 2.4 && b <= 2.625) }'
base=$(json "$T/out" points 0 kl)
plan=$(json "$T/out" kl)
check a_plan_is_nearer_than_the_base "base $base, plan $plan" \
    awk -v a="$base" -v b="$plan" 'BEGIN { exit !(b > 0 && b < a) }'
cp "$P/pack.json" "$T/first.json"
run calibrate "$P" --ids $IDS --ranks --ref "$REF" --tokens 256 --window 128 --bits 2.625 --threads 1 --chunk 100
check same_plan_for_any_threads "differ" cmp -s "$P/pack.json" "$T/first.json"
run verify "$P" --full
check verifies "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]

head -c 80 $IDS >"$T/some.u16"
run logits "$P" --exact --ids-file "$T/some.u16" --out "$T/want.f32"
check plan_is_the_default "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
for way in "--chunk 1 --threads 1" "--chunk 7" "--io pread --chunk 64" "--io mmap --chunk 33" \
    "--chunk 1 --lookahead 3"; do
    run logits "$P" --exact --ids-file "$T/some.u16" --out "$T/got.f32" $way
    check "same bits with $way" "exit $status, or other bits" cmp -s "$T/want.f32" "$T/got.f32"
done
for bits in 2.125 2.4 3.125; do
    run logits "$P" --exact --ids-file "$T/some.u16" --out "$T/$bits.f32" --bits $bits --chunk 1 --stats "$T/$bits.json"
    check "bits $bits" "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
    check "other bits at $bits" "same as the default" [ "$(cmp "$T/want.f32" "$T/$bits.f32" 2>&1)" != "" ]
done
used() { json "$T/$1.json" expert_bytes_read; }
check bytes_follow_the_plan "$(used 2.125), $(used 2.4), $(used 3.125)" \
    [ "$(used 2.125)" -lt "$(used 2.4)" -a "$(used 2.4)" -lt "$(used 3.125)" ]
run plan "$P" --board desktop-64 --json --bits 2.4
check plan_says_bits "$(json "$T/out" expert_bits)" \
    awk -v b="$(json "$T/out" expert_bits)" 'BEGIN { exit !(b > 2.2 && b <= 2.4) }'

sed 's/"ranks":{"version":1/"ranks":{"version":9/' "$T/first.json" >"$P/pack.json"
refused later_version 4 'ranks.version' run "$P" --ids 1 -n 1
