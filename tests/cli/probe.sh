# sluice probe: writes a board that plan reads, leaves nothing behind, refuses what the page cache
# answers. Speeds are not judged here.
. tests/cli/lib/common.sh
mkdir "$T/d"
run probe --path "$T/d" --quick --record 64KiB -o "$T/here.json" --json
cp "$T/out" "$T/probe.json"
if [ "$status" = 4 ] && grep -q 'page cache' "$T/err"; then
    skip probe "the temporary folder is not on a drive"
else
    check probes "exit $status: $(head -c 300 "$T/err")" [ "$status" = 0 ]
    check nothing_left "$(ls "$T/d")" [ -z "$(ls "$T/d")" ]
    check file_was_announced "$(cat "$T/err")" grep -q 'temporary file of at most 268 MB' "$T/err"
    check says_measured "$(json "$T/here.json" measured)" [ "$(json "$T/here.json" measured)" = true ]
    for key in "cpu cores" "cpu mul 0 decode_gweights_per_s" "memory read_gbps" "memory copy_gbps" \
        "drives 0 read 0 gbps"; do
        # shellcheck disable=SC2086
        v=$(json "$T/here.json" $key)
        check "positive_${key// /_}" "$v" awk -v v="$v" 'BEGIN { exit !(v > 0) }'
    done
    check record_size "$(json "$T/here.json" drives 0 record_bytes)" \
        [ "$(json "$T/here.json" drives 0 record_bytes)" = 65536 ]
    check file_is_bounded "$(json "$T/probe.json" temporary_file_bytes)" \
        [ "$(json "$T/probe.json" temporary_file_bytes)" -le $((64 * 65536)) ]
    if [ "$(json "$T/probe.json" kernel_counted)" = true ]; then
        check kernel_agrees "read $(json "$T/probe.json" bytes_read), fetched $(json "$T/probe.json" kernel_bytes_fetched)" \
            awk -v a="$(json "$T/probe.json" bytes_read)" -v b="$(json "$T/probe.json" kernel_bytes_fetched)" \
            'BEGIN { exit !(b > 0.95 * a) }'
    else
        skip kernel_agrees "this kernel keeps no account"
    fi
    run plan k3 --board "$T/here.json" --ram 70G --hits 0 --json
    # A machine too small for the trunk refuses; either way the board was read.
    case $status in 0 | 5) ok plan_reads_it ;; *) fail plan_reads_it "exit $status: $(head -c 200 "$T/err")" ;; esac
fi

# Memory that passes for a drive: the kernel fetches nothing.
if [ -d /dev/shm ] && [ -w /dev/shm ] && [ "$(stat -f -c %T /dev/shm)" = tmpfs ] && [ -r /proc/self/io ]; then
    M=$(mktemp -d /dev/shm/sluice-probe.XXXXXX)
    run probe --path "$M" --quick --record 64KiB
    check page_cache_is_refused "exit $status: $(head -c 300 "$T/err")" \
        grep -q 'the page cache answers here' "$T/err"
    check with_status_4 "exit $status" [ "$status" = 4 ]
    check nothing_left_there "$(ls "$M")" [ -z "$(ls "$M")" ]
    rmdir "$M"
else
    skip page_cache_is_refused "no tmpfs at /dev/shm, or no account of reads"
fi
refused no_folder 2 "--path: .*no-such is no folder" probe --path "$T/no-such"
refused bad_record 2 "--record" probe --path "$T/d" --record 0
