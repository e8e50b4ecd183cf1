#!/usr/bin/env bash
# The released layout at full size, without its weights: makes it as sparse files in a temporary
# folder, runs inspect and convert --dry-run on it, compares totals and peak memory. About 30 seconds,
# 150 MB of disk. Prints ok, FAIL and SKIP lines; SLUICE names the program (default build/sluice).
set -u
cd "$(dirname "$0")/../.." || exit 1
SLUICE=${SLUICE:-build/sluice}
T=$(mktemp -d "${TMPDIR:-/tmp}/sluice-full.XXXXXX") || exit 1
trap 'rm -rf "$T"' EXIT

skip() {
    echo "SKIP full_size: $1"
    exit 0
}
command -v python3 >/dev/null || skip "needs python3"
truncate -s 17G "$T/probe" 2>/dev/null || skip "the file system of $T refuses a file of 17 GB"
[ "$(du -k "$T/probe" | cut -f1)" -lt 1024 ] || skip "the file system of $T has no sparse files"
rm "$T/probe"
[ "$(df -Pk "$T" | awk 'NR == 2 { print $4 }')" -gt 400000 ] || skip "less than 400 MB free in $T"

python3 tests/full_size/make_sparse.py "$T/k3" || { echo "FAIL make_sparse: exit status $?"; exit 1; }
echo "ok make_sparse"
python3 tests/full_size/check_totals.py "$SLUICE" "$T/k3"
status=$?

# A download that is not complete says so by name, before any header is read.
rm "$T"/k3/model-000{07,42,96}-of-000096.safetensors
"$SLUICE" inspect "$T/k3" >"$T/out" 2>"$T/err"
rc=$?
want="3 of 96 shards missing: model-00007-of-000096.safetensors, model-00042-of-000096.safetensors, model-00096-of-000096.safetensors"
if [ $rc = 3 ] && [ ! -s "$T/out" ] && grep -qF "$want" "$T/err"; then
    echo "ok missing_shards"
else
    echo "FAIL missing_shards: exit status $rc, $(head -c 300 "$T/err")"
    status=1
fi
exit $status
