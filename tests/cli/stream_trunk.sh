# A trunk that does not fit streams: from the smallest --ram that works to all of it in memory, the same
# logits, with plan and run of one mind; the floor is named; a damaged trunk ends the run with exit 4.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
holds() { awk "BEGIN { exit !($1) }"; }
FLAGS="--ctx 64 --threads 2 --chunk 16"
IDS=5,900,31,17,2000,41,6,7,8,1024,3,3,99,1500,12,700,21,22,23,24
if "$SLUICE" --version | grep -q fsanitize; then
    skip stream_trunk "a sanitizer's own memory is in no plan"
    exit 0
fi

run logits "$P" --ids $IDS --out "$T/held.f32" $FLAGS --stats "$T/held.json"
check all_held "exit $status: $(head -c 300 "$T/err")" [ "$status" = 0 ]
check nothing_streams "$(json "$T/held.json" trunk_bytes_streamed)" \
    [ "$(json "$T/held.json" trunk_bytes_streamed)" = 0 ]

run logits "$P" --ids $IDS --out "$T/x.f32" $FLAGS --ram 1M
check refused "exit $status" [ "$status" = 5 ]
floor=$(sed -n 's/.*smallest that works: --ram \([0-9]*\).*/\1/p' "$T/err")
check floor_is_named "$(head -c 600 "$T/err")" [ -n "$floor" ]
check ring_is_a_term "$(head -c 600 "$T/err")" grep -q 'trunk ring ' "$T/err"

# Each start of the program measures itself anew: a page more or less.
last=1e18 least=0 n=0
for more in 300000 1500000 3000000 6000000 14000000; do
    ram=$((floor + more))
    for io in auto pread mmap; do
        run logits "$P" --ids $IDS --out "$T/x.f32" $FLAGS --ram $ram --io $io --stats "$T/s.json"
        check "runs_${more}_$io" "exit $status: $(head -c 300 "$T/err")" [ "$status" = 0 ]
        check "same_bits_${more}_$io" differ cmp -s "$T/held.f32" "$T/x.f32"
    done
    streamed=$(json "$T/s.json" trunk_bytes_streamed)
    check "fewer_streamed_$more" "$last to $streamed" holds "$streamed <= $last"
    planned=$(json "$T/s.json" planned_peak_bytes) measured=$(json "$T/s.json" measured_peak_bytes)
    check "inside_$more" "$planned of $ram" holds "$planned <= $ram"
    check "measured_is_planned_$more" "planned $planned, measured $measured" \
        holds "($measured - $planned) < 33554432 && ($planned - $measured) < 33554432"
    [ "$streamed" != 0 ] && n=$((n + 1))
    last=$streamed
done
check some_streamed "$n sizes" [ "$n" -ge 3 ]
check all_held_in_the_end "$last" [ "$last" = 0 ]

# What the plan says is what a token reads.
ram=$((floor + 1500000))
run run "$P" --ids 5 -n 21 --ignore-eos --temp 0 $FLAGS --ram $ram --stats "$T/small.json"
cp "$T/out" "$T/text"
fed=$(($(json "$T/small.json" prefill_tokens) + $(json "$T/small.json" decode_tokens)))
run run "$P" --ids 5 -n 21 --ignore-eos --temp 0 $FLAGS --stats "$T/held.json"
check same_text differ cmp -s "$T/out" "$T/text"
run plan "$P" $FLAGS --ram $ram --json
if [ "$status" = 0 ]; then
    planned=$(json "$T/out" trunk_streamed_bytes)
    # Two commands differ by the pages of their own code, which decide over a few of these small matrices.
    agreed=$(json "$T/small.json" trunk_bytes_per_pass)
    check plan_and_run_agree "$planned and $agreed" \
        holds "$planned - $agreed < 800000 && $agreed - $planned < 800000"
    measured=$(json "$T/small.json" trunk_bytes_streamed)
    # Pieces overlap by a page, and a ring of them is read ahead.
    check plan_names_the_bytes "planned $planned a token, measured $measured in $fed" \
        holds "$measured >= 0.8 * $planned * $fed && $measured < 1.4 * $planned * ($fed + 2)"
else
    fail plan_names_the_bytes "exit $status: $(head -c 300 "$T/err")"
fi

# Where the fault lies in what streams, the token ends there.
offset=$(tr ',' '\n' <"$P/pack.json" | grep -A4 'lm_head.weight' | sed -n 's/.*"offset":\([0-9]*\).*/\1/p' | head -n 1)
cp -r "$P" "$T/bad.pack"
printf '\377\377\377' | dd of="$T/bad.pack/trunk.bin" bs=1 seek=$((offset + 5000)) conv=notrunc 2>/dev/null
run logits "$T/bad.pack" --ids $IDS --out "$T/x.f32" $FLAGS --ram $((floor + 300000))
check damaged_is_exit_4 "exit $status: $(head -c 300 "$T/err")" [ "$status" = 4 ]
check damaged_is_named "$(head -c 300 "$T/err")" grep -q 'trunk.bin: lm_head.weight: crc32' "$T/err"
