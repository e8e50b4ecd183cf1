# Several answers in common steps: the same text as alone (greedy and seeded), streams that go on beside a
# long prompt, progress in /stats, and history that matches by its ids after a restart.
. tests/cli/lib/common.sh
. tests/cli/lib/server.sh
serves_http
nano_pack
P=$T/nano.pack

body() { # I
    local temp=0 n=$((20 + 9 * $1))
    [ $(($1 % 2)) = 0 ] || temp=0.8
    echo "{\"prompt\":\"$(printf 'Line %d of the list. ' $(seq $((1 + 3 * $1))))\",\"max_tokens\":$n,\"temperature\":$temp,\"seed\":$1,\"ignore_eos\":true}"
}
serve_start "$P" --exact --seats 4 --threads 2
for i in 0 1 2 3 4 5; do
    ask /v1/completions "$(body $i)"
    json "$T/out" choices 0 text >"$T/alone$i"
done
check texts_are_there "$(cat "$T/alone3")" [ "$(wc -c <"$T/alone3")" -gt 20 ]
for round in 1 2; do
    pids=
    for i in 0 1 2 3 4 5; do
        curl -s -o "$T/beside$i" "$URL/v1/completions" -d "$(body $i)" &
        pids="$pids $!"
    done
    # shellcheck disable=SC2086
    wait $pids
    for i in 0 1 2 3 4 5; do
        json "$T/beside$i" choices 0 text >"$T/text"
        check "beside_as_alone_${i}_round_$round" "$(head -c 200 "$T/text")" cmp -s "$T/text" "$T/alone$i"
    done
done
get /stats
several=0
for k in 1 2 3; do several=$((several + $(json "$T/out" steps $k))); done
check steps_were_shared "$(cat "$T/out")" [ "$several" -gt 20 ]
check all_tokens_are_counted "$(json "$T/out" decode_tokens) $(json "$T/out" decode_steps)" \
    [ "$(json "$T/out" decode_tokens)" -gt "$(json "$T/out" decode_steps)" ]
get /metrics
check step_histogram "$(grep step_ "$T/out")" grep -q '^sluice_step_sequences_bucket{le="4"} ' "$T/out"

# A stream goes on while a long prompt is read beside it.
long=$(printf 'word %d of many, ' $(seq 400))
curl -sN -o "$T/stream" "$URL/v1/completions" \
    -d '{"prompt":"On and","max_tokens":3000,"temperature":0,"ignore_eos":true,"stream":true}' &
a=$!
until grep -q '"text"' "$T/stream" 2>/dev/null; do sleep 0.02; done
curl -s -o "$T/longer" "$URL/v1/completions" -d "{\"prompt\":\"$long\",\"max_tokens\":1}" &
b=$!
seen=
until [ -n "$seen" ] || ! kill -0 $b 2>/dev/null; do
    get /stats
    seen=$(json "$T/out" prompts 0 done 2>/dev/null)
done
before=$(grep -c '"text"' "$T/stream")
wait $b
after=$(grep -c '"text"' "$T/stream")
check a_prompt_shows_its_progress "never seen" [ -n "$seen" ]
check the_stream_goes_on "$before events before the prompt, $after after it" [ "$after" -gt $((before + 2)) ]
kill $a
wait $a
until get /stats && [ "$(json "$T/out" running)" = 0 ]; do sleep 0.02; done
ok a_lost_stream_leaves_its_seat
ask /v1/completions "$(body 2)"
json "$T/out" choices 0 text >"$T/text"
check right_afterwards "$(cat "$T/text")" cmp -s "$T/text" "$T/alone2"
serve_stop TERM
check terminate_exits_0 "exit $status: $(cat "$T/serve.err")" [ "$status" = 0 ]

# ---------------------------------------------------------------- turns outlive the server
C=/v1/chat/completions
first='{"role":"user","content":"What is a kernel?"}'
serve_start "$P" --seats 2 --prefix-cache 16MiB --prefix-dir "$T/states"
ask $C "{\"messages\":[$first],\"max_tokens\":200,\"temperature\":1.2,\"seed\":3,\"reasoning_effort\":\"none\",\"ignore_eos\":false}"
said=$(json "$T/out" choices 0 message content)
reason=$(json "$T/out" choices 0 finish_reason)
python3 - "$T/out" "$T/again" <<'PY' 2>/dev/null || { skip turns "python3 not found"; serve_stop TERM; exit 0; }
import json, sys
m = json.load(open(sys.argv[1]))["choices"][0]["message"]
q = {"role": "user", "content": "What is a kernel?"}
a = {"role": "assistant", "content": m["content"]}
json.dump({"messages": [q, a, {"role": "user", "content": "And a shell?"}], "max_tokens": 4,
           "temperature": 0, "reasoning_effort": "none"}, open(sys.argv[2], "w"))
PY
ask $C "$(cat "$T/again")"
here=$(json "$T/out" usage prompt_tokens_details cached_tokens)
serve_stop TERM
check turns_are_kept "$(ls "$T/states")" [ -s "$T/states/turns.ids" ]
serve_start "$P" --seats 2 --prefix-cache 16MiB --prefix-dir "$T/states"
ask $C "$(cat "$T/again")"
there=$(json "$T/out" usage prompt_tokens_details cached_tokens)
all=$(json "$T/out" usage prompt_tokens)
check history_matches_after_a_restart "cached $here here, $there of $all after; '$reason', '$said'" \
    [ "$there" -ge "$here" ]
serve_stop TERM
# The control: without the file the same text is cut into other ids, and matches less.
mv "$T/states/turns.ids" "$T/turns.ids"
serve_start "$P" --seats 2 --prefix-cache 16MiB --prefix-dir "$T/states"
ask $C "$(cat "$T/again")"
less=$(json "$T/out" usage prompt_tokens_details cached_tokens)
check and_less_without_the_ids "cached $less without, $there with" [ "$less" -lt "$there" ]
serve_stop TERM
mv "$T/turns.ids" "$T/states/turns.ids"
# A damaged file is told of, and costs nothing else.
printf 'x' | dd of="$T/states/turns.ids" bs=1 seek=30 conv=notrunc 2>/dev/null
serve_start "$P" --seats 2 --prefix-cache 16MiB --prefix-dir "$T/states"
check damaged_turns_are_told "$(cat "$T/serve.err")" grep -q 'turns.ids.*not known' "$T/serve.err"
ask $C "$(cat "$T/again")"
check served_all_the_same "$code" [ "$code" = 200 ]
serve_stop TERM
