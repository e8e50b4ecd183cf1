# sluice convert: reports, exit codes, and what is left behind when the disk or the user says stop.
. tests/cli/lib/common.sh

TINY=tests/fixtures/tiny-a
tree_bytes() { find "$1" -type f -printf '%s\n' | awk '{s += $1} END {print s + 0}'; }
same() { diff -r "$1" "$2" >"$T/diff" 2>&1; }

# ---- reports
run convert "$TINY" "$T/dry.pack" --dry-run --json
check dry_run_exits_0 "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
check dry_run_writes_nothing "it made $T/dry.pack" [ ! -e "$T/dry.pack" ]
cp "$T/out" "$T/dry.json"
run convert "$TINY" "$T/a.pack" --json
check convert_exits_0 "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
cp "$T/out" "$T/real.json"
want=$(tree_bytes "$T/a.pack")
check dry_run_is_exact "$(json "$T/dry.json" total_bytes), files have $want" \
    [ "$(json "$T/dry.json" total_bytes)" = "$want" ]
for key in trunk_bytes bank_bytes vision_bytes other_bytes total_bytes m4_escapes; do
    check "same_$key" "dry $(json "$T/dry.json" $key), real $(json "$T/real.json" $key)" \
        [ "$(json "$T/dry.json" $key)" = "$(json "$T/real.json" $key)" ]
done
for key in schema version commit flags isa threads measured_peak_bytes; do
    check "report_has_$key" "missing" [ -n "$(json "$T/real.json" $key)" ]
done
run convert "$TINY" "$T/lines.pack"
check human_report "$(cat "$T/out")" grep -Eq "^  pack +$want bytes" "$T/out"
check same_bytes_again "$(head -c 300 "$T/diff" 2>/dev/null)" same "$T/a.pack" "$T/lines.pack"
for jobs in 1 2 5; do
    for f in "m4 bf16" "mxfp4 t8"; do
        set -- $f
        run convert "$TINY" "$T/j.pack" --jobs $jobs --experts "$1" --trunk "$2"
        [ -d "$T/$1$2.pack" ] || cp -r "$T/j.pack" "$T/$1$2.pack"
        check "jobs_${jobs}_$1_$2" "$(head -c 300 "$T/diff" 2>/dev/null)" same "$T/j.pack" "$T/$1$2.pack"
        rm -rf "$T/j.pack"
    done
done

# ---- refusals
refused finished_pack 2 'already holds a finished pack$' convert "$TINY" "$T/a.pack"
refused unknown_format 2 '--experts' convert "$TINY" "$T/no.pack" --experts q4
refused unknown_trunk 2 '--trunk' convert "$TINY" "$T/no.pack" --trunk f8
refused zero_jobs 2 '--jobs' convert "$TINY" "$T/no.pack" --jobs 0
refused empty_target 2 'DST: is empty' convert "$TINY" ""
: >"$T/file"
refused bank_dir_is_a_file 2 '--bank-dir: is not a folder' \
    convert "$TINY" "$T/no.pack" --bank-dir "$T/file"
refused target_under_a_file 4 'Not a directory' convert "$TINY" "$T/file/no.pack"
if [ "$(id -u)" = 0 ]; then
    skip denied_target "root may write everywhere"
else
    mkdir -m 555 "$T/closed"
    refused denied_target 4 'create folder: Permission denied' convert "$TINY" "$T/closed/no.pack"
