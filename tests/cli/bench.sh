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
refused unknown_bench 2 "'disk' is none of kernels, prefill, decode" bench disk
refused no_pack 2 "missing PACK" bench decode
refused pack_of_kernels 2 "kernels takes no PACK" bench kernels "$P"
refused missing_pack 4 "no-such" bench decode "$T/no-such"
refused flags_that_kernels_would_ignore 2 "kernels takes no option but --seconds" \
    bench kernels --threads 2
refused seconds_of_a_pack 2 "--seconds is an option of kernels" bench decode "$P" --seconds 1
