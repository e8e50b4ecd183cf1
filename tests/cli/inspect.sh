# sluice inspect: checkpoints and packs, as a table and as JSON, and what it refuses.
. tests/cli/lib/common.sh
TINY=tests/fixtures/tiny-a

helps help inspect
refused no_path 2 'missing PATH' inspect
refused two_paths 2 'inspect' inspect "$TINY" "$TINY"
refused unknown_option 2 '--jsn' inspect --jsn "$TINY"
refused no_such_folder 3 'nowhere: open: No such file' inspect "$T/nowhere"
refused not_a_checkpoint 3 'holds no config.json' inspect runtime
refused a_file 3 'is not a folder' inspect "$TINY/config.json"

run inspect "$TINY"
check table "exit $status, $(cat "$T/err")" [ "$status" = 0 -a ! -s "$T/err" ]
check table_names_shape "$(head -c 400 "$T/out")" \
    grep -q '^model  *9 layers: 6 KDA, 3 MLA; 1 dense, 8 MoE$' "$T/out"
run inspect "$TINY" --json
cp "$T/out" "$T/source.json"
check json "exit $status" [ "$status" = 0 ]
is() { # NAME FILE WANTED KEY...
    local name=$1 file=$2 want=$3
    shift 3
    local found
    found=$(json "$file" "$@")
    check "$name" "'$found', expected '$want'" [ -n "$found" -a "$found" = "$want" ]
}
is schema "$T/source.json" 1 schema
is kind "$T/source.json" checkpoint kind
is tensors "$T/source.json" 1386 tensors
# The index of the fixture states the sum; the files' sizes are the file system's.
is payload "$T/source.json" "$(json $TINY/model.safetensors.index.json metadata total_size)" payload_bytes
is file_bytes "$T/source.json" "$(cat $TINY/*.safetensors | wc -c)" file_bytes
is hidden "$T/source.json" "$(json $TINY/config.json text_config hidden_size)" config hidden_size

cp -r "$TINY" "$T/copy"
truncate -s -1 "$T/copy/model-00002-of-000010.safetensors"
refused cut_by_one_byte 3 '^sluice: model-00002-of-000010.safetensors: .* 1 short of ' inspect "$T/copy"
truncate -s +2 "$T/copy/model-00002-of-000010.safetensors"
refused one_byte_more 3 '^sluice: model-00002-of-000010.safetensors: .* trailing bytes' inspect "$T/copy"
truncate -s -1 "$T/copy/model-00002-of-000010.safetensors"
run inspect "$T/copy"
check mended "exit $status, $(cat "$T/err")" [ "$status" = 0 ]
rm "$T"/copy/model-0000[35]-of-000010.safetensors
refused missing_shards 3 '2 of 10 shards missing: model-00003-of-000010.safetensors, model-00005' \
    inspect "$T/copy"
sed 's/"kimi_k3"/"llama"/' "$TINY/config.json" >"$T/copy/config.json"
refused another_model 3 '^sluice: config.json: model_type: llama, expected kimi_k3$' inspect "$T/copy"

# A pack of it: the config survives, sizes are the files', the prices were right.
run convert "$TINY" "$T/tiny.pack" --experts mxfp4 --trunk t8
if [ "$status" != 0 ]; then
    fail convert "exit $status: $(head -c 300 "$T/err")"
    exit 1
fi
run inspect "$T/tiny.pack"
check pack_table "exit $status, $(cat "$T/err")" [ "$status" = 0 -a ! -s "$T/err" ]
run inspect "$T/tiny.pack" --json
cp "$T/out" "$T/pack.json"
is pack_kind "$T/pack.json" pack kind
is pack_formats "$T/pack.json" mxfp4 experts_format
is pack_trunk_format "$T/pack.json" t8 trunk_format
is pack_source "$T/pack.json" "$(json "$T/source.json" source_sha256)" source_sha256
is pack_trunk_bytes "$T/pack.json" "$(wc -c <"$T/tiny.pack/trunk.bin")" trunk_bytes
is pack_bank_bytes "$T/pack.json" "$(cat "$T"/tiny.pack/experts/*.bank | wc -c)" bank_bytes
is trunk_was_priced "$T/pack.json" "$(json "$T/source.json" pack trunk_t8_bytes)" trunk_bytes
is banks_were_priced "$T/pack.json" "$(json "$T/source.json" pack banks_mxfp4_bytes)" bank_bytes
is pack_matrices "$T/pack.json" $((8 * 24 * 3)) expert_matrices mxfp4
is pack_hidden "$T/pack.json" 96 config hidden_size
truncate -s -1 "$T/tiny.pack/trunk.bin"
refused pack_cut 4 'trunk.bin' inspect "$T/tiny.pack"
