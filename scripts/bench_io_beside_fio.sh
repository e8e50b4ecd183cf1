#!/bin/sh
# `bench io` beside fio at the same record size and depth, on one drive, arms in turn: medians and ratios.
#
#   sh scripts/bench_io_beside_fio.sh DIR [RECORD_BYTES] ["DEPTHS"]
#
# A temporary file of 2 GiB of random bytes is made in DIR and read by all arms with direct reads of whole
# records at random places. fio reads into large pages where the machine grants them (mmaphuge), as the
# store does, else into ordinary ones. ROUNDS (default 7) of EACH seconds (default 2) an arm. The target is
# 95 % of fio. Run it on a quiet machine: at depth 1 every read waits for a thread to be scheduled.
set -eu
SLUICE=${SLUICE:-build/sluice}
ROUNDS=${ROUNDS:-7}
EACH=${EACH:-2}
[ $# -ge 1 ] || { sed -n '4,10s/^# *//p' "$0" >&2; exit 2; }
command -v fio >/dev/null || { echo "fio is missing (apt-get install fio)" >&2; exit 2; }
dir=$1 record=${2:-17547264} depths=${3:-1 4 16}
record=$(((record + 4095) / 4096 * 4096))
work=$(mktemp -d)
file=$(mktemp "$dir/sluice-fio.XXXXXX")
trap 'rm -rf "$work" "$file"' EXIT
dd if=/dev/urandom of="$file" bs=4M count=512 conv=fsync 2>/dev/null

pages=mmaphuge
fio --name=try --filename="$file" --size=64m --bs=1m --rw=read --direct=1 --ioengine=io_uring --mem=mmaphuge \
    >/dev/null 2>&1 || pages=mmap

# number FILE KEY: the first number of that key.
number() { sed -n "s/.*\"$2\" *: *\([-0-9.e+]*\).*/\1/p" "$1" | head -n 1; }
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
run_fio() { # depth
    fio --name=read --filename="$file" --rw=randread --bs="$record" --direct=1 --ioengine=io_uring --iodepth="$1" \
        --norandommap --time_based --runtime="$EACH" --mem=$pages --output-format=json >"$work/fio.json"
    number "$work/fio.json" bw_bytes >>"$work/fio-$1"
}
run_ours() { # depth method
    "$SLUICE" bench io --path "$file" --record "$record" --depth "$1" --io "$2" --rounds 1 --seconds "$EACH" --json \
        >"$work/ours.json"
    awk -v g="$(number "$work/ours.json" gbps)" 'BEGIN { printf "%.0f\n", g * 1e9 }' >>"$work/$2-$1"
    awk -v a="$(number "$work/ours.json" kernel_bytes_fetched)" -v b="$(number "$work/ours.json" bytes_read)" \
        'BEGIN { print (b > 0 ? a / b : 0) }' >>"$work/kernel"
}
round=0
while [ $round -lt "$ROUNDS" ]; do
    for depth in $depths; do
        run_fio "$depth"
        run_ours "$depth" uring
        run_ours "$depth" pread
    done
    round=$((round + 1))
done
"$SLUICE" --version
fio --version
echo "records of $record bytes, $ROUNDS rounds of $EACH s, fio's memory: $pages; load: $(cut -d' ' -f1-3 /proc/loadavg)"
echo '| depth | fio GB/s | uring | of fio | pread | of fio |'
echo '|---|---|---|---|---|---|'
for depth in $depths; do
    awk -v d="$depth" -v f="$(median <"$work/fio-$depth")" -v u="$(median <"$work/uring-$depth")" -v p="$(median <"$work/pread-$depth")" \
        'BEGIN { printf "| %d | %.2f | %.2f | %.0f %% | %.2f | %.0f %% |\n", d, f / 1e9, u / 1e9, 100 * u / f, p / 1e9, 100 * p / f }'
done
echo "kernel's account over ours, median: $(median <"$work/kernel")"
