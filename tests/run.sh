#!/usr/bin/env bash
# Runs the tests: every program $BUILD/tests/*/test_*, then tests/check_includes.sh and tests/cli/*.sh.
#
#   tests/run.sh [--crosscheck] [WORD...]     only suites whose name (folder/file) holds one of the words;
#                                             a word after a minus leaves suites out: -full_size
#
# Environment: BUILD (build), CUDA (1: with tests/cuda), WRAPPER (put before each program, for instance an emulator), JOBS (2).
# Scripts are run from the project root with SLUICE set to the command line tool and BUILD as above;
# they print "ok NAME", "FAIL NAME: why" or "SKIP NAME: why", one line a case, and are counted by
# those lines. Programs are counted by cmocka's summary. A crash, or a suite without any case, is a
# failure. --crosscheck runs tests/crosscheck/*.py instead, counted like scripts.
# The last line is "N passed, N failed", with ", N skipped" where there are any.
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
export BUILD=${BUILD:-build}
export SLUICE=${SLUICE:-$PWD/$BUILD/sluice}
# gcc's address sanitizer puts locals on a fake stack that is not aligned for 64-byte vectors (seen with
# gcc 13.3 and AVX-512: plain stores to locals fault); without it the same programs pass.
export ASAN_OPTIONS=detect_stack_use_after_return=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
WRAPPER=${WRAPPER:-}
jobs=${JOBS:-2}
logs=$BUILD/test-logs.$$ # two runs may share a tree
cross=0
[ "${1:-}" = --crosscheck ] && cross=1 && shift
words=() unwanted=()
for w in "$@"; do
    case $w in
    -*) unwanted+=("${w#-}") ;;
    *) words+=("$w") ;;
    esac
done

wanted() {
    local w
    for w in "${unwanted[@]}"; do [[ $1 == *"$w"* ]] && return 1; done
    [ ${#words[@]} = 0 ] && return 0
    for w in "${words[@]}"; do [[ $1 == *"$w"* ]] && return 0; done
    return 1
}

suites=() # "name|kind|path"
add() { wanted "$1" && suites+=("$1|$2|$3"); }
if [ $cross = 1 ]; then
    for f in tests/crosscheck/*.py; do
        [ -f "$f" ] && add "crosscheck/$(basename "$f" .py)" python "$f"
    done
else
    # Sources decide: a program left over from a deleted test must not run.
    for f in tests/*/test_*.c; do
        [ -f "$f" ] || continue
        [[ $f == tests/cuda/* && ${CUDA:-} != 1 ]] && continue # the library has no GPU part
        name=${f#tests/}
        add "${name%.c}" program "$BUILD/${f%.c}"
    done
    [ -f tests/check_includes.sh ] && add includes script tests/check_includes.sh
    for f in tests/cli/*.sh; do
        [ -f "$f" ] && add "cli/$(basename "$f" .sh)" script "$f"
    done
fi
mkdir -p "$logs" || exit 1

run_suite() { # name kind path log
    local start=$EPOCHREALTIME rc
    case $2 in
    program)
        # shellcheck disable=SC2086
        CMOCKA_MESSAGE_OUTPUT=STDOUT $WRAPPER "$3" >"$4" 2>&1
        ;;
    script) bash "$3" >"$4" 2>&1 ;;
    python) python3 "$3" >"$4" 2>&1 ;;
    esac
    rc=$?
    echo "$rc $(((${EPOCHREALTIME/./} - ${start/./}) / 100000))" >"$4.rc"
}

# Sum of N over lines "[  WORD  ] N test(s)..." of cmocka.
summary() { # word log
    sed -n "s/^\[ *$1 *\] \([0-9][0-9]*\) test(s).*/\1/p" "$2" | awk '{ n += $1 } END { print n + 0 }'
}

passed=0 failed=0 skipped=0
report() { # name kind log
    local name=$1 kind=$2 log=$3 rc tenths p f s note=
    read -r rc tenths <"$log.rc"
    if [ "$kind" = program ]; then
        p=$(summary PASSED "$log") f=$(summary FAILED "$log") s=$(summary SKIPPED "$log")
    else
        p=$(grep -c '^ok ' "$log") f=$(grep -c '^FAIL ' "$log") s=$(grep -c '^SKIP ' "$log")
    fi
    if [ "$rc" -ge 126 ]; then
        f=$((f + 1)) note=" crashed or not runnable, exit status $rc"
    elif [ "$rc" != 0 ] && [ "$f" = 0 ]; then
        f=1 note=" exit status $rc"
    elif [ $((p + f + s)) = 0 ]; then
        f=1 note=" no test ran"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-36s %5d passed' "$name" "$p"
    [ "$f" = 0 ] || printf ', %d FAILED' "$f"
    [ "$s" = 0 ] || printf ', %d skipped' "$s"
    printf '  %d.%d s%s\n' $((tenths / 10)) $((tenths % 10)) "$note"
    if [ "$f" != 0 ]; then
        # what went well is left out
        grep -avE '^ok |^\[ RUN +\]|^\[ +OK \]' "$log" | head -n 200 | sed 's/^/    /'
        echo "    (whole output: $BUILD/test-logs/${log##*/})"
    elif [ "$s" != 0 ]; then
        grep -a '^SKIP ' "$log" | sort -u | sed 's/^/    /'
    fi
}

# Up to $jobs at a time; reports come in order.
next_report=0
n=${#suites[@]}
running=0
log_of() { echo "$logs/${1//\//_}.log"; }
report_ready() {
    local name kind path log
    while [ $next_report -lt "$n" ]; do
        IFS='|' read -r name kind path <<<"${suites[$next_report]}"
        log=$(log_of "$name")
        [ -f "$log.rc" ] || return 0
        report "$name" "$kind" "$log"
        next_report=$((next_report + 1))
    done
}
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$logs"; exit 130' INT TERM
for s in "${suites[@]}"; do
    IFS='|' read -r name kind path <<<"$s"
    while [ $running -ge "$jobs" ]; do
        wait -n
        running=$((running - 1))
        report_ready
    done
    run_suite "$name" "$kind" "$path" "$(log_of "$name")" &
    running=$((running + 1))
done
wait
report_ready
if [ $next_report != "$n" ]; then
    echo "run.sh: results of $((n - next_report)) suites were lost"
    failed=$((failed + n - next_report))
fi
rm -rf "$BUILD/test-logs" && mv "$logs" "$BUILD/test-logs"

line="$passed passed, $failed failed"
[ "$skipped" = 0 ] || line="$line, $skipped skipped"
echo "$line"
[ "$failed" = 0 ] && [ "$n" != 0 ]
