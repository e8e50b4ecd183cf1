# sluice tokenize and detokenize: the model's own vectors, both ways in, refusals.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack

n=0
bad=0
while json $NANO/golden/tokenizer-vectors.json $n text >"$T/line" 2>/dev/null; do
    head -c -1 "$T/line" >"$T/text"
    want=$(json $NANO/golden/tokenizer-vectors.json $n ids)
    run tokenize "$P" --file "$T/text"
    [ "$(cat "$T/out")" = "$want" ] || { bad=$((bad + 1)); first=${first:-$n}; }
    run detokenize "$P" --ids "$want"
    cmp -s "$T/out" "$T/text" || { bad=$((bad + 1)); first=${first:-$n}; }
    n=$((n + 1))
done
check vectors "$bad of $n differ, the first is ${first:-}" [ "$n" -gt 0 -a "$bad" = 0 ]

run tokenize "$P" 'Hello, world'
cp "$T/out" "$T/ids"
run tokenize "$NANO" 'Hello, world'
check folder_equals_pack "$(cat "$T/out")" cmp -s "$T/out" "$T/ids"
printf 'Hello, world' | "$SLUICE" tokenize "$P" - >"$T/out"
check from_stdin "$(cat "$T/out")" cmp -s "$T/out" "$T/ids"
run tokenize "$P" --json 'Hello, world'
check json_ids "$(cat "$T/out")" [ "$(json "$T/out" ids)" = "$(cat "$T/ids")" ]
cp "$T/out" "$T/ids.json"
run detokenize "$P" --ids "$(cat "$T/ids")"
check round_trip "'$(cat "$T/out")'" [ "$(cat "$T/out")" = 'Hello, world' ]
run detokenize "$P" --ids-file "$T/ids.json"
check ids_from_json_file "'$(cat "$T/out")'" [ "$(cat "$T/out")" = 'Hello, world' ]
"$SLUICE" detokenize "$P" --ids - --json <"$T/ids.json" >"$T/out"
check json_text "$(cat "$T/out")" [ "$(json "$T/out" text)" = 'Hello, world' ]
run tokenize "$P" -- --json
check text_that_looks_like_an_option "exit $status" [ "$status" = 0 ]
run tokenize "$P" ''
check empty_text "exit $status '$(cat "$T/out")'" [ "$status $(cat "$T/out")" = "0 " ]

run tokenize "$P" --markup '[EOS]'
check markup_gives_one_control_id "$(cat "$T/out")" [ "$(cat "$T/out")" = 3841 ]
run tokenize "$P" '[EOS]'
check plain_text_gives_none "$(cat "$T/out")" \
    [ "$(tr ',' '\n' <"$T/out" | awk '$1 >= 3840' | wc -l)" = 0 ]

# Any bytes survive, valid UTF-8 or not, NUL included.
head -c 20000 "$SLUICE" >"$T/bytes"
run tokenize "$P" --file "$T/bytes"
cp "$T/out" "$T/ids"
run detokenize "$P" --ids-file "$T/ids"
check any_bytes_round_trip "differ" cmp -s "$T/out" "$T/bytes"

refused no_text 2 "give either TEXT" tokenize "$P"
refused text_and_file 2 "give either TEXT" tokenize "$P" a --file "$T/text"
refused no_ids 2 "give either --ids" detokenize "$P"
refused id_outside 2 "id 0: 4096 is outside the vocabulary of 4096" detokenize "$P" --ids 4096
refused negative_id 2 "id 0: '-1' is not a token id" detokenize "$P" --ids -1
printf abc >"$T/odd.u16"
refused odd_u16_file 3 "odd.u16: 3 bytes are no whole number of 2-byte ids" \
    detokenize "$P" --ids-file "$T/odd.u16"
refused missing_file 3 "no-such" tokenize "$P" --file "$T/no-such"
refused missing_pack 4 "no-such" tokenize "$T/no-such" a
mkdir "$T/plain"
refused folder_without_tokenizer 3 "tiktoken.model" tokenize "$T/plain" a
