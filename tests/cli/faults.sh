# A drive that misbehaves under convert, run, export and saved states; kill -9 at random times; power cuts.
# Outcomes: survived (exit 0, the same answer), clean (an exit code of ours, one line, and the same
# command again gives the same answer); never a wrong answer, never a crash. docs/results/faults.md has
# the table; SLUICE_KILLS and SLUICE_CUTS (12) ask for more of both.
. tests/cli/lib/common.sh
TINY=tests/fixtures/tiny-a
SHIM=$PWD/$BUILD/tests/faults/shim_faults.so
CUT=$BUILD/tests/faults/tool_power_cut
export SLUICE_FAULT_LOG=$T/injected

if ! LD_PRELOAD=$SHIM "$SLUICE" --version >/dev/null 2>"$T/err"; then
    skip faults "the shim cannot be preloaded here ($(head -c 100 "$T/err"))"
    exit 0
fi

# faulty RULE ARGS...: one run under the shim; $status, $T/out, $T/err, $T/injected.
faulty() {
    local rule=$1
    shift
    : >"$T/injected"
    SLUICE_FAULT=$rule LD_PRELOAD=$SHIM "$SLUICE" "$@" >"$T/out" 2>"$T/err" </dev/null
    status=$?
}

# outcome NAME WANT: WANT is survived or the exit status of a clean error; SAME is a command that says
# whether the answer is the right one.
outcome() {
    local name=$1 want=$2
    if [ ! -s "$T/injected" ]; then
        fail "$name" "no fault was injected"
    elif [ "$want" = survived ]; then
        if [ "$status" != 0 ]; then
            fail "$name" "exit status $status: $(head -c 300 "$T/err")"
        elif ! same; then
            fail "$name" "SILENT: exit status 0 and another answer"
        else
            ok "$name"
        fi
    elif [ "$status" != "$want" ]; then
        if [ "$status" = 0 ] && ! same; then
            fail "$name" "SILENT: exit status 0 and another answer"
        else
            fail "$name" "exit status $status, expected $want: $(head -c 300 "$T/err")"
        fi
    elif [ "$(wc -l <"$T/err")" != 1 ]; then
        fail "$name" "stderr has $(wc -l <"$T/err") lines: $(head -c 300 "$T/err")"
    else
        ok "$name"
    fi
}

# ---- convert

run convert $TINY "$T/want" --jobs 1
[ "$status" = 0 ] || { fail convert "$(head -c 300 "$T/err")"; exit 1; }
same() { diff -r "$T/want" "$T/dst" >/dev/null 2>&1; }
# after_clean NAME: the same command without the fault gives the same bytes.
again() {
    run convert $TINY "$T/dst" --jobs 1
    check "$1_again" "exit status $status: $(head -c 300 "$T/err") $(diff -rq "$T/want" "$T/dst" | head -n 3)" \
        same
    rm -rf "$T/dst"
}
converts() { # NAME RULE WANT
    faulty "$2" convert $TINY "$T/dst" --jobs 1
    outcome "convert_$1" "$3"
    [ "$3" = survived ] && rm -rf "$T/dst"
    [ "$3" = survived ] || again "convert_$1"
}
converts short_reads 'short read .safetensors 0' survived
converts interrupted_reads 'eintr read .safetensors 0' survived
converts slow_reads 'slow read model-00003 0' survived
converts failed_read 'eio read model-00005 9' 4
converts failed_header 'eio read model-00002 1' 4
converts short_writes 'short write . 0' survived
converts interrupted_writes 'eintr write . 0' survived
converts full_disk_in_trunk 'enospc write trunk.bin 3' 5
converts full_disk_in_bank 'enospc write L004.bank 1' 5
converts torn_trunk 'torn write trunk.bin 5' 4
converts torn_bank 'torn write L002.bank 1' 4
converts torn_journal 'torn write journal 6' 4
converts torn_manifest 'torn write pack.json 1' 4
converts failed_sync 'eio sync L003.bank 1' 4
converts failed_trunk_sync 'eio sync trunk.bin 2' 4
converts failed_rename 'eio rename L005.bank 1' 4
converts failed_manifest_rename 'eio rename pack.json 1' 4
converts failed_open 'eio open L006.bank 1' 4

