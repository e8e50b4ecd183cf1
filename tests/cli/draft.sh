# Guesses change the number of steps and not the text: greedy and sampled, run, chat and serve.
. tests/cli/lib/common.sh
. tests/cli/lib/server.sh
nano_pack
P=$T/nano.pack
text='int main(void) { return 0; } int main(void) { return 0; } int main(void) { return 0; } int main'
for temp in 0 0.7; do
    "$SLUICE" run "$P" --exact -p "$text" -n 120 --temp $temp --seed 3 --ignore-eos --json >"$T/off"
    for n in 1 5 16 auto; do
        "$SLUICE" run "$P" --exact -p "$text" -n 120 --temp $temp --seed 3 --ignore-eos --json \
            --draft $n >"$T/on"
        check "same_text_temp_${temp}_draft_$n" "$(json "$T/on" text)" \
            [ "$(json "$T/on" ids)" = "$(json "$T/off" ids)" ]
        [ $n = auto ] || check "fewer_steps_temp_${temp}_draft_$n" "$(json "$T/on" decode_steps)" \
            [ "$(json "$T/on" decode_steps)" -lt "$(json "$T/off" decode_steps)" ]
    done
done
# A state saved after guesses goes on like any other, and the context's end is the same.
"$SLUICE" run "$P" --exact -p "$text" -n 40 --temp 0 --ignore-eos --draft 8 --save-state "$T/s" >"$T/a"
"$SLUICE" run "$P" --exact --load-state "$T/s" -n 40 --temp 0 --ignore-eos --json >"$T/b"
"$SLUICE" run "$P" --exact -p "$text" -n 80 --temp 0 --ignore-eos --json >"$T/c"
check a_saved_state_goes_on "$(json "$T/b" text)" \
    [ "$(tr -d '\n' <"$T/a")$(json "$T/b" text | tr -d '\n')" = "$(json "$T/c" text | tr -d '\n')" ]
"$SLUICE" run "$P" --exact -p "$text" -n 500 --ctx 64 --temp 0 --ignore-eos --json >"$T/a"
"$SLUICE" run "$P" --exact -p "$text" -n 500 --ctx 64 --temp 0 --ignore-eos --json --draft 16 >"$T/b"
check same_end_of_context "$(json "$T/b" ids)" [ "$(json "$T/a" ids)" = "$(json "$T/b" ids)" ]
refused draft_beyond 2 '^sluice: --draft' run "$P" -p x --draft 17
refused draft_word 2 '^sluice: --draft' run "$P" -p x --draft some
for d in off 6; do
    echo 'Say one two three one two three one two' |
        "$SLUICE" chat "$P" --exact --temp 0 -n 60 --draft $d >"$T/chat_$d" 2>"$T/err"
done
check chat_says_the_same "$(cat "$T/chat_6")" cmp -s "$T/chat_off" "$T/chat_6"

serves_http
body() { echo "{\"prompt\":\"$text $1\",\"max_tokens\":$((60 + 7 * $1)),\"temperature\":$2,\"seed\":$1,\"ignore_eos\":true}"; }
serve_start "$P" --exact --seats 3
for i in 1 2 3; do
    ask /v1/completions "$(body $i 0.$((3 * i)))"
    json "$T/out" choices 0 text >"$T/plain$i"
done
serve_stop TERM
serve_start "$P" --exact --seats 3 --draft 5
pids=
for i in 1 2 3; do
    curl -s -o "$T/drafted$i" "$URL/v1/completions" -d "$(body $i 0.$((3 * i)))" &
    pids="$pids $!"
done
# shellcheck disable=SC2086
wait $pids
for i in 1 2 3; do
    json "$T/drafted$i" choices 0 text >"$T/text"
    check "served_the_same_$i" "$(cat "$T/text")" cmp -s "$T/text" "$T/plain$i"
    check "as_many_tokens_$i" "$(json "$T/drafted$i" usage)" \
        [ "$(json "$T/drafted$i" usage completion_tokens)" = $((60 + 7 * i)) ]
done
get /stats
check guesses_held "$(json "$T/out" accepted_tokens)" [ "$(json "$T/out" accepted_tokens)" -gt 10 ]
serve_stop TERM
