# sluice synth: a pack that every other command takes, that says what it is, and failures that leave nothing.
. tests/cli/lib/common.sh
nano_pack
P=$T/syn.pack
said() { grep -q "$1" "$T/out" "$T/err"; }

run synth "$P" --like "$T/nano.pack" --alias-banks 2 --alias-trunk 1 --dry-run --json
check dry_run "exit $status: $(cat "$T/err")" [ "$status" = 0 -a ! -e "$P" ]
want=$(json "$T/out" total_bytes)
run synth "$P" --like "$T/nano.pack" --alias-banks 2 --alias-trunk 1 --json
check made "exit $status: $(cat "$T/err")" [ "$status" = 0 ]
cp "$T/out" "$T/made.json"
check report_says_synthetic "$(cat "$T/out")" [ "$(json "$T/made.json" synthetic)" = true ]
found=$(find "$P" -type f -printf '%s\n' | awk '{s += $1} END {print s}')
check size_foretold "$found bytes, dry run said $want" [ "$found" = "$want" ]
check two_banks "$(ls "$P/experts")" [ "$(ls "$P/experts" | wc -l)" = 2 ]

run inspect "$P"
check inspect_says_synthetic "$(head -c 300 "$T/out")" said 'synthetic: the weights are made up'
run inspect "$P" --json
check inspect_json "$(head -c 200 "$T/out")" [ "$(json "$T/out" synthetic)" = true ]
run inspect "$T/nano.pack" --json
check real_pack_is_not "$(head -c 200 "$T/out")" [ "$(json "$T/out" synthetic)" = false ]
run verify --full "$P"
check verify_full "exit $status: $(cat "$T/err")" [ "$status" = 0 ]
run run "$P" -p 'a b' -n 4 --temp 0 --ignore-eos --stats "$T/stats.json"
check runs "exit $status: $(cat "$T/err")" [ "$status" = 0 -a -s "$T/out" ]
check stats_say_synthetic "$(head -c 200 "$T/stats.json")" [ "$(json "$T/stats.json" synthetic)" = true ]
cp "$T/out" "$T/first"
run run "$P" -p 'a b' -n 4 --temp 0 --ignore-eos --threads 1 --chunk 1
check same_text "$(cat "$T/out")" cmp -s "$T/out" "$T/first"
run plan "$P" --board desktop-64 --json
check plans "exit $status: $(cat "$T/err")" [ "$status" = 0 -a "$(json "$T/out" synthetic)" = true ]
run tokenize "$P" 'hé'
check one_token_a_byte "$(cat "$T/out")" [ "$(tr ', \n' '   ' <"$T/out" | xargs)" = '104 195 169' ]

# The mark stays when the pack is encoded anew.
run synth "$T/raw.pack" --like "$T/nano.pack" --trunk bf16 --layers 3
run convert "$T/raw.pack" "$T/low.pack" --experts mxfp4 --trunk t4
check converts "exit $status: $(cat "$T/err")" [ "$status" = 0 ]
run inspect "$T/low.pack" --json
check mark_stays "$(head -c 200 "$T/out")" [ "$(json "$T/out" synthetic)" = true ]

refused no_export 3 'synthetic pack' export "$T/raw.pack" "$T/hf" --format hf

run synth "$T/big.pack" --like k3 --dry-run --json
if [ "$(json "$T/out" missing_bytes)" = 0 ]; then
    skip full_disk "the drive has room for all of it"
else
    refused full_disk 5 'bytes \(.*\) are missing' synth "$T/big.pack" --like k3
    check full_disk_leaves_nothing "it made the folder" [ ! -e "$T/big.pack" ]
fi
run synth "$T/big.pack" --like k3 --alias-banks 2 --alias-trunk 1 --dry-run --json
check k3_layers "$(cat "$T/out")" [ "$(json "$T/out" layers)" = 93 -a "$(json "$T/out" trunk_layers)" = 3 ]

refused no_shape 2 '--like' synth "$T/x.pack"
refused no_such_pack 4 'nowhere: no such folder' synth "$T/x.pack" --like "$T/nowhere"
refused finished 2 'is not empty' synth "$P" --like "$T/nano.pack"
refused too_many_layers 2 '--layers: 6, but .* has 5' synth "$T/x.pack" --like "$T/nano.pack" --layers 6
refused no_banks 2 '--alias-banks' synth "$T/x.pack" --like k3 --alias-banks 0
check refusals_leave_nothing "it made the folder" [ ! -e "$T/x.pack" ]
