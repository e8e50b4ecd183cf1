# sluice calibrate, and convert --calib: same sums from any thread count and after a cut, statistics that
# lower the distance to the reference, refusals.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
IDS=$NANO/golden/valid-ids.u16
helps help calibrate

run calibrate "$P" --ids $IDS --tokens 3000 --window 256 -o "$T/a.stats" --json
check calibrates "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
check counts "$(json "$T/out" tokens) tokens" \
    [ "$(json "$T/out" tokens) $(json "$T/out" windows)" = "3000 12" ]
run calibrate "$P" --ids $IDS --tokens 3000 --window 256 -o "$T/b.stats" --threads 1 --chunk 64
check threads_do_not_matter "exit $status" [ "$status" = 0 ]
run calibrate "$P" --ids $IDS --tokens 3000 --window 256 -o "$T/c.stats" --threads 1 --chunk 64
check same_run_same_bytes "differ" cmp -s "$T/b.stats" "$T/c.stats"
run calibrate "$P" --ids $IDS --tokens 3000 --window 256 -o "$T/d.stats" --threads 3 --chunk 64
check same_bytes_for_any_threads "differ" cmp -s "$T/b.stats" "$T/d.stats"

# A killed run goes on from what it kept; here the kept file of a shorter run of the same command.
"$SLUICE" calibrate "$P" --ids $IDS --tokens 60000 --window 256 -o "$T/k.stats" >/dev/null 2>&1 &
sleep 1
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
check a_kill_leaves_no_result "k.stats exists" [ ! -e "$T/k.stats" ]

mkdir -p "$P/calib"
run calibrate "$P" --ids $IDS --tokens 4096 --window 256 --lookahead-only -o "$P/calib/lookahead.stats"
check fits_lookahead_maps "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
run run "$P" --ids 3840,395,3105 -n 12 --temp 0 --ignore-eos --json
cp "$T/out" "$T/off.json"
run run "$P" --ids 3840,395,3105 -n 12 --temp 0 --ignore-eos --json --lookahead on --stats "$T/ahead.json"
check lookahead_same_ids "$(json "$T/out" ids)" \
    [ "$(json "$T/out" ids)" = "$(json "$T/off.json" ids)" ]
check lookahead_is_counted "$(json "$T/ahead.json" lookahead right) right" \
    [ "$(json "$T/ahead.json" lookahead named)" -gt 0 -a "$(json "$T/ahead.json" lookahead right)" -gt 0 ]
refused lookahead_number 2 'lookahead' run "$P" --ids 1 -n 1 --lookahead 65
refused lookahead_memory 5 'look-ahead maps' calibrate "$P" --ids $IDS --tokens 512 --lookahead-only \
    --expert-memory 1000 -o "$T/x.stats"
rm -r "$P/calib"

refused no_output 2 '-o STATS is missing' calibrate "$P" --ids $IDS
refused no_input 2 'TEXT or --ids' calibrate "$P" -o "$T/x.stats"
refused no_text 3 'no-such' calibrate "$P" "$T/no-such.txt" -o "$T/x.stats"
refused no_pack 4 'no-such' calibrate "$T/no-such.pack" --ids $IDS -o "$T/x.stats"

# The router's load before and after: the same text through another pack.
run convert $NANO "$T/w16.pack" --experts w16
run calibrate "$T/w16.pack" --ids $IDS --tokens 3000 --window 256 -o "$T/w16.stats" --expert-memory 1
run health "$T/a.stats" "$T/a.stats" --json
check unchanged_loads_do_not_move "exit $status, moved $(json "$T/out" layers 0 moved)" \
    [ "$(json "$T/out" layers 2 moved)" = 0 ]
run health "$T/a.stats" "$T/w16.stats" --json
check loads_move "exit $status: $(head -c 200 "$T/err")" \
    awk -v m="$(json "$T/out" layers 2 moved)" 'BEGIN { exit !(m > 0 && m < 0.5) }'
