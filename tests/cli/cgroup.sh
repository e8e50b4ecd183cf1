# A run under a memory limit of the kernel: it sees the limit without being told, stays inside, finishes,
# and refuses with every term when the limit is too small. Needs a control group that we may make.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
if "$SLUICE" --version | grep -q fsanitize; then
    skip cgroup "a sanitizer's own memory is in no plan"
    exit 0
fi
G=
for mount in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    case $mount in
    */memory) limit_file=memory.limit_in_bytes peak_file=memory.max_usage_in_bytes fail_file=memory.failcnt ;;
    *) limit_file=memory.max peak_file=memory.peak fail_file=memory.events ;;
    esac
    # Below our own group, where a container may write; or below the mount.
    own=$(sed -n 's/^[0-9]*:\(.*,\)\{0,1\}memory\(,.*\)\{0,1\}:\(.*\)/\3/p; s/^0::\(.*\)/\1/p' /proc/self/cgroup | head -n 1)
    for at in "$mount$own" "$mount"; do
        [ -d "$at" ] || continue
        if mkdir "$at/sluice-test-$$" 2>/dev/null; then
            if [ -w "$at/sluice-test-$$/$limit_file" ]; then
                G=$at/sluice-test-$$
                break 2
            fi
            rmdir "$at/sluice-test-$$" 2>/dev/null
        fi
    done
done
if [ -z "$G" ]; then
    skip cgroup "no control group with a memory limit can be made here"
    exit 0
fi
trap 'rmdir "$G" 2>/dev/null; rm -rf "$T"' EXIT

# in_group BYTES ARGS...: the program inside the group with that limit.
in_group() {
    echo "$1" >"$G/$limit_file" || return 1
    shift
    (
        sh -c 'echo $PPID' >"$G/cgroup.procs" &&
            exec "$SLUICE" "$@" >"$T/out" 2>"$T/err" </dev/null
    )
    status=$?
}

MIB=1048576
in_group $((96 * MIB)) run "$P" -p 'The function' -n 40 --ignore-eos --ctx 128 --stats "$T/s.json"
if [ ! -s "$T/s.json" ] && [ "$status" = 2 ] && [ ! -s "$T/err" ]; then
    skip cgroup "processes may not be moved into the group"
    exit 0
fi
check finishes_inside "exit $status: $(head -c 300 "$T/err")" [ "$status" = 0 ]
check sees_the_limit "$(json "$T/s.json" limit_bytes)" \
    [ "$(json "$T/s.json" limit_bytes)" = $((96 * MIB - 6 * MIB)) ] # a sixteenth is kept back
planned=$(json "$T/s.json" planned_peak_bytes)
measured=$(json "$T/s.json" measured_peak_bytes)
check measured_is_planned "planned $planned, measured $measured" \
    awk -v p="$planned" -v m="$measured" 'BEGIN { d = p > m ? p - m : m - p; exit !(d < 32 * 1048576 || d < p / 50) }'
check stays_inside "peak $(cat "$G/$peak_file" 2>/dev/null)" \
    [ "$(cat "$G/$peak_file" 2>/dev/null || echo 0)" -le $((96 * MIB)) ]

in_group $((12 * MIB)) run "$P" -p 'The function' -n 4
check too_small_is_refused "exit $status: $(head -c 300 "$T/err")" [ "$status" = 5 ]
check with_every_term "$(head -c 500 "$T/err")" \
    grep -Eq 'allowed are .*\(cgroup limit .*trunk .* \+ .*expert slots' "$T/err"

# A promise beyond the limit does not lift it.
in_group $((96 * MIB)) run "$P" -p 'The function' -n 4 --ctx 128 --ram 8G --stats "$T/s.json"
check ram_flag_does_not_lift_it "$(json "$T/s.json" limit_bytes)" \
    [ "$(json "$T/s.json" limit_bytes)" = $((96 * MIB - 6 * MIB)) ]
