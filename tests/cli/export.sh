# sluice export: exit codes and messages; contents are compared in tests/convert/test_export.c.
. tests/cli/lib/common.sh

nano_pack
run export "$T/nano.pack" "$T/again" --format hf
check export_exits_0 "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
check one_shard_a_layer "$(ls "$T/again")" [ -e "$T/again/model-00006-of-000006.safetensors" ]
for f in config.json tiktoken.model tokenizer_config.json; do
    check "same_$f" "differs" cmp -s "$NANO/$f" "$T/again/$f"
done
run convert "$T/again" "$T/again.pack"
check export_converts_again "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
check same_trunk "trunk.bin differs" cmp -s "$T/nano.pack/trunk.bin" "$T/again.pack/trunk.bin"
check same_bank "L003.bank differs" \
    cmp -s "$T/nano.pack/experts/L003.bank" "$T/again.pack/experts/L003.bank"

refused not_empty 2 'is not empty' export "$T/nano.pack" "$T/again" --format hf
refused format_is_needed 2 '--format' export "$T/nano.pack" "$T/no"
refused unknown_format 2 '--format' export "$T/nano.pack" "$T/no" --format onnx
refused no_pack 4 "$T/none" export "$T/none" "$T/no" --format hf
run convert "$NANO" "$T/t8.pack" --trunk t8
refused lossy 3 'model\.layers\.0\.[a-z_.]*: stored as t8: this pack is lossy' \
    export "$T/t8.pack" "$T/no" --format hf
check refusals_leave_nothing "$(ls -A "$T/no" 2>/dev/null)" [ ! -e "$T/no" ]
truncate -s -1 "$T/t8.pack/trunk.bin"
refused cut_pack 4 'trunk.bin' export "$T/t8.pack" "$T/no" --format hf

mkdir "$T/disk"
if mount -t tmpfs -o size=8m none "$T/disk" 2>/dev/null; then
    trap 'umount "$T/disk" 2>/dev/null; rm -rf "$T"' EXIT
    refused disk_full 5 'needs [0-9]+ bytes, [0-9]+ are free: [0-9]+ bytes are missing' \
        export "$T/nano.pack" "$T/disk/again" --format hf
    check disk_full_leaves_nothing "$(ls -A "$T/disk")" [ -z "$(ls -A "$T/disk")" ]
    umount "$T/disk"
else
    skip disk_full "cannot mount a tmpfs"
fi
(
    ulimit -f 2000
    exec "$SLUICE" export "$T/nano.pack" "$T/limited" --format hf >"$T/out" 2>"$T/err"
)
status=$?
check size_limit_exits_4 "exit status $status: $(cat "$T/err")" [ "$status" = 4 ]
check size_limit_leaves_nothing "$(ls "$T/limited" 2>/dev/null)" [ ! -e "$T/limited" ]

run export "$T/nano.pack" "$T/nano.gguf" --format gguf
check gguf_exits_0 "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
run convert "$T/nano.gguf" "$T/from-gguf.pack"
check gguf_converts "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
for p in nano from-gguf; do
    run logits "$T/$p.pack" --ids 1,2,3,50,60,70,3840,9 --out "$T/$p.f32"
    check "logits_of_$p" "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
done
check same_logits "they differ" cmp -s "$T/nano.f32" "$T/from-gguf.f32"
run verify "$T/from-gguf.pack" --full
check gguf_pack_is_sound "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
mkdir "$T/tmp"
TMPDIR="$T/tmp" run convert "$T/nano.gguf" "$T/again.dry" --dry-run
check no_folder_is_left "$(ls "$T/tmp")" [ -z "$(ls "$T/tmp")" ]
refused fused_is_no_checkpoint 3 'model.output_res_score: this pack came from GGUF' \
    export "$T/from-gguf.pack" "$T/no" --format hf
refused gguf_exists 2 'exists already' export "$T/nano.pack" "$T/nano.gguf" --format gguf
run export "$T/nano.pack" "$T/dry.gguf" --format gguf --dry-run --json
check dry_run_is_exact "$(cat "$T/out" "$T/err")" \
    [ "$(json "$T/out" total_bytes)" = "$(stat -c %s "$T/nano.gguf")" ]
check dry_run_writes_nothing "$(ls "$T")" [ ! -e "$T/dry.gguf" ]
truncate -s -100 "$T/nano.gguf"
refused cut_gguf 3 'nano.gguf: [a-z_0-9.]*: [0-9]+ bytes at [0-9]+ of the data' \
    convert "$T/nano.gguf" "$T/no"