run calibrate "$P" --ids $IDS --tokens 1024 --window 256 -o "$T/short.stats" --expert-memory 1
refused health_of_another_text 3 'another text' health "$T/a.stats" "$T/short.stats"
refused health_of_no_statistics 3 'no-such' health "$T/a.stats" "$T/no-such.stats"

run convert $NANO "$T/plain.pack" --experts w26
run convert $NANO "$T/cal.pack" --experts w26 --calib "$T/a.stats"
check converts "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
run verify "$T/cal.pack" --full
check verifies "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
run convert $NANO "$T/cal2.pack" --experts w26 --calib "$T/a.stats" --jobs 1
check same_bytes_for_any_jobs "differ" diff -r "$T/cal.pack" "$T/cal2.pack"
# Windows that calibration has not seen: tokens from 32768 on.
tail -c +65537 $IDS | head -c 2048 >"$T/test.u16"
run eval "$T/plain.pack" --ids "$T/test.u16" --ref "$P" --json
plain=$(json "$T/out" kl_mean)
run eval "$T/cal.pack" --ids "$T/test.u16" --ref "$P" --json
cal=$(json "$T/out" kl_mean)
check calibration_lowers_kl "plain $plain, calibrated $cal" \
    awk -v a="$plain" -v b="$cal" 'BEGIN { exit !(b > 0 && b < a) }'

refused lossless_needs_none 2 'lossless' convert $NANO "$T/x.pack" --experts m4 --calib "$T/a.stats"
head -c 5000 "$T/a.stats" >"$T/cut.stats"
refused cut_statistics 3 'cut.stats' convert $NANO "$T/x.pack" --experts w26 --calib "$T/cut.stats"
refused other_model 3 'a.stats' convert tests/fixtures/tiny-a "$T/x.pack" --experts w26 --calib "$T/a.stats"
check refusals_leave_nothing "x.pack exists" [ ! -e "$T/x.pack" ]
refused export_names_the_tensor 3 'experts' export "$T/cal.pack" "$T/x" --format hf

# One pass: --calib TEXT. Its bytes: tests/runtime/test_fused_calib.c; here what the command says and refuses.
printf 'One document.\0Another, of more words than the first.' >"$T/text.txt"
run calibrate "$P" "$T/text.txt" --exact --window 16 -o "$T/text.stats" --json
tokens=$(json "$T/out" tokens)
run convert $NANO "$T/one.pack" --experts w26 --calib "$T/text.txt" --window 16 --dry-run --json
check one_pass_reads_the_same_tokens "$(json "$T/out" calib_tokens), calibrate $tokens" \
    [ "$(json "$T/out" calib_tokens)" = "$tokens" ]
for key in calib_memory_bytes calib_job_bytes calib_scratch_bytes calib_seconds; do
    check "one_pass_prices_$key" "missing" [ -n "$(json "$T/out" $key)" ]
done
check one_pass_dry_run_writes_nothing "one.pack exists" [ ! -e "$T/one.pack" ]
run convert $NANO "$T/one.pack" --experts w26 --calib "$T/text.txt" --window 16
check one_pass "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
check one_pass_cleans_up "$(ls -A "$T/one.pack")" [ ! -e "$T/one.pack/.convert" ]
run convert $NANO "$T/two.pack" --experts w26 --calib "$T/text.stats"
check one_pass_is_two_steps "banks differ" diff -r "$T/one.pack/experts" "$T/two.pack/experts"
run verify "$T/one.pack" --full
check one_pass_verifies "exit $status" [ "$status" = 0 ]
refused no_text 3 'nothere' convert $NANO "$T/x.pack" --experts w26 --calib "$T/nothere"
: >"$T/empty.u16"
refused no_tokens 3 'holds no tokens' convert $NANO "$T/x.pack" --experts w26 --calib-ids "$T/empty.u16"
refused two_texts 2 'calib-ids' convert $NANO "$T/x.pack" --experts w26 --calib "$T/text.txt" --calib-ids $IDS
refused mix_needs_statistics 2 'mix' convert $NANO "$T/x.pack" --experts mix:2.6 --calib "$T/text.txt"
