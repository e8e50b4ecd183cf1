# Shared by the scripts that need a running server; sourced after common.sh.

# Leaves the script with SKIP where the build has no HTTP library, or curl is missing.
serves_http() {
    command -v curl >/dev/null || { skip server "curl not found"; exit 0; }
    run serve "$T/no-such.pack"
    if grep -q 'no HTTP library' "$T/err"; then
        skip server "libmicrohttpd not found when this was built"
        exit 0
    fi
}

# serve_start PACK ARGS...: sets URL (no slash at its end) and PID; a server that does not come up fails
# the script.
serve_start() {
    : >"$T/serve.err"
    "$SLUICE" serve "$@" --port 0 2>"$T/serve.err" </dev/null &
    PID=$!
    trap 'kill -9 $PID 2>/dev/null; rm -rf "$T"' EXIT
    until URL=$(sed -n 's|.* at \(http://[^ ]*\)/$|\1|p' "$T/serve.err") && [ -n "$URL" ]; do
        if ! kill -0 "$PID" 2>/dev/null; then
            fail serve_start "the server ended: $(head -c 300 "$T/serve.err")"
            exit 1
        fi
        sleep 0.02
    done
}

# serve_stop SIGNAL: ends it; exit status in $status.
serve_stop() {
    kill -"$1" "$PID"
    wait "$PID"
    status=$?
    trap 'rm -rf "$T"' EXIT
}

# ask PATH BODY [CURL ARGS...]: POST; the reply in $T/out, its status in $code.
ask() {
    local path=$1 body=$2
    shift 2
    code=$(curl -s -o "$T/out" -w '%{http_code}' -H 'Content-Type: application/json' "$@" \
        --data-binary "$body" "$URL$path")
}
# get PATH [CURL ARGS...]
get() {
    local path=$1
    shift
    code=$(curl -s -o "$T/out" -w '%{http_code}' "$@" "$URL$path")
}
# error_is NAME CODE ERROR_CODE: the last reply is an error of this status and code, in the API's shape.
error_is() {
    local got
    got=$(json "$T/out" error code 2>/dev/null)
    check "$1" "status $code, error '$got': $(head -c 300 "$T/out")" [ "$code $got" = "$2 $3" ] &&
        [ -n "$(json "$T/out" error message)" ] && [ -n "$(json "$T/out" error type)" ]
}
