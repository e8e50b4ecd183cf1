# chat at a terminal: editing, history, paste, Ctrl-C, commands, what is shown.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
# terminal SCRIPT ARGS...: screen in $T/screen
terminal() {
    printf '%s\n' "$1" >"$T/script"
    shift
    "$BUILD/tests/cli/tool_pty" "$T/script" "$SLUICE" chat "$P" --effort none --temp 0 --ctx 2048 "$@" \
        >"$T/screen" 2>"$T/err"
    status=$?
}
screen() { grep -aqF -- "$1" "$T/screen"; }
shows() { check "$1" "exit $status, $(cat "$T/err"): $(tail -c 300 "$T/screen" | tr '\033' '^')" screen "$2"; }
kept() { grep -aqF -- "\"role\":\"user\",\"content\":\"$2\"" "$T/$1"; }

terminal 'expect > 
send What is a kernel?\r
expect experts in memory
expect > 
send \x04' -n 60
check ends_with_ctrl_d "exit $status: $(cat "$T/err")" [ $status = 0 ]
shows thinking_is_dimmed "$(printf '\033[2m')"
shows status_line "context "
shows paste_mode_is_left "$(printf '\033[?2004l')"
terminal 'expect > 
send What is a kernel?\r
expect experts in memory
expect > 
send /quit\r' -n 60 --thinking hide
check quit_ends "exit $status: $(cat "$T/err")" [ $status = 0 ]
check thinking_can_be_hidden "$(tail -c 300 "$T/screen")" [ "$(grep -ac 'user asks' "$T/screen")" = 0 ]

# Typed: Ctrl-A, Ctrl-E, arrows, backspace, Ctrl-W, Ctrl-K, letters of two and three bytes.
terminal "expect > 
send orld\\x01w\\x05!\\e[D\\x7fx\\x05 gone\\x17\\xc3\\xa9\\xe6\\x97\\xa5\\e[Dk\\r
expect experts in memory
expect > 
send \\e[A\\r
expect experts in memory
expect > 
send never\\x03
expect ^C
expect > 
send tail\\x01\\x0bhead\\r
expect experts in memory
expect > 
send /save $T/edit\\r
expect saved
expect > 
send \\x04" -n 4
check edits_arrive "$(grep -ao '"role":"user"[^}]*' "$T/edit" | head -n 1)" kept edit 'worlx! ék日'
check history_repeats "$(grep -ac . "$T/edit")" \
    [ "$(grep -aoF '"content":"worlx! ék日"' "$T/edit" | wc -l)" = 2 ]
check cancelled_line_is_gone "it is in the conversation" [ "$(grep -ac never "$T/edit")" = 0 ]
check kill_to_the_end "$(grep -ao '"role":"user"[^}]*' "$T/edit")" kept edit head

# A paste of several lines is one message; nothing of it is taken for a key.
terminal "expect > 
send \\e[200~first\\rsecond\\x03\\x04\\x15\\tthird\\n\\e[201~end\\r
expect experts in memory
expect > 
send one\\x0atwo\\r
expect experts in memory
expect > 
send three\\\\\\rfour\\r
expect experts in memory
expect > 
send /save $T/paste\\r
expect saved
expect > 
send \\x04" -n 4
check paste_is_one_message "$(grep -ao '"role":"user"[^}]*' "$T/paste")" \
    kept paste 'first\nsecond\tthird\nend'
check ctrl_j_is_a_new_line "" kept paste 'one\ntwo'
check backslash_enter_is_a_new_line "" kept paste 'three\nfour'

# Ctrl-C stops an answer that would go on and on; the session goes on from there.
terminal "expect > 
send And a file?\\r
expect containing
send \\x03
expect stopped
expect > 
send What is a kernel?\\r
expect known
expect > 
send /stats\\r
expect stored states
expect > 
send /undo\\r
expect taken back
expect > 
send /nonsense\\r
expect no such command
expect > 
send /load $T/none\\r
expect none
expect > 
send /reset\\r
expect forgotten
expect > 
send /help\\r
expect /retry
expect > 
send \\x03
expect again to leave
expect > 
send \\x03"
check interrupt_keeps_the_session "exit $status: $(cat "$T/err") $(tail -c 300 "$T/screen")" [ $status = 0 ]
known=$(grep -ao '[0-9]* new, [0-9]* known' "$T/screen" | tail -n 1)
new=${known%% *}
old=$(echo "$known" | sed 's/.* new, \([0-9]*\) known/\1/')
check next_turn_reads_only_what_is_new "$known" [ "${new:-999}" -lt 45 -a "${old:-0}" -gt 15 ]

# Ctrl-C while a long prompt is read: the message is dropped, the conversation goes on.
part=$(printf 'words that are many, %.0s' $(seq 300))
long=$(for i in 1 2 3 4 5 6 7 8 9 10; do printf 'send %s\n' "$part"; done)
terminal "expect > 
send What is a kernel?\\r
expect experts in memory
expect > 
send \\e[200~
$long
send \\e[201~\\r
expect \\e[?2004l
send \\x03
expect stopped while the prompt was read
expect > 
send And a file?\\r
expect known
expect > 
send /save $T/after\\r
expect saved
expect > 
send \\x04" -n 20 --ctx 30000
check interrupt_while_reading "exit $status: $(cat "$T/err")" [ $status = 0 ]
check dropped_message_is_gone "$(grep -aoc 'words that' "$T/after")" [ "$(grep -ac 'words that' "$T/after")" = 0 ]
check the_conversation_goes_on "" kept after 'And a file?'
check and_what_was_before_is_there "" kept after 'What is a kernel?'

# What a model writes does not drive the terminal: its escape bytes are shown as '?'.
check no_other_escapes "$(grep -ao "$(printf '\033')[^[]" "$T/screen" | head -n 3 | tr '\033' '^')" \
    [ "$(grep -ac "$(printf '\033')[^[]" "$T/screen")" = 0 ]
