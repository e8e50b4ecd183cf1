#!/bin/sh
# How busy a decode step keeps the drive, and what going around the page cache is worth: three MoE layers of
# K3 at full width, m4 experts, 12 GiB of memory for everything.
#
#   sh scripts/bench_stream.sh DIR [TOKENS [ROUNDS]]
#
# DIR has room for 51 GB: the pack is made there once and kept (three banks of its own: layers that shared
# one would share its page cache too). Both ways of reading decode the same tokens, so they ask for the same
# experts; rounds take turns. A prompt of 48 tokens comes first and fills the slots: a read into memory that was
# never touched is several times slower, and counts for neither. Memory is limited by a control group where one can be made, so that the page
# cache counts; otherwise by --ram alone, and mmap then has the rest of the machine for its cache.
set -eu
SLUICE=${SLUICE:-build/sluice}
[ $# -ge 1 ] || { sed -n '5s/^# *//p' "$0" >&2; exit 2; }
pack=$1/stream3.pack tokens=${2:-24} rounds=${3:-3}
limit=$((12 << 30))
tmp=$(mktemp -d)
group=
trap '[ -z "$group" ] || rmdir "$group" 2>/dev/null; rm -rf "$tmp"' EXIT

[ -e "$pack/pack.json" ] || "$SLUICE" synth "$pack" --like k3 --layers 4 --experts m4 --trunk t8 >&2

for at in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    file=memory.max
    [ "$at" = /sys/fs/cgroup ] || file=memory.limit_in_bytes
    mkdir "$at/sluice-bench-$$" 2>/dev/null || continue
    group=$at/sluice-bench-$$
    if [ -w "$group/$file" ] && echo "$limit" >"$group/$file" 2>/dev/null; then break; fi
    rmdir "$group"
    group=
done

# decode IO FILE: one round in the group, or under --ram.
decode() {
    (
        if [ -n "$group" ]; then
            sh -c 'echo $PPID' >"$group/cgroup.procs"
        else
            set -- "$@" --ram 12GiB
        fi
        io=$1 out=$2
        shift 2
        exec "$SLUICE" run "$pack" --ids "$(seq -s, 3 50)" -n $((tokens + 1)) --ignore-eos --temp 0 --ctx 256 \
            --io "$io" --stats "$out" "$@" >/dev/null
    )
}

# value FILE KEY: a number of a one-line JSON object.
value() { sed -n "s/.*\"$2\":\([-0-9.e+]*\).*/\1/p" "$1"; }
stage() { sed -n 's/.*"decode_stage_seconds":{\([^}]*\)}.*/\1/p' "$1" | sed -n "s/.*\"$2\":\([-0-9.e+]*\).*/\1/p"; }

"$SLUICE" --version
if [ -n "$group" ]; then echo "12 GiB by a control group"; else echo "12 GiB by --ram: no control group can be made"; fi
echo '| round | read by | tokens a second | drive busy | attention, s | experts | waiting | head | peak GB |'
echo '|---|---|---|---|---|---|---|---|---|'
round=0
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    for io in auto mmap; do
        f=$tmp/$io.$round
        decode $io "$f"
        awk -v r=$round -v io=$io -v t="$(value "$f" decode_tok_per_s)" \
            -v b="$(value "$f" decode_drive_busy_share)" -v w="$(stage "$f" waiting)" \
            -v a="$(stage "$f" attention)" -v e="$(stage "$f" experts)" -v h="$(stage "$f" head)" \
            -v n="$(value "$f" decode_tokens)" -v p="$(value "$f" measured_peak_bytes)" \
            'BEGIN { printf "| %d | %s | %.3f | %.0f %% | %.3f | %.3f | %.3f | %.3f | %.2f |\n", r, io, t,
                     100 * b, a / n, e / n, w / n, h / n, p / 1e9 }'
    done
done
median() {
    # shellcheck disable=SC2005 # the value has no newline of its own
    for f in "$tmp/$1".*; do echo "$(value "$f" decode_tok_per_s)"; done | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
awk -v a="$(median auto)" -v b="$(median mmap)" \
    'BEGIN { printf "medians: %.3f and %.3f tokens a second, %.2f times\n", a, b, a / b }'
