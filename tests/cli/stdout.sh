# A broken standard output is noticed: closed pipe, full disk, closed descriptor.
. tests/cli/lib/common.sh
nano_pack
i=0
P=$T/nano.pack

# true reads nothing, so the pipe breaks while text is written.
("$SLUICE" run "$P" -p 'The function' -n 300 --ignore-eos 2>"$T/err"; echo $? >"$T/status") | true
check closed_pipe_run "exit 0" [ "$(cat "$T/status")" != 0 ]
check closed_pipe_one_line "$(wc -l <"$T/err") lines" [ "$(wc -l <"$T/err")" = 1 ]

for c in "run $P -p The -n 2" "tokenize $P hello" "detokenize $P --ids 5" "--help" "run --help" \
    "eval $P --ids $NANO/golden/valid-ids.u16 --windows 1 --window 16 --json" \
    "run $P -p The -n 2 --json" "inspect $P"; do
    name=full_disk_$(echo "$c" | awk '{print $1}' | tr -d -)_$((++i))
    if [ -w /dev/full ]; then
        # shellcheck disable=SC2086
        "$SLUICE" $c >/dev/full 2>"$T/err"
        status=$?
        check "$name" "exit $status: $(head -c 200 "$T/err")" [ $status = 5 ]
    else
        skip "$name" "/dev/full not found"
    fi
done
"$SLUICE" tokenize "$P" hello >&- 2>"$T/err"
status=$?
check closed_descriptor "exit $status" [ $status != 0 ]
# Were descriptor 0 free, the trunk of the pack would be opened there and read as the prompt.
"$SLUICE" run "$P" -p - -n 1 <&- >"$T/out" 2>"$T/err"
status=$?
check closed_input "exit $status: $(head -c 200 "$T/err")" [ $status = 3 ]
check closed_input_is_told "$(cat "$T/err")" grep -q 'standard input: read' "$T/err"
"$SLUICE" logits "$P" --ids 1,2 --out "$T/closed.f32" <&- >&- 2>&-
check all_closed_writes "exit $?" [ $? = 0 ]
run logits "$P" --ids 1,2 --out "$T/open.f32"
check all_closed_same_bytes "files differ" cmp -s "$T/closed.f32" "$T/open.f32"
