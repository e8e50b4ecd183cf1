# Shared by the scripts of tests/cli: sourced, never run. Gives a folder of its own that is removed at
# the end ($T), and checks that print one line a case: ok NAME, FAIL NAME: why, SKIP NAME: why.
set -u
export LC_ALL=C
SLUICE=${SLUICE:-build/sluice}
BUILD=${BUILD:-build}
NANO=models/k3-nano
T=$(mktemp -d "${TMPDIR:-/tmp}/sluice-cli.XXXXXX") || exit 1
trap 'rm -rf "$T"' EXIT

ok() { echo "ok $1"; }
fail() { echo "FAIL $1: $2"; }
skip() { echo "SKIP $1: $2"; }
# check NAME WHY CONDITION...: runs CONDITION as a command.
check() {
    local name=$1 why=$2
    shift 2
    if "$@"; then ok "$name"; else fail "$name" "$why"; fi
}

# run ARGS...: the program with stdout in $T/out, stderr in $T/err, exit status in $status.
run() {
    "$SLUICE" "$@" >"$T/out" 2>"$T/err" </dev/null
    status=$?
}

# A value of a JSON file: json FILE KEY...
json() { "$BUILD/tests/cli/tool_json" "$@"; }

# refused NAME STATUS PATTERN ARGS...: exits with STATUS, says one line on stderr that matches the
# extended regular expression, and nothing on stdout.
refused() {
    local name=$1 want=$2 pattern=$3
    shift 3
    run "$@"
    if [ "$status" != "$want" ]; then
        fail "$name" "exit status $status, expected $want: $(head -c 300 "$T/err")"
    elif [ "$(wc -l <"$T/err")" != 1 ]; then
        fail "$name" "stderr has $(wc -l <"$T/err") lines: $(head -c 300 "$T/err")"
    elif ! grep -Eq -- "$pattern" "$T/err"; then
        fail "$name" "stderr does not say '$pattern': $(head -c 300 "$T/err")"
    elif [ -s "$T/out" ]; then
        fail "$name" "stdout is not empty"
    else
        ok "$name"
    fi
}

# helps NAME COMMAND...: --help exits 0 with the example first, on stdout alone.
helps() {
    local name=$1
    shift
    run "$@" --help
    if [ "$status" != 0 ] || [ -s "$T/err" ]; then
        fail "$name" "exit status $status, stderr: $(head -c 200 "$T/err")"
    elif ! head -n 1 "$T/out" | grep -q "^Example: sluice $*"; then
        fail "$name" "first line is '$(head -n 1 "$T/out")'"
    else
        ok "$name"
    fi
}

# The small model as a pack in $T/nano.pack; a script that cannot have it fails as a whole.
nano_pack() {
    run convert "$NANO" "$T/nano.pack"
    if [ "$status" != 0 ]; then
        fail nano_pack "convert exits $status: $(head -c 300 "$T/err")"
        exit 1
    fi
}
