# run --save-state and --load-state: a resumed text is the uninterrupted one; other files are refused.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
text='The function returns'

for how in "--temp 0" "--seed 5"; do
    # shellcheck disable=SC2086
    run run "$P" -p "$text" -n 48 $how --ignore-eos --json
    whole=$(json "$T/out" ids)
    # shellcheck disable=SC2086
    run run "$P" -p "$text" -n 20 $how --ignore-eos --json --save-state "$T/s"
    first=$(json "$T/out" ids)
    # shellcheck disable=SC2086
    run run "$P" -n 28 $how --ignore-eos --json --load-state "$T/s" --chunk 5 --threads 1
    check "resumed_equals_whole_${how// /_}" "exit $status: $(head -c 200 "$T/err")" \
        [ "$first,$(json "$T/out" ids)" = "$whole" ]
done

# A prompt in two parts is the prompt in one.
ids=$(json $NANO/golden/golden.json sequences 0 ids)
head=$(echo "$ids" | cut -d, -f1-29)
tail=$(echo "$ids" | cut -d, -f30-)
run run "$P" --ids "$ids" -n 10 --temp 0 --ignore-eos --json
whole=$(json "$T/out" ids)
run run "$P" --ids "$head" -n 0 --save-state "$T/h"
check nothing_written_with_n_0 "exit $status, '$(cat "$T/out")'" [ "$status$(cat "$T/out")" = 0 ]
run run "$P" --ids "$tail" -n 10 --temp 0 --ignore-eos --json --load-state "$T/h"
check prompt_in_two_parts "$(json "$T/out" ids)" [ "$(json "$T/out" ids)" = "$whole" ]
check only_the_rest_is_fed "$(json "$T/out" prefill_tokens)" [ "$(json "$T/out" prefill_tokens)" = 35 ]

flip() { perl -e 'open F, "+<", $ARGV[0] or die; seek F, $ARGV[1], 0; read F, $b, 1;
    seek F, $ARGV[1], 0; print F chr(ord($b) ^ 1)' "$1" "$2"; }
size=$(wc -c <"$T/s")
for at in 0 9 20 25 40 60 64 100000 $((size - 3)); do
    cp "$T/s" "$T/bad"
    flip "$T/bad" "$at"
    refused "flipped_bit_at_$at" 3 "bad: " run "$P" -n 1 --load-state "$T/bad"
done
for n in 0 63 64 $((size - 1)); do
    head -c "$n" "$T/s" >"$T/bad"
    refused "cut_at_$n" 3 "bad: " run "$P" -n 1 --load-state "$T/bad"
done
{ cat "$T/s"; printf x; } >"$T/bad"
refused trailing_byte 3 "bad: has $((size + 1)) bytes, its header says $size" \
    run "$P" -n 1 --load-state "$T/bad"
refused missing 3 "no-such" run "$P" -n 1 --load-state "$T/no-such"
refused longer_than_ctx 5 "is beyond --ctx 10" run "$P" -n 1 --load-state "$T/s" --ctx 10
run convert $NANO "$T/t8.pack" --trunk t8
refused other_pack_of_the_model 3 "its trunk differs" run "$T/t8.pack" -n 1 --load-state "$T/s"
run convert tests/fixtures/tiny-b "$T/b.pack"
refused other_model 3 "another model" run "$T/b.pack" -n 1 --load-state "$T/s"
run convert $NANO "$T/mx.pack" --experts mxfp4
run run "$T/mx.pack" -n 28 --seed 5 --ignore-eos --json --load-state "$T/s"
check lossless_packs_share_states "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
run run "$P" -p a -n 1 --temp 0 --save-state "$T/no-such/s"
check folder_missing "exit $status: $(head -c 200 "$T/err")" [ "$status" = 4 ]