# What a drive writes wrong without saying so is found by verify --full, named, and only by reading.
for where in trunk.bin:2 L003.bank:1; do
    faulty "flip write ${where%:*} ${where#*:}" convert $TINY "$T/dst" --jobs 1
    check "flip_${where%:*}_is_injected" "$(cat "$T/injected")" [ -s "$T/injected" ]
    run verify "$T/dst" --full
    check "verify_finds_${where%:*}" "exit status $status: $(cat "$T/out" "$T/err")" [ "$status" = 4 ]
    rm -rf "$T/dst"
done

# ---- run

nano_pack
ASK=(run "$T/nano.pack" -p "The kernel" -n 12 --temp 0 --io pread)
run "${ASK[@]}"
cp "$T/out" "$T/answer"
same() { cmp -s "$T/out" "$T/answer"; }
runs() { # NAME RULE WANT
    faulty "$2" "${ASK[@]}"
    outcome "run_$1" "$3"
}
runs short_reads 'short read .bank 0' survived
runs interrupted_reads 'eintr read .bank 0' survived
runs slow_reads 'slow read L002.bank 0' survived
runs one_failed_record 'eio read L002.bank 20' survived
runs failed_bank 'eio read L003.bank 0' 4
runs flipped_record 'flip read L003.bank 9' 4
runs flipped_index 'flip read L001.bank 2' 4
runs failed_trunk_probe 'eio read trunk.bin 1' survived # whether direct reads work
runs failed_trunk 'eio read trunk.bin 3' 4
runs flipped_trunk 'flip read trunk.bin 3' 4
runs short_trunk 'short read trunk.bin 0' survived

ASK+=(--check first)
runs first_touch_clean 'short read .bank 0' survived
runs first_touch_flipped 'flip read L003.bank 9' 4
ASK[-1]=off
runs unchecked_clean 'short read .bank 0' survived

# The same by io_uring, where it is there.
ASK=(run "$T/nano.pack" -p "The kernel" -n 12 --temp 0 --io uring)
run "${ASK[@]}" --stats "$T/stats"
if [ "$status" = 0 ] && [ "$(json "$T/stats" io)" = uring ]; then
    check ring_gives_the_answer "$(head -c 100 "$T/out")" same
    runs ring_short_reads 'short ring .bank 0' survived
    runs ring_slow_reads 'slow ring L002.bank 0' survived
    runs ring_one_failed_record 'eio ring L002.bank 20' survived
    runs ring_failed_bank 'eio ring L003.bank 0' 4
    runs ring_flipped_record 'flip ring L003.bank 9' 4
    ASK+=(--check first)
    runs ring_first_touch_flipped 'flip ring L003.bank 9' 4
    ASK[-1]=off
    runs ring_unchecked_clean 'short ring .bank 0' survived
else
    skip ring "io_uring is not there, reads by it are not tried"
fi

# A saved state: the old file or the new one, never a part; a damaged one is refused.
run run "$T/nano.pack" -p "One" -n 2 --temp 0 --save-state "$T/saved.state"
cp "$T/saved.state" "$T/old"
saves() { # NAME RULE WANT
    cp "$T/old" "$T/saved.state"
    faulty "$2" run "$T/nano.pack" -p "Two words" -n 2 --temp 0 --save-state "$T/saved.state"
    check "save_$1" "exit status $status: $(head -c 200 "$T/err")" [ "$status" = "$3" ]
    check "save_$1_keeps_the_old" "the file changed" cmp -s "$T/saved.state" "$T/old"
}
saves full_disk 'enospc write saved.state.tmp 2' 5
saves torn 'torn write saved.state.tmp 2' 4
saves failed_sync 'eio sync saved.state.tmp 1' 4
saves failed_rename 'eio rename saved.state 1' 4
faulty 'flip read saved.state 2' run "$T/nano.pack" --load-state "$T/saved.state" -p x -n 1 --temp 0
check load_flipped "exit status $status: $(head -c 200 "$T/err")" [ "$status" = 3 ]

# ---- export