fi
refused no_source 3 'nowhere' convert "$T/nowhere" "$T/no.pack"
refused one_argument 2 'missing DST' convert "$TINY"
mkdir "$T/other" && cp "$TINY"/*.json "$T/other" && sed -i 's/kimi_k3/llama/' "$T/other/config.json"
refused other_model 3 'config.json: .*llama' convert "$T/other" "$T/no.pack"
mkdir "$T/tok"
tok_case() {
    rm -rf "$T/tok" && mkdir "$T/tok"
    cp "$TINY"/*.json "$TINY"/tiktoken.model "$TINY"/*.safetensors "$T/tok"
    chmod -R u+w "$T/tok"
}
tok_case && run convert "$T/tok" "$T/no.pack" --dry-run
check tokenizer_control "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
tok_case && : >"$T/tok/tiktoken.model"
refused tokenizer_empty 3 'tiktoken.model: 0 tokens' convert "$T/tok" "$T/no.pack"
tok_case && echo 'no base64 here' >"$T/tok/tiktoken.model"
refused tokenizer_garbage 3 'tiktoken.model: line 1' convert "$T/tok" "$T/no.pack" --dry-run
tok_case && rm "$T/tok/tiktoken.model"
refused tokenizer_missing 3 'tiktoken.model: open' convert "$T/tok" "$T/no.pack"
tok_case && echo '{' >"$T/tok/tokenizer_config.json"
refused tokenizer_config_garbage 3 'tokenizer_config.json: not JSON' convert "$T/tok" "$T/no.pack"
check refusals_leave_nothing "$(ls -A "$T/no.pack" 2>/dev/null)" [ ! -e "$T/no.pack" ]
refused lossy_pack_as_source 3 'lossy' convert "$T/mxfp4t8.pack" "$T/no.pack"
run convert "$T/m4bf16.pack" "$T/from-pack.pack" --experts mxfp4 --trunk t8
check pack_as_source "$(cat "$T/err")" same "$T/from-pack.pack" "$T/mxfp4t8.pack"

# ---- a limit on file size: told, nothing half-written, and the same command goes on
limit=$(($(stat -c %s "$T/a.pack/trunk.bin") / 1024 / 2))
(
    ulimit -f $limit
    exec "$SLUICE" convert "$TINY" "$T/lim.pack" >"$T/out" 2>"$T/err"
)
status=$?
check size_limit_exits_4 "exit status $status: $(cat "$T/err")" [ "$status" = 4 ]
check size_limit_is_told "$(cat "$T/err")" grep -q 'run the same command to resume' "$T/err"
check size_limit_one_line "$(cat "$T/err")" [ "$(wc -l <"$T/err")" = 1 ]
check size_limit_keeps_banks "$(ls "$T/lim.pack/experts")" [ -e "$T/lim.pack/experts/L001.bank" ]
check size_limit_no_half_bank "$(ls "$T/lim.pack/experts")" \
    [ -z "$(ls "$T/lim.pack/experts" | grep tmp)" ]
refused other_options_while_unfinished 2 'experts: an unfinished conversion with "m4"' \
    convert "$TINY" "$T/lim.pack" --experts mxfp4
refused other_source_while_unfinished 2 'source: an unfinished conversion' \
    convert models/k3-nano "$T/lim.pack"
run convert "$TINY" "$T/lim.pack" --json
cp "$T/out" "$T/resumed.json"
check resumed_after_limit "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
check resumed_says_so "$(cat "$T/out")" [ "$(json "$T/resumed.json" resumed)" = true ]
check resumed_same_bytes "$(head -c 300 "$T/diff" 2>/dev/null)" same "$T/lim.pack" "$T/a.pack"

# ---- Ctrl-C, as soon as the journal is there; tried again where the conversion was faster
big=${SLUICE_SHARED:-../shared}/models/k3-mini
[ -e "$big/config.json" ] || big=models/k3-nano
caught=0
for try in 1 2 3 4 5 6 7 8; do
    rm -rf "$T/int.pack"
    "$SLUICE" convert "$big" "$T/int.pack" --jobs 1 >"$T/out" 2>"$T/err" &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ ! -e "$T/int.pack/.convert/journal" ]; do sleep 0.002; done
    kill -INT $pid 2>/dev/null
    wait $pid
    status=$?
    [ $status = 130 ] && [ -e "$T/int.pack/.convert/journal" ] && caught=1 && break
done
if [ $caught = 1 ]; then
    check interrupt_is_told "$(cat "$T/err")" grep -q 'interrupted.*run the same command' "$T/err"
    run convert "$big" "$T/int.pack"
    check interrupt_resumes "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
    run convert "$big" "$T/big.pack"
    check interrupt_same_bytes "$(head -c 300 "$T/diff" 2>/dev/null)" same "$T/int.pack" "$T/big.pack"
else
    skip interrupt "no conversion was caught in time"
fi

# ---- a small disk
mkdir "$T/disk"
if mount -t tmpfs -o size=3m none "$T/disk" 2>/dev/null; then
    trap 'umount "$T/disk" 2>/dev/null; rm -rf "$T"' EXIT
    refused disk_full 5 'needs [0-9]+ bytes, [0-9]+ are free: [0-9]+ bytes .* are missing' \
        convert "$TINY" "$T/disk/deep/a.pack"
    check disk_full_leaves_nothing "$(ls -A "$T/disk")" [ -z "$(ls -A "$T/disk")" ]
    run convert "$TINY" "$T/disk/a.pack" --dry-run --json
    cp "$T/out" "$T/small.json"
    check dry_run_needs_no_space "exit status $status" [ "$status" = 0 ]
    need=$(json "$T/small.json" total_bytes)
    free=$(json "$T/small.json" free_bytes)
    missing=$(json "$T/small.json" missing_bytes)
    check dry_run_says_what_is_missing "need $need, free $free, missing $missing" \
        [ "$missing" -ge $((need - free)) -a "$missing" -lt $((need - free + 400000)) ]
    # Banks on another drive: what is left fits.
    run convert "$TINY" "$T/disk/a.pack" --bank-dir "$T/banks"
    check another_drive_for_banks "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
    rm -rf "$T/disk/a.pack"
    # Source and pack do not fit together; freeing on the way makes room.
    mount -o remount,size=5m "$T/disk"
    mkdir "$T/disk/src" && cp "$TINY"/*.* "$T/disk/src"
    refused no_room_beside_the_source 5 'missing' convert "$T/disk/src" "$T/disk/f.pack"
    run convert "$T/disk/src" "$T/disk/f.pack" --free-source
    check room_by_freeing "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
    check room_by_freeing_same_bytes "$(head -c 300 "$T/diff" 2>/dev/null)" \
        same "$T/disk/f.pack" "$T/a.pack"
    check source_is_freed "$(ls "$T/disk/src")" [ -z "$(ls "$T/disk/src" | grep '00001-of')" ]
    umount "$T/disk"
else
    skip disk_full "cannot mount a tmpfs"
fi

# ---- the trunk by groups
run convert "$TINY" "$T/g.pack" --trunk t6,embed=bf16,kda=t8,head=t4 --json
check trunk_by_groups "exit $status: $(cat "$T/err")" [ "$status" = 0 ]
group_fmt() { grep -o "\"$1\":{\"fmt\":\"[a-z0-9]*\"" "$T/g.pack/pack.json" | sed 's/.*:"\(.*\)"/\1/'; }
for pair in model.embed_tokens.weight=bf16 lm_head.weight=t4 model.layers.0.self_attn.q_proj.weight=t8 \
    model.layers.0.mlp.up_proj.weight=t6; do
    check "trunk_group_$pair" "$(group_fmt "${pair%=*}")" [ "$(group_fmt "${pair%=*}")" = "${pair#*=}" ]
done
run verify "$T/g.pack" --full
check trunk_by_groups_verifies "exit $status: $(cat "$T/err")" [ "$status" = 0 ]
refused trunk_group_unknown 2 'trunk t6,router=t4' convert "$TINY" "$T/no.pack" --trunk t6,router=t4
refused trunk_group_format 2 'trunk t6,kda=w26' convert "$TINY" "$T/no.pack" --trunk t6,kda=w26
refused trunk_group_twice 2 'trunk t6,kda=t8' convert "$TINY" "$T/no.pack" --trunk t6,kda=t8,kda=t4
refused trunk_group_empty 2 'trunk t6,' convert "$TINY" "$T/no.pack" --trunk t6,
