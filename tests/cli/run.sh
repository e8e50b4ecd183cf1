# sluice run: the golden continuation, seeds, prompts, stops, and every refusal with its exit code.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack

# Greedy continuation of the independent reference (float64).
ids=$(json $NANO/golden/golden.json sequences 1 ids)
want=$(json $NANO/golden/golden.json sequences 1 greedy_next)
run run "$P" --ids "$ids" -n 32 --temp 0 --ignore-eos --exact --json
check json_is_valid "exit $status: $(head -c 200 "$T/err")" json "$T/out"
got=$(json "$T/out" ids)
check greedy_equals_golden "got $got" [ "$got" = "$want" ]
check stop_is_length "stop is $(json "$T/out" stop)" [ "$(json "$T/out" stop)" = length ]
missing=
for key in schema version commit flags isa threads text planned_peak_bytes measured_peak_bytes \
    expert_bytes_read expert_hits expert_misses prefill_tokens decode_tokens prefill_tok_per_s \
    decode_tok_per_s stall_seconds direct_io groups; do
    json "$T/out" $key >/dev/null 2>&1 || missing="$missing $key"
done
check json_keys "missing:$missing" [ -z "$missing" ]
check counts_tokens "prefill $(json "$T/out" prefill_tokens), decode $(json "$T/out" decode_tokens)" \
    [ "$(json "$T/out" prefill_tokens) $(json "$T/out" decode_tokens)" = "32 31" ]
json "$T/out" text >"$T/json_text"

# The same text streamed, and what the ids decode to.
run run "$P" --ids "$ids" -n 32 --temp 0 --ignore-eos
check streamed_text_is_the_same "differs from --json" cmp -s "$T/out" "$T/json_text"
check quiet_when_no_terminal "stderr: $(head -c 200 "$T/err")" [ ! -s "$T/err" ]
for opts in "--threads 1" "--threads 3" "--chunk 1" "--chunk 7" "--ctx 100" "--ram 64MB --threads 2"; do
    # shellcheck disable=SC2086
    run run "$P" --ids "$ids" -n 32 --temp 0 --ignore-eos $opts --json
    check "same_ids_with_${opts// /_}" "exit $status: $(head -c 200 "$T/err")" \
        [ "$(json "$T/out" ids)" = "$want" ]
done

text='The function returns'
run run "$P" -p "$text" -n 40 --seed 7
cp "$T/out" "$T/seed7"
run run "$P" -p "$text" -n 40 --seed 7 --threads 2 --chunk 3
check same_seed_same_text "two runs differ" cmp -s "$T/out" "$T/seed7"
run run "$P" -p "$text" -n 40 --seed 8
check other_seed_other_text "seeds 7 and 8 agree" [ "$(cat "$T/out")" != "$(cat "$T/seed7")" ]
printf %s "$text" >"$T/prompt.txt"
run run "$P" --prompt-file "$T/prompt.txt" -n 40 --seed 7
check prompt_from_file "differs from -p" cmp -s "$T/out" "$T/seed7"
"$SLUICE" run "$P" -p - -n 40 --seed 7 <"$T/prompt.txt" >"$T/out" 2>"$T/err"
check prompt_from_stdin "differs from -p" cmp -s "$T/out" "$T/seed7"
run run "$P" --bos -n 5 --temp 0 --json
check bos_alone_is_a_prompt "exit $status, $(head -c 200 "$T/err")" \
    [ "$status $(json "$T/out" prefill_tokens)" = "0 1" ]

# A chat prompt ends by itself: the model closes its message with a stop token.
chat='[BOS]<|open|>message role="user"<|sep|>What is the git command to list branches?<|close|>message<|sep|><|end_of_msg|><|open|>message role="assistant"<|sep|>'
run run "$P" -p "$chat" --markup -n 400 --temp 0 --json
a=$(json "$T/out" prefill_tokens)
run run "$P" -p "$chat" -n 1 --temp 0 --json
b=$(json "$T/out" prefill_tokens)
check control_spellings_are_text_without_markup "$a tokens with, $b without" [ "$a" -lt "$b" ]

# Stops: [EOS] fed as the most likely token is hard to arrange, so ids decide: any seed that reaches a
# stop within 400 tokens must say so and must not print it.
found=
for seed in 1 2 3 4 5 6 7 8; do
    run run "$P" --bos -n 400 --seed $seed --json
    [ "$(json "$T/out" stop)" = eos ] && found=$seed && break
done
if [ -n "$found" ]; then
    ok stops_at_eos
    n=$(json "$T/out" ids | tr ',' '\n' | wc -l)
    check eos_is_not_shown "text names it" \
        [ "$(json "$T/out" text | grep -c 'EOS\|end_of_msg')" = 0 ]
    run run "$P" --bos -n 400 --seed "$found" --ignore-eos --json
    check ignore_eos_goes_on "stop is $(json "$T/out" stop)" [ "$(json "$T/out" stop)" = length ]
    check ignore_eos_same_until_there "prefix differs" \
        [ "$(json "$T/out" ids | tr ',' '\n' | wc -l)" -gt "$n" ]