run export "$T/nano.pack" "$T/want.gguf" --format gguf
exports() { # NAME RULE WANT
    faulty "$2" export "$T/nano.pack" "$T/got.gguf" --format gguf
    same() { cmp -s "$T/got.gguf" "$T/want.gguf"; }
    outcome "export_$1" "$3"
    [ "$3" = survived ] || check "export_$1_leaves_nothing" "$(ls "$T")" [ -z "$(ls "$T"/got* 2>/dev/null)" ]
    rm -f "$T"/got*
}
exports short_writes 'short write .gguf 0' survived
exports full_disk 'enospc write .gguf 4' 5
exports failed_sync 'eio sync .gguf 1' 4
exports flipped_record 'flip read .bank 20' 4
exports flipped_trunk 'flip read trunk.bin 30' 4

# ---- kill -9 at random times, resumed until done

same() { diff -r "$T/want" "$T/dst" >/dev/null 2>&1; }
kills=${SLUICE_KILLS:-12} killed=0 wrong=0
RANDOM=7
while [ "$killed" -lt "$kills" ]; do
    rm -rf "$T/dst"
    for try in 1 2 3 4 5 6; do
        SLUICE_FAULT='slow write . 0' LD_PRELOAD=$SHIM "$SLUICE" convert $TINY "$T/dst" --jobs 2 \
            >/dev/null 2>&1 &
        pid=$!
        sleep "0.$(printf %03d $((RANDOM % 300 + 5)))"
        if kill -9 $pid 2>/dev/null; then killed=$((killed + 1)); fi
        wait $pid 2>/dev/null
        [ "$killed" -lt "$kills" ] || break
    done
    run convert $TINY "$T/dst" --jobs 2
    if ! same; then
        wrong=$((wrong + 1))
        cp "$T/err" "$T/wrong"
    fi
done
check "kill_9_at_${killed}_random_times" "$wrong differ: $(head -c 200 "$T/wrong" 2>/dev/null)" [ "$wrong" = 0 ]
rm -rf "$T/dst"

# ---- power cuts: all that was not synced is lost

SLUICE_RECORD=$T/record SLUICE_RECORD_DIR=$T/cut LD_PRELOAD=$SHIM "$SLUICE" convert $TINY "$T/cut" --jobs 1 \
    >/dev/null 2>"$T/err"
n=$("$CUT" "$T/record" count)
check record "$(cat "$T/err")" [ "${n:-0}" -gt 50 ]
cuts=${SLUICE_CUTS:-12} done=0 wrong=0 early=0
for i in $(seq 1 "$cuts"); do
    k=$((n * i / cuts))
    rm -rf "$T/dst"
    "$CUT" "$T/record" $k "$T/cut" "$T/dst"
    # A pack that opens as finished must be whole.
    if [ -e "$T/dst/pack.json" ] && [ ! -e "$T/dst/.convert" ]; then
        same || early=$((early + 1))
    else
        run convert $TINY "$T/dst" --jobs 1
        if ! same; then
            wrong=$((wrong + 1))
            echo "cut $k of $n: $(head -c 200 "$T/err")" >>"$T/wrong"
        fi
    fi
    done=$((done + 1))
done
check "power_cut_convert_${done}_points" "$wrong wrong, $early finished too early: $(head -c 400 "$T/wrong" 2>/dev/null)" \
    [ "$((wrong + early))" = 0 ]

mkdir "$T/states"
cp "$T/old" "$T/states/saved.state"
# The old file's name and bytes are on the drive before: written, synced, in a record of their own.
SLUICE_RECORD=$T/record SLUICE_RECORD_DIR=$T/states LD_PRELOAD=$SHIM "$SLUICE" run "$T/nano.pack" \
    -p "Two words" -n 2 --temp 0 --save-state "$T/states/saved.state" >/dev/null 2>"$T/err"
n=$("$CUT" "$T/record" count)
wrong=0 new=0
for k in $(seq 0 "$n"); do
    rm -rf "$T/dst"
    "$CUT" "$T/record" "$k" "$T/states" "$T/dst"
    # Nothing of that name in the record: the old file is still there.
    [ -e "$T/dst/saved.state" ] || continue
    if cmp -s "$T/dst/saved.state" "$T/states/saved.state"; then new=$((new + 1)); else wrong=$((wrong + 1)); fi
done
check "power_cut_state_${n}_points" "$wrong points hold a part of a file, $new the new one" \
    [ "$wrong" = 0 ] && check power_cut_state_is_kept "never on the drive" [ "$new" -gt 0 ]
