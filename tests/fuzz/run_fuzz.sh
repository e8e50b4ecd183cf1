#!/usr/bin/env bash
# Runs the fuzzers one after the other: TIME seconds each, starting from their sound inputs and what
# tests/fuzz/corpus keeps. New inputs go to build/fuzz/corpus, findings to build/fuzz/found. One line a
# target; fails when something was found. Words pick targets.
set -u
cd "$(dirname "$0")/../.." || exit 1
time=${TIME:-60}
fuzz=build/fuzz/fuzz
found=build/fuzz/found
mkdir -p "$found"
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:detect_stack_use_after_return=0
targets=$(FUZZ_TARGET='' $fuzz 2>&1 | sed -n 's/^FUZZ_TARGET must be one of: //p')
bad=0
for t in $targets; do
    if [ $# -gt 0 ]; then
        case " $* " in *" $t "*) ;; *) continue ;; esac
    fi
    work=build/fuzz/corpus/$t
    mkdir -p "$work" "tests/fuzz/corpus/$t"
    log=build/fuzz/$t.log
    FUZZ_TARGET=$t FUZZ_SEEDS=$work nice $fuzz "$work" "tests/fuzz/corpus/$t" -max_total_time="$time" \
        -timeout=20 -rss_limit_mb=1500 -max_len=100000 -print_final_stats=1 -use_value_profile=1 \
        -artifact_prefix="$found/$t-" >"$log" 2>&1
    rc=$?
    rmdir "tests/fuzz/corpus/$t" 2>/dev/null
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    cov=$(grep -ao 'cov: [0-9]*' "$log" | tail -n 1)
    printf '%-18s %9s runs  %s\n' "$t" "${runs:-?}" "${cov:-no coverage}"
    if [ $rc != 0 ]; then
        bad=1
        echo "$t: found something (status $rc):"
        grep -aE 'ERROR|SUMMARY|runtime error|Test unit written|deadly' "$log" | head -n 5
    fi
done
[ $bad = 0 ] && echo 'fuzz: nothing found'
exit $bad
