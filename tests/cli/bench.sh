# sluice bench: runs, reports medians, refuses what it does not know. Speeds are not judged here.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
for what in prefill decode; do
    run bench $what "$P" -n 8 --rounds 2 --json
    check "$what" "exit $status: $(head -c 200 "$T/err")" \
        [ "$(json "$T/out" bench) $(json "$T/out" tokens) $(json "$T/out" rounds)" = "$what 8 2" ]
    check "${what}_rate" "$(json "$T/out" tok_per_s)" \
        awk -v v="$(json "$T/out" tok_per_s)" 'BEGIN { exit !(v > 0) }'
done
run bench decode "$P" -n 4 --rounds 1
check human_report "$(cat "$T/out")" grep -q '^decode  4 tokens, 1 rounds, .* tok/s' "$T/out"
refused unknown_bench 2 "'disk' is none of kernels, prefill, decode, io" bench disk
refused no_pack 2 "missing PACK" bench decode
refused pack_of_kernels 2 "kernels takes no PACK" bench kernels "$P"
refused missing_pack 4 "no-such" bench decode "$T/no-such"
refused flags_that_kernels_would_ignore 2 "kernels takes no option but --seconds" \
    bench kernels --threads 2
refused seconds_of_a_pack 2 "--seconds is an option of kernels" bench decode "$P" --seconds 1

# ---- drives: bytes add up, the kernel agrees, every method, nothing is left behind
mkdir "$T/d"
for io in pread mmap; do
    run bench io --path "$T/d" --record 64KiB --depth 3 --rounds 2 --seconds 0 --io $io --json
    check "io_$io" "exit $status: $(head -c 200 "$T/err")" \
        [ "$status $(json "$T/out" io) $(json "$T/out" depths 0 depth)" = "0 $io 3" ]
    check "io_${io}_bytes" "$(json "$T/out" depths 0 bytes_read)" \
        [ $(($(json "$T/out" depths 0 bytes_read) % 65536)) = 0 ]
    check "io_${io}_leaves_nothing" "$(ls "$T/d")" [ -z "$(ls "$T/d")" ]
done
run bench io --path "$T/d" --record 64KiB --rounds 1 --seconds 0 --json
if [ "$(json "$T/out" direct_io)$(json "$T/out" kernel_counted)" = truetrue ]; then
    check io_kernel_agrees "$(cat "$T/out")" \
        [ "$(json "$T/out" depths 4 kernel_bytes_fetched)" -ge "$(json "$T/out" depths 4 bytes_read)" ]
else
    skip io_kernel_agrees "no direct reads here, or no account of them"
fi
run bench io --path "$T/d" --record 64KiB --depth 2 --rounds 1 --seconds 0
check io_for_people "$(cat "$T/out")" grep -q '^depth 2 .* GB/s' "$T/out"
refused io_depth_out_of_range 2 "--depth" bench io --depth 65
refused io_no_folder 2 "--path: .* is no folder" bench io --path "$T/none"
refused io_takes_no_pack 2 "unexpected argument" bench io "$P"
