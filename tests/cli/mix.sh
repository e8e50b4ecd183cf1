# Mixed packs: formats chosen by expert and matrix for a target of bits, the same bytes for any --jobs and
# after a kill, a report that says what was chosen, refusals.
. tests/cli/lib/common.sh
A=tests/fixtures/tiny-a
REF=$T/ref.pack
run convert $A "$REF"
check has_a_reference "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
IDS=$T/ids.txt
awk 'BEGIN { x = 7; for (i = 0; i < 1024; i++) { x = (x * 1103 + 12345) % 65536; printf "%d,", x % 300 } print 5 }' >"$IDS"
run calibrate "$REF" --ids "$IDS" --window 256 -o "$T/c.stats" --expert-memory 1
check calibrates "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
run calibrate "$REF" --ids "$IDS" --tokens 256 --window 128 --sensitivity -o "$T/s.stats" --json
check measures_sensitivity "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
check sensitivities_are_positive "$(json "$T/out" layers 0 sensitivity)" \
    awk -v s="$(json "$T/out" layers 0 sensitivity)" 'BEGIN { exit !(s > 0) }'
run calibrate "$REF" --ids "$IDS" --tokens 256 --window 128 --sensitivity -o "$T/s1.stats" --threads 1 --chunk 50
check sensitivity_same_bytes_for_any_threads "differ" cmp -s "$T/s.stats" "$T/s1.stats"

P=$T/mix.pack
run convert $A "$P" --experts mix:1.6 --calib "$T/c.stats" --sensitivity "$T/s.stats" --json
check converts "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
cp "$T/out" "$T/report.json"
check meets_the_target "$(json "$T/out" mix stored_bits) bits" \
    awk -v b="$(json "$T/out" mix stored_bits)" 'BEGIN { exit !(b > 1.59 && b <= 1.6) }'
check cold_experts_get_fewer_bits "read $(json "$T/out" mix read_bits), stored $(json "$T/out" mix stored_bits)" \
    awk -v r="$(json "$T/out" mix read_bits)" -v s="$(json "$T/out" mix stored_bits)" 'BEGIN { exit !(r > s) }'
run verify "$P" --full
check verifies "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
run inspect "$P" --json
check inspects "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
check is_named_mix "$(json "$T/out" experts_format)" [ "$(json "$T/out" experts_format)" = mix ]
run convert $A "$T/one.pack" --experts mix:1.6 --calib "$T/c.stats" --sensitivity "$T/s.stats" --jobs 1
check same_bytes_for_any_jobs "exit $status, or differ" diff -r "$P" "$T/one.pack"
check the_table_says_what_and_why "no table" grep -q '^mix of 1.6 bits: .* stored, .* read a token; estimate' "$T/out"
run convert "$REF" "$T/re.pack" --experts mix:1.6 --calib "$T/c.stats" --sensitivity "$T/s.stats"
check same_bytes_from_a_lossless_pack "exit $status, or differ" diff -r "$P" "$T/re.pack"

# Killed half way: the formats are in the journal.
"$SLUICE" convert $A "$T/cut.pack" --experts mix:1.6 --calib "$T/c.stats" --sensitivity "$T/s.stats" --jobs 1 \
    >/dev/null 2>&1 &
pid=$!
for i in $(seq 1 600); do
    ls "$T/cut.pack/experts/"*.bank >/dev/null 2>&1 && break
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
done
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
run convert $A "$T/cut.pack" --experts mix:1.6 --calib "$T/c.stats" --sensitivity "$T/s.stats"
check resumes_to_the_same_bytes "exit $status: $(head -c 200 "$T/err")" diff -r "$P" "$T/cut.pack"

run eval "$P" --ids "$IDS" --ref "$REF" --windows 1 --json
kl=$(json "$T/out" kl_mean)
check is_a_model "kl $kl" awk -v k="$kl" 'BEGIN { exit !(k > 0 && k < 3) }'

refused needs_statistics 2 'calib' convert $A "$T/x.pack" --experts mix:2
refused below_the_smallest 2 'mix:1 is not from 1.125 to 3.125' convert $A "$T/x.pack" --experts mix:1 --calib "$T/c.stats"
refused no_number 2 'mix:' convert $A "$T/x.pack" --experts mix:two --calib "$T/c.stats"
refused sensitivity_is_for_a_mix 2 'sensitivity' convert $A "$T/x.pack" --experts w26 --calib "$T/c.stats" --sensitivity "$T/s.stats"
refused not_sensitivities 3 'sensitivity' convert $A "$T/x.pack" --experts mix:2 --calib "$T/c.stats" --sensitivity "$T/c.stats"
check refusals_leave_nothing "x.pack exists" [ ! -e "$T/x.pack" ]
