# sluice eval: the golden windows, comparison with a reference pack, input rules, refusals.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
G=$NANO/golden
# near A B RELATIVE
near() { awk -v a="$1" -v b="$2" -v r="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(d <= r * b) }'; }

run eval "$P" --ids $G/valid-ids.u16 --stride 4096 --window 256 --windows 8 --exact --json
check json_is_valid "exit $status: $(head -c 200 "$T/err")" json "$T/out"
want=$(json $G/nll-8x256.json perplexity)
got=$(json "$T/out" ppl)
check golden_perplexity "$got, expected $want within 0.05 %" near "$got" "$want" 0.0005
check counts "$(json "$T/out" tokens) tokens" \
    [ "$(json "$T/out" tokens) $(json "$T/out" windows) $(json "$T/out" predictions)" = "2048 8 2040" ]
# top-1 of the whole is the mean over the windows, all of one length
hits=0
for i in 0 1 2 3 4 5 6 7; do
    hits=$(awk -v h="$hits" -v x="$(json $G/nll-8x256.json windows $i top1_accuracy)" 'BEGIN { print h + x / 8 }')
done
check golden_top1 "$(json "$T/out" top1_text), expected $hits" near "$(json "$T/out" top1_text)" "$hits" 0.004

# One window at a time gives the golden numbers of that window.
head -c 512 $G/valid-ids.u16 >"$T/first.u16"
run eval "$P" --ids "$T/first.u16" --json
check first_window "$(json "$T/out" nll_mean)" \
    near "$(json "$T/out" nll_mean)" "$(json $G/nll-8x256.json windows 0 mean_nll)" 0.0002

# A pack compared with itself is at distance 0; with its 8-bit trunk it is near, not equal.
run eval "$P" --ids "$T/first.u16" --window 64 --ref "$P" --exact --json
check itself_is_at_distance_0 "kl $(json "$T/out" kl_mean)" \
    [ "$(json "$T/out" kl_mean) $(json "$T/out" kl_p99) $(json "$T/out" ppl_ratio) $(json "$T/out" top1)" = "0 0 1 1" ]
check itself_flips_nothing "$(json "$T/out" flips)" [ "$(json "$T/out" flips)" = 0 ]
run convert $NANO "$T/t8.pack" --trunk t8
run eval "$T/t8.pack" --ids "$T/first.u16" --window 64 --ref "$P" --json
check t8_trunk_is_near "kl $(json "$T/out" kl_mean)" \
    awk -v k="$(json "$T/out" kl_mean)" -v t="$(json "$T/out" top1)" 'BEGIN { exit !(k > 0 && k < 0.05 && t > 0.9) }'
check p99_is_above_the_mean "p99 $(json "$T/out" kl_p99)" \
    awk -v k="$(json "$T/out" kl_mean)" -v p="$(json "$T/out" kl_p99)" 'BEGIN { exit !(p > k) }'
cp "$T/out" "$T/t8.json"
check flips_are_few_and_there "$(json "$T/out" flips)" \
    awk -v f="$(json "$T/out" flips)" 'BEGIN { exit !(f > 0 && f < 0.2) }'
run eval "$T/t8.pack" --ids "$T/first.u16" --window 64 --ref "$P"
check human_report "exit $status" grep -q '^kl_mean ' "$T/out"
kl=$(json "$T/t8.json" kl_mean)
run eval "$T/t8.pack" --ids "$T/first.u16" --window 64 --ref "$P" --routes ref --json
check flips_are_most_of_the_distance "kl $kl with own routes, $(json "$T/out" kl_mean) with the reference's" \
    awk -v a="$kl" -v b="$(json "$T/out" kl_mean)" 'BEGIN { exit !(b > 0 && b < a) }'
run eval "$P" --ids "$T/first.u16" --window 64 --ref "$P" --routes ref --exact --json
check own_routes_given_back_change_nothing "kl $(json "$T/out" kl_mean)" [ "$(json "$T/out" kl_mean)" = 0 ]

# Text: NUL separates documents, each [BOS] text [EOS].
printf 'One document.\0Another one, a little longer.' >"$T/docs.txt"
for d in 'One document.' 'Another one, a little longer.'; do
    run tokenize "$P" "$d"
    all="${all:+$all,}3840,$(cat "$T/out"),3841"
done
echo "$all" >"$T/docs.ids"
w=$(tr ',' '\n' <"$T/docs.ids" | wc -l)
run eval "$P" --text "$T/docs.txt" --window "$w" --json
a=$(json "$T/out" nll_mean)
run eval "$P" --ids "$T/docs.ids" --window "$w" --json
check documents "$a as text, $(json "$T/out" nll_mean) as ids" [ "$a" = "$(json "$T/out" nll_mean)" ]

# Strides: windows that start inside others; a rest shorter than a window is left out.
run eval "$P" --ids "$T/first.u16" --window 100 --stride 50 --json
check windows_of_a_stride "$(json "$T/out" windows)" [ "$(json "$T/out" windows)" = 4 ]
run eval "$P" --ids "$T/first.u16" --window 100 --json --stats "$T/stats.json"
check rest_is_left_out "$(json "$T/out" windows)" [ "$(json "$T/out" windows)" = 2 ]
check stats_file "no valid JSON" [ "$(json "$T/stats.json" prefill_tokens)" = 200 ]

refused no_input 2 "give either --ids F or --text F" eval "$P"
refused two_inputs 2 "give either --ids F or --text F" eval "$P" --ids a --text b
refused routes_without_reference 2 "--routes ref needs --ref" eval "$P" --text x --routes ref
run convert tests/fixtures/tiny-b "$T/b.pack"
refused other_vocabulary 4 "vocab_size" eval "$P" --ids "$T/first.u16" --ref "$T/b.pack"
refused too_short 3 "256 tokens are less than one window of 257" \
    eval "$P" --ids "$T/first.u16" --window 257
refused missing_text 3 "no-such" eval "$P" --text "$T/no-such"
refused missing_reference 4 "no-such" eval "$P" --ids "$T/first.u16" --ref "$T/no-such"
refused window_of_one 2 "--window: '1' is not a whole number from 2" eval "$P" --text x --window 1
refused window_beyond_ctx 5 "256 tokens at position 0 do not fit into 100" \
    eval "$P" --ids "$T/first.u16" --ctx 100
