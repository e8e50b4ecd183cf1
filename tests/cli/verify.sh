# sluice verify: a sound pack passes; every kind of damage is named on one line with exit status 4.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack

# flip FILE OFFSET: inverts the byte there; twice restores it.
flip() {
    local b
    b=$(od -An -tu1 -j "$2" -N 1 "$1")
    # shellcheck disable=SC2059
    printf "\\$(printf '%03o' $((b ^ 255)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
# faulty NAME PATTERN ARGS...: exit 4, and stdout has a line that matches.
faulty() {
    local name=$1 pattern=$2
    shift 2
    run verify "$@"
    if [ "$status" != 4 ]; then
        fail "$name" "exit status $status, expected 4"
    elif ! grep -Eq -- "$pattern" "$T/out"; then
        fail "$name" "no line matches '$pattern': $(head -c 300 "$T/out")"
    else
        ok "$name"
    fi
}
# sound NAME ARGS...
sound() {
    local name=$1
    shift
    run verify "$@"
    check "$name" "exit $status: $(head -c 300 "$T/out" "$T/err")" [ "$status" = 0 ]
}

helps help verify
refused no_pack 2 'PACK' verify
refused unknown_option 2 'ful' verify "$P" --ful
refused missing_pack 4 'no such folder' verify "$T/none"
refused checkpoint_is_no_pack 4 'not a pack' verify "$NANO"

sound fast "$P"
check fast_says_so "$(cat "$T/out")" grep -q 'sound.*4 banks, 256 expert records' "$T/out"
check fast_is_quiet "$(cat "$T/err")" [ ! -s "$T/err" ]
sound full "$P" --full
check full_reports_rate "$(cat "$T/out")" grep -Eq 'read and checked .* B/s|MB/s|GB/s' "$T/out"
run verify "$P" --full --json
cp "$T/out" "$T/json"
check json_ok "ok is $(json "$T/json" ok)" [ "$(json "$T/json" ok)" = true ]
check json_no_faults "$(json "$T/json" faults)" [ "$(json "$T/json" fault_count)" = 0 ]
heads=$((4 * (4096 + 8192))) # header and index of 64 entries, four times
want=$(($(json "$T/json" trunk_bytes) + $(json "$T/json" bank_bytes) - heads))
check every_byte_was_read "$(json "$T/json" read_bytes), not $want" \
    [ "$(json "$T/json" read_bytes)" = "$want" ]
check sizes_are_the_files "$(json "$T/json" bank_bytes)" \
    [ "$(json "$T/json" bank_bytes)" = "$(cat "$P"/experts/*.bank | wc -c)" ]
for n in 1 3 8; do sound "threads_$n" "$P" --full --threads $n; done

# A byte of a record: structure is sound, the bytes are not.
B=$P/experts/L003.bank
size=$(wc -c <"$B")
record=$(((size - 12288) / 64))
at=$((12288 + 17 * record + 100))
flip "$B" $at
sound record_fast "$P"
faulty record_full '^experts/L003\.bank: expert 17: crc32 [0-9a-f]{8}, expected [0-9a-f]{8}$' "$P" --full
check record_alone "$(grep -c crc32 "$T/out") faults" [ "$(grep -c crc32 "$T/out")" = 1 ]
run verify "$P" --full --json
check record_json "$(cat "$T/out")" [ "$(json "$T/out" ok)$status" = false4 ]
check record_json_line "$(json "$T/out" faults 0)" \
    grep -q '^experts/L003.bank: expert 17: crc32' <<<"$(json "$T/out" faults 0)"
flip "$B" $((size - 1)) # and padding of the last record
faulty two_records '^experts/L003\.bank: expert 63: crc32' "$P" --full
flip "$B" $at
flip "$B" $((size - 1))
sound records_restored "$P" --full

# The trunk: a tensor, and the padding after one.
q=model.layers.1.post_attention_layernorm.weight
at=$(json "$P/pack.json" tensors $q offset)
bytes=$(json "$P/pack.json" tensors $q bytes)
flip "$P/trunk.bin" "$at"
sound tensor_fast "$P"
faulty tensor_full "^trunk\.bin: $q: crc32 [0-9a-f]{8}, expected $(json "$P/pack.json" tensors $q crc32)$" \
    "$P" --full
flip "$P/trunk.bin" "$at"
flip "$P/trunk.bin" $((at + bytes))
faulty trunk_padding "^trunk\.bin: padding: the byte at offset $((at + bytes)) is not zero$" "$P" --full
flip "$P/trunk.bin" $((at + bytes))
sound trunk_restored "$P" --full

# Structure.
flip "$B" 8
refused bank_version 4 'experts/L003\.bank: version' verify "$P"
flip "$B" 8
flip "$B" 4100
refused bank_index 4 'experts/L003\.bank: index: crc32' verify "$P"
flip "$B" 4100
cp "$P/trunk.bin" "$T/trunk"
truncate -s -1 "$P/trunk.bin"
refused trunk_cut 4 'trunk\.bin: the file has [0-9]+ bytes, pack.json says [0-9]+: it is cut' verify "$P"
cp "$T/trunk" "$P/trunk.bin"
echo >>"$P/trunk.bin"
refused trunk_long 4 'trunk\.bin: .*there are too many' verify "$P"
cp "$T/trunk" "$P/trunk.bin"
cp "$B" "$T/L003.bank"
truncate -s -4096 "$B"
refused bank_cut 4 'experts/L003\.bank: file_bytes' verify "$P"
rm "$B"
refused bank_missing 4 '1 bank file not found: experts/L003\.bank' verify "$P"
run verify "$P" --json
check bank_missing_json "$(cat "$T/out")" [ "$(json "$T/out" ok)$status" = false4 ]
sound bank_found_elsewhere "$P" --bank-dir "$T"
cp "$T/L003.bank" "$B"

# The pack against the model.
cp "$P/pack.json" "$T/pack.json"
sed 's/"model\.norm\.weight"/"model.norm.weird"/' "$T/pack.json" >"$P/pack.json"
faulty tensor_missing '^pack\.json: model\.norm\.weight: missing' "$P"
check tensor_unknown_noted "$(cat "$T/err")" grep -q 'note: pack.json: model.norm.weird' "$T/err"
sed 's/"kda_heads":\([0-9]*\)/"kda_heads":1/' "$T/pack.json" >"$P/pack.json"
faulty shape_of_another_model 'not what the config implies' "$P"
cp "$T/pack.json" "$P/pack.json"
cp "$P/tokenizer/tiktoken.model" "$T/tiktoken"
head -c 1000 "$T/tiktoken" >"$P/tokenizer/tiktoken.model"
faulty tokenizer_cut 'tiktoken\.model' "$P"
cp "$T/tiktoken" "$P/tokenizer/tiktoken.model"

# Files too many are named; they do not make a sound pack unsound.
touch "$P/experts/L099.bank" "$P/notes.txt"
sound excess "$P"
check excess_bank_named "$(cat "$T/err")" grep -q 'note: experts/L099.bank: not part of the pack' "$T/err"
check excess_file_named "$(cat "$T/err")" grep -q 'note: notes.txt: not part of the pack' "$T/err"
rm "$P/experts/L099.bank" "$P/notes.txt"
sound restored "$P" --full
check restored_is_quiet "$(cat "$T/err")" [ ! -s "$T/err" ]

# ---- any bit of any file: pack.json and tokenizer by SHA256SUMS, the rest by its own checksums
run convert "$NANO" "$T/whole.pack"
W=$T/whole.pack
check sums_are_those_of_sha256sum "$(cat "$W/SHA256SUMS")" \
    [ "$(cd "$W" && sha256sum -c --quiet SHA256SUMS 2>&1 && echo same)" = same ]
sound sums_sound "$W"
RANDOM=11
for f in pack.json SHA256SUMS tokenizer/tokenizer_config.json tokenizer/tiktoken.model tokenizer/config.json \
    tokenizer/generation_config.json tokenizer/README.md; do
    missed=
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        at=$(((RANDOM * 32768 + RANDOM) % $(wc -c <"$W/$f")))
        flip "$W/$f" $at
        run verify "$W"
        [ "$status" = 4 ] || missed="$missed $at($status)"
        flip "$W/$f" $at
    done
    check "flips_of_$(basename "$f")" "not found at$missed" [ -z "$missed" ]
done
for f in trunk.bin experts/L001.bank experts/L004.bank; do
    missed=
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        at=$(((RANDOM * 32768 + RANDOM) % $(wc -c <"$W/$f")))
        flip "$W/$f" $at
        run verify "$W" --full
        [ "$status" = 4 ] || missed="$missed $at($status)"
        flip "$W/$f" $at
    done
    check "flips_of_$(basename "$f")" "not found at$missed" [ -z "$missed" ]
done
for at in $(seq 0 64 12287); do # header, index, and the zeros after both
    flip "$W/experts/L002.bank" "$at"
    run verify "$W" --full
    [ "$status" = 4 ] || missed="$missed $at($status)"
    flip "$W/experts/L002.bank" "$at"
done
check flips_of_header_and_index "not found at$missed" [ -z "$missed" ]
sound flips_restored "$W" --full

# A number in pack.json that nothing contradicts: found by verify, and by whoever computes with it.
sed -i 's/"rms_norm_eps":1e-05/"rms_norm_eps":1e-06/' "$W/pack.json"
faulty number_changed '^pack\.json: its sha256 is not the one in SHA256SUMS' "$W"
refused run_refuses_it 4 'pack\.json: its sha256 is not' run "$W" -p x -n 1
refused convert_refuses_it 4 'pack\.json: its sha256 is not' convert "$W" "$T/again.pack" --trunk t8
rm "$W/SHA256SUMS"
sound without_sums "$W"
check without_sums_says_so "$(cat "$T/err")" grep -q 'note: SHA256SUMS: missing' "$T/err"
run run "$W" -p x -n 1 --temp 0
check without_sums_runs "exit $status: $(cat "$T/err")" [ "$status" = 0 ]
