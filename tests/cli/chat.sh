# chat from a pipe: answers alone on stdout, sessions that go on, scripts that stop at a mistake.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
say() { # LINES ARGS...: chat with these lines as input
    local lines=$1
    shift
    printf '%b' "$lines" | "$SLUICE" chat "$P" --effort none --ctx 1024 "$@" >"$T/out" 2>"$T/err"
    status=$?
}

# The same prompt written as markup by hand and given to run.
open='<|open|>' close='<|close|>' sep='<|sep|>' eom='<|end_of_msg|>'
user="${open}message role=\"user\"${sep}What is a kernel?${close}message${sep}${eom}"
run run "$P" --markup --temp 0 -n 200 \
    -p "$user${open}message role=\"assistant\"${sep}${open}think${sep}"
tr -d '\n' <"$T/out" | sed "s/<|close|>think<|sep|><|open|>response<|sep|>/\n/; s/<|close|>.*//" >"$T/want"
say 'What is a kernel?\n' --temp 0 --thinking show
check answer_is_that_of_the_markup "exit $status: $(cat "$T/out" "$T/err" | head -c 300)" \
    [ "$status" = 0 -a "$(cat "$T/out")" = "$(cat "$T/want")" ]
check thinking_was_in_it "one line only" [ "$(wc -l <"$T/out")" = 2 ]
say 'What is a kernel?\n' --temp 0
check thinking_is_hidden_in_scripts "$(cat "$T/out")" [ "$(cat "$T/out")" = "$(tail -n 1 "$T/want")" ]
check nothing_else_is_said "$(cat "$T/err")" [ ! -s "$T/err" ]
say 'What is a kernel?' --temp 0
check last_line_needs_no_newline "$(cat "$T/out")" [ "$(cat "$T/out")" = "$(tail -n 1 "$T/want")" ]
say 'What is a kernel?\n' --temp 0 --thinking off -n 30
check without_thinking_it_answers "exit $status: $(cat "$T/out")" [ "$status" = 0 -a -s "$T/out" ]
say '\n  \n' --temp 0
check blank_lines_say_nothing "$(cat "$T/out")" [ "$status" = 0 -a ! -s "$T/out" ]

# A conversation in two processes is the one in one process, and reads only what is new.
for how in "--temp 0" "--seed 7"; do
    # shellcheck disable=SC2086
    say 'What is a kernel?\nAnd a file?\n' $how -n 40 --stats "$T/whole.json"
    cp "$T/out" "$T/both"
    # shellcheck disable=SC2086
    say 'What is a kernel?\n' $how -n 40 --save-state "$T/s" --stats "$T/first.json"
    cp "$T/out" "$T/one"
    # shellcheck disable=SC2086
    say 'And a file?\n' $how -n 40 --load-state "$T/s" --stats "$T/second.json"
    cat "$T/out" >>"$T/one"
    check "resumed_equals_whole_${how// /_}" "exit $status: $(diff "$T/one" "$T/both" | head -c 300)" \
        cmp -s "$T/one" "$T/both"
    n=$(json "$T/second.json" prefill_tokens)
    check "only_the_new_is_read_${how// /_}" "$n prefilled" [ "$n" -gt 10 -a "$n" -lt 45 ]
done
say 'What is a kernel?\nAnd a file?\n' --temp 0 -n 40
tail -n 1 "$T/out" >"$T/want"
say "What is a kernel?\n/save $T/f\n" --temp 0 -n 40
say "Something else\n/load $T/f\nAnd a file?\n" --temp 0 -n 40
check load_command "exit $status: $(cat "$T/err")" [ "$(tail -n 1 "$T/out")" = "$(cat "$T/want")" ]
say "What is a kernel?\nAnd a file?\n/undo\nAnd a file?\n" --temp 0 -n 40
check undo_and_again "$(cat "$T/out")" [ "$(sed -n 2p "$T/out")" = "$(sed -n 3p "$T/out")" ]
say "What is a kernel?\n/reset\nWhat is a kernel?\n" --temp 0 -n 40
check reset_and_again "$(cat "$T/out")" [ "$(sed -n 1p "$T/out")" = "$(sed -n 2p "$T/out")" ]
say "What is a kernel?\n/retry\n" --seed 1 -n 40 --thinking show
check retry_is_another_answer "$(cat "$T/out")" [ "$status" = 0 -a "$(sed -n 1,2p "$T/out")" != "$(sed -n 3,4p "$T/out")" ]
say "one\\\\\ntwo\n/save $T/f\n" --temp 0 -n 5
check backslash_joins_lines "exit $status" grep -aq '"role":"user","content":"one\\ntwo"' "$T/f"
say "//help me\n/save $T/f\n" --temp 0 -n 5 --system 'Be brief.'
check two_slashes_are_text "exit $status" grep -aq '"role":"user","content":"/help me"' "$T/f"
check system_message_is_kept "exit $status" grep -aq '"role":"system","content":"Be brief."' "$T/f"

# Mistakes end a script with their own status.
say 'Hi\n/nonsense\nHi\n' --temp 0 -n 5
check unknown_command "exit $status" [ "$status" = 2 ]
check unknown_command_says_so "$(cat "$T/err")" grep -q "/nonsense: no such command" "$T/err"
say 'Hi\n' --temp 0 --ctx 20
check too_long_for_ctx "exit $status: $(cat "$T/err")" [ "$status" = 5 ]
say '/save\n'
check save_needs_a_name "exit $status" [ "$status" = 2 ]
say "/save $T/f2\n"
check nothing_to_save "exit $status: $(cat "$T/err")" [ "$status" = 2 -a ! -e "$T/f2" ]
say "/load $T/none\n"
check missing_file "exit $status" [ "$status" = 3 ]
run run "$P" -p Hello -n 1 --save-state "$T/plain"
say "/load $T/plain\n"
check state_without_a_conversation "exit $status: $(cat "$T/err")" [ "$status" = 3 ]
say 'Hi\n' --effort medium
check effort_medium_is_refused "exit $status" [ "$status" = 2 ]

# States of a first process serve a second one.
kept='--prefix-cache 4M --system Brief.'
# shellcheck disable=SC2086
say 'What is a kernel?\n' --temp 0 -n 40 $kept --prefix-dir "$T/states" --stats "$T/first.json"
cp "$T/out" "$T/one"
# shellcheck disable=SC2086
say 'What is a kernel?\n' --temp 0 -n 40 $kept --prefix-dir "$T/states" --stats "$T/second.json"
check stored_states_change_no_answer "exit $status: $(cat "$T/err")" cmp -s "$T/out" "$T/one"
first=$(json "$T/first.json" prefill_tokens)
second=$(json "$T/second.json" prefill_tokens)
check stored_states_save_work "$first, then $second prefilled" [ "$second" -lt "$first" ]

# Ctrl-C ends a script.
set -m
(
    trap - EXIT
    { echo 'And a file?'; exec sleep 1000; } | exec "$SLUICE" chat "$P" --effort none --temp 0 \
        --ctx 30000 --thinking show
) >"$T/out" 2>"$T/err" &
pid=$!
set +m
until grep -q containing "$T/out" 2>/dev/null || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
kill -INT -$pid
wait $pid
status=$?
check interrupt_ends_a_script "exit $status: $(head -c 200 "$T/err")" [ $status = 130 ]