else
    fail stops_at_eos "no seed of 8 reached a stop token in 400 tokens"
fi

# Output is valid UTF-8 also when tokens cut characters and sampling is wild.
if command -v iconv >/dev/null; then
    run run "$P" -p "$text" -n 200 --temp 50 --top-p 1 --seed 3 --ignore-eos
    check wild_output_is_utf8 "iconv refuses it" iconv -f UTF-8 -t UTF-8 -o /dev/null "$T/out"
    run run "$P" -p "$text" -n 200 --temp 50 --top-p 1 --seed 3 --ignore-eos --json
    check wild_json_is_valid "$(head -c 100 "$T/out")" json "$T/out"
else
    skip wild_output_is_utf8 "iconv not found"
fi

run run "$P" -p "$text" -n 4 --temp 0 --stats "$T/stats.json"
check stats_file "no valid JSON" [ "$(json "$T/stats.json" decode_tokens)" = 3 ]
check stats_groups "no group named trunk" [ "$(json "$T/stats.json" groups 0 name)" = trunk ]
planned=$(json "$T/stats.json" planned_peak_bytes)
measured=$(json "$T/stats.json" measured_peak_bytes)
# 2 % or 32 MiB, whichever is larger; sanitizers bring memory of their own.
if [ "$BUILD" = build ]; then
    d=$((planned > measured ? planned - measured : measured - planned))
    check footprint_as_planned "planned $planned, measured $measured" \
        [ $d -le 33554432 -o $d -le $((planned / 50)) ]
else
    skip footprint_as_planned "only the default build is measured"
fi

# Context: prompt and answer.
many=$(seq -s, 1 101)
refused prompt_too_long 5 "prompt: 101 tokens, --ctx is 100" run "$P" --ids "$many" --ctx 100 -n 1
run run "$P" --ids "$ids" --ctx 40 -n 100 --temp 0 --ignore-eos --json
check answer_ends_with_the_context "exit $status, $(json "$T/out" ids)" \
    [ "$status $(json "$T/out" stop) $(json "$T/out" ids | tr ',' '\n' | wc -l)" = "0 length 9" ]
refused ctx_beyond_the_model 2 "--ctx: 2000000 is more than the model's" \
    run "$P" -p a --ctx 2000000

# Refusals.
refused no_prompt 2 "no prompt" run "$P"
refused two_prompts 2 "exclude each other" run "$P" -p a --ids 1
refused empty_prompt 2 "prompt is empty" run "$P" -p ''
refused unknown_id 2 "id 1: 999999 is outside the vocabulary of 4096" run "$P" --ids 5,999999
refused bad_id 2 "id 2: 'x' is not a token id" run "$P" --ids 5,6,x
refused no_id_after_comma 2 "id 1 is missing" run "$P" --ids 5,
refused missing_prompt_file 3 "no-such-file" run "$P" --prompt-file "$T/no-such-file"
refused missing_pack 4 "no-such.pack" run "$T/no-such.pack" -p a
mkdir "$T/empty"
refused folder_without_pack 4 "pack.json" run "$T/empty" -p a
refused checkpoint_is_no_pack 4 "a checkpoint, not a pack" run "$NANO" -p a
refused too_little_memory 5 "smallest that works: --ram [0-9]+" run "$P" -p a --ram 8M
need=$(sed -n 's/.*smallest that works: --ram \([0-9]*\).*/\1/p' "$T/err")
run run "$P" -p "$text" -n 4 --temp 0 --ram "$((need + need / 20))"
check that_much_works "exit $status: $(head -c 300 "$T/err")" [ "$status" = 0 ]

# A pack whose tokenizer cannot be read, and one with a flipped byte in an expert.
cp -r "$P" "$T/broken.pack"
printf 'not base64\n' >"$T/broken.pack/tokenizer/tiktoken.model"
refused broken_tokenizer 4 "tiktoken.model" run "$T/broken.pack" -p a
rm "$T/broken.pack/tokenizer/tiktoken.model"
refused missing_tokenizer 4 "tiktoken.model" run "$T/broken.pack" -p a
rm -rf "$T/broken.pack"
cp -r "$P" "$T/flipped.pack"
bank=$(ls "$T/flipped.pack/experts" | head -n 1)
bytes=$(wc -c <"$T/flipped.pack/experts/$bank")
# One byte in the middle of every record: whichever expert is asked for is damaged.
perl -e 'open F, "+<", $ARGV[0] or die; for ($o = 16384; $o < $ARGV[1]; $o += 4096) {
    seek F, $o + 100, 0; read F, $b, 1; seek F, $o + 100, 0; print F chr(ord($b) ^ 64); }' \
    "$T/flipped.pack/experts/$bank" "$bytes"
run run "$T/flipped.pack" --ids "$ids" -n 1
check flipped_byte_exits_4 "exit $status" [ "$status" = 4 ]
check flipped_byte_is_named "$(head -c 300 "$T/err")" grep -Eq "$bank.*expert [0-9]+" "$T/err"
check flipped_byte_prints_no_text "$(head -c 100 "$T/out")" [ ! -s "$T/out" ]
