# sluice convert --device cuda: refusals anywhere; on a GPU, the bytes of the CPU.
. tests/cli/lib/common.sh

TINY=tests/fixtures/tiny-a
refused unknown_device 2 '--device' convert "$TINY" "$T/no.pack" --device tpu
refused lossless_on_a_gpu 2 '--device: cuda: for w26 and w36 without --calib' \
    convert "$TINY" "$T/no.pack" --device cuda
echo some text >"$T/text"
refused calibrated_on_a_gpu 2 '--device: cuda: for w26 and w36 without --calib' \
    convert "$TINY" "$T/no.pack" --device cuda --experts w26 --calib "$T/text"
run convert "$TINY" "$T/no.pack" --device cuda --experts w26
if [ "$status" = 6 ]; then
    check no_gpu_leaves_nothing "it left $T/no.pack" [ ! -e "$T/no.pack" ]
    skip gpu_bytes "$(cat "$T/err")"
    exit
fi
check converts_on_a_gpu "exit status $status: $(cat "$T/err")" [ "$status" = 0 ]
for fmt in w26 w36; do
    for source in "$TINY" models/k3-nano; do
        rm -rf "$T/a" "$T/b"
        run convert "$source" "$T/a" --experts $fmt
        run convert "$source" "$T/b" --experts $fmt --device cuda
        diff -r "$T/a" "$T/b" >"$T/diff" 2>&1
        check "${fmt}_of_${source##*/}" "$(head -c 300 "$T/diff")" [ ! -s "$T/diff" ]
    done
done
