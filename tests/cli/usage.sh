# Every command: help on stdout with an example, wrong usage as one line on stderr with exit 2.
. tests/cli/lib/common.sh

run --help
check help_lists_commands "overview lacks a command" \
    grep -q '^  detokenize ' "$T/out"
check help_exits_0 "exit status $status" [ "$status" = 0 ]
run --version
check version "'$(cat "$T/out")'" grep -Eq '^sluice [0-9]+\.[0-9]+\.[0-9]+ \(.+\)' "$T/out"
run
check no_command_exits_2 "exit status $status" [ "$status" = 2 ]
check no_command_says_so_on_stderr "stdout is not empty or stderr is" \
    [ ! -s "$T/out" -a -s "$T/err" ]
refused unknown_command 2 "unknown command 'runn' \(did you mean 'run'\?\)" runn

commands=$("$SLUICE" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
for c in $commands; do
    helps "help_$c" "$c"
    refused "unknown_option_$c" 2 "unknown option --no-such-option" "$c" --no-such-option
    # probe needs none: it would measure for seconds
    [ "$c" = probe ] || refused "no_argument_$c" 2 "missing " "$c"
done
[ "$(echo "$commands" | wc -w)" -ge 10 ] && ok command_count || fail command_count "$commands"

refused nearest_option 2 'unknown option --thread=2 \(did you mean --threads\?\)' run x --thread=2
refused value_missing 2 '^sluice run: -n needs a value \(N\)' run x -n
refused value_of_flag 2 "^sluice run: --json takes no value, got '1'" run x --json=1
refused not_a_number 2 "^sluice run: -n: 'many' is not a whole number" run x -p a -n many
refused out_of_range 2 "^sluice run: --top-p: '1.5' is not a number from" run x -p a --top-p 1.5
refused not_a_size 2 "^sluice run: --ram: '8X' is not a size" run x -p a --ram 8X
refused argument_too_many 2 "^sluice run: unexpected argument 'y'" run x y -p a
refused device_of_another_build 2 "--device: 'cuda' is not available in this build" \
    run x -p a --device cuda
refused io_of_another_build 2 "--io: 'tape' is not available in this build" \
    run x -p a --io=tape
refused control_bytes_do_not_reach_the_terminal 2 "unexpected argument '.\[31m" \
    run x "$(printf '\033[31m')"
check they_are_replaced "an escape byte is in the message" \
    [ "$(grep -c "$(printf '\033')" "$T/err")" = 0 ]
