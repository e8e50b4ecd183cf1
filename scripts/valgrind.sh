#!/bin/bash
# Memcheck over short runs of the whole program: convert, verify, run, a saved state, look-ahead. Any invalid
# access, use of an undefined byte or lost block fails.
#
# Environment: SLUICE (build/sluice). Reads go by pread: under valgrind 3.19 a run that waits in io_uring_enter
# does not go on; the sanitizers and tests/offload see that path.
set -u
cd "$(dirname "$0")/.." || exit 1
SLUICE=${SLUICE:-build/sluice}
command -v valgrind >/dev/null || { echo 'SKIP valgrind is not installed'; exit 0; }
T=$(mktemp -d) || exit 1
trap 'rm -rf "$T"' EXIT
bad=0

clean() { # NAME ARGS...
    local name=$1
    shift
    if valgrind --quiet --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect \
        --errors-for-leak-kinds=definite,indirect --log-file="$T/log" "$SLUICE" "$@" >"$T/out" 2>"$T/err" \
        </dev/null && [ ! -s "$T/log" ]; then
        echo "ok $name"
    else
        echo "FAIL $name"
        head -n 40 "$T/log" "$T/err"
        bad=1
    fi
}

clean convert convert tests/fixtures/tiny-a "$T/a.pack" --jobs 2
clean convert_low_bits convert tests/fixtures/tiny-a "$T/low.pack" --experts w26 --trunk t4 --jobs 2
clean verify verify "$T/a.pack" --full
clean run_pread run "$T/a.pack" --ids 1,2,3,4,5 -n 6 --temp 0 --io pread --json --save-state "$T/s.state"
clean run_low_bits run "$T/low.pack" --ids 1,2,3,4,5 -n 4 --temp 0.8 --seed 3 --lookahead 2 --io pread --json
clean load_state run "$T/a.pack" --load-state "$T/s.state" --ids 9,8 -n 2 --temp 0 --io pread --json
[ $bad = 0 ] && echo 'valgrind: clean'
exit $bad
