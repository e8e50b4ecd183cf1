# A drive that misbehaves under a running server: every answer is the right one or an error in the API's
# shape, the server goes on and answers rightly once the drive does, and it ends cleanly. Records by pread
# and by io_uring; one seat and two; states in a folder. docs/results/faults.md has the table.
. tests/cli/lib/common.sh
. tests/cli/lib/server.sh
SHIM=$PWD/$BUILD/tests/faults/shim_faults.so
serves_http
if ! LD_PRELOAD=$SHIM "$SLUICE" --version >/dev/null 2>"$T/err"; then
    skip serve_faults "the shim cannot be preloaded here ($(head -c 100 "$T/err"))"
    exit 0
fi
nano_pack
P=$T/nano.pack
PLAIN=$SLUICE

# The right answers.
prompts=('The kernel' 'A function returns' 'One of the')
want=()
for p in "${prompts[@]}"; do
    run run "$P" -p "$p" -n 12 --temp 0 --ignore-eos --json
    want+=("$(json "$T/out" text)")
done

# faulty_server RULE ARGS...: a server under the shim, which begins when $T/now is there.
faulty_server() {
    local rule=$1
    shift
    : >"$T/injected"
    rm -f "$T/now"
    printf '#!/bin/sh\nSLUICE_FAULT_WHEN="%s" SLUICE_FAULT_LOG="%s" SLUICE_FAULT="%s" LD_PRELOAD="%s" exec "%s" "$@"\n' \
        "$T/now" "$T/injected" "$rule" "$SHIM" "$PLAIN" >"$T/faulty"
    chmod +x "$T/faulty"
    SLUICE=$T/faulty
    serve_start "$P" "$@"
    SLUICE=$PLAIN
    : >"$T/now"
}

body() { printf '{"prompt":"%s","max_tokens":12,"temperature":0,"ignore_eos":true%s}' "${prompts[$1]}" "${2:-}"; }

# judge CODE FILE INDEX: right, error (in the API's shape) or wrong.
judge() {
    if [ "$1" = 200 ] && [ "$(json "$2" choices 0 text)" = "${want[$3]}" ]; then
        echo right
    elif [ "$1" = 500 ] && [ "$(json "$2" error code) $(json "$2" error type)" = "engine_error server_error" ] &&
        [ -n "$(json "$2" error message)" ]; then
        echo error
    else
        echo "wrong($1)"
    fi
}

# answers: the three prompts, then the first again; what became of them in $got.
answers() {
    got=
    local i
    for i in 0 1 2 0; do
        ask /v1/completions "$(body $i)"
        got="$got $(judge "$code" "$T/out" $i)"
    done
    got=${got# }
}

# goes_on NAME: alive, and ends cleanly; stderr holds the announcement and one line an error.
goes_on() {
    get /health
    check "$1_alive" "$code" [ "$code" = 200 ]
    serve_stop TERM
    check "$1_ends" "exit status $status: $(tail -n 3 "$T/serve.err")" [ "$status" = 0 ]
    check "$1_tells" "$(head -c 400 "$T/serve.err")" \
        [ "$(grep -vcE '^sluice: serving |^sluice serve: cmpl-[^ ]*: |^sluice: warning: .*/turns\.ids' "$T/serve.err")" = 0 ]
}

# serves NAME RULE PATTERN ARGS...: PATTERN says what the four answers must be, as a regular expression.
serves() {
    local name=$1 rule=$2 pattern=$3
    shift 3
    faulty_server "$rule" "$@"
    answers
    check "$name" "$got; $(tail -n 2 "$T/serve.err")" grep -Eqx -- "$pattern" <<<"$got"
    check "$name"_injected "no fault was injected" [ -s "$T/injected" ]
    # The drive is well again: so are the answers.
    rm "$T/now"
    answers
    check "${name}_heals" "$got; $(tail -n 2 "$T/serve.err")" [ "$got" = "$good" ]
    goes_on "$name"
}
good='right right right right'
# Exactly one answer is lost.
one='error right right right|right error right right|right right error right|right right right error'

"$SLUICE" run "$P" -p x -n 1 --temp 0 --io uring --stats "$T/stats" >/dev/null 2>&1
methods="pread:read"
if [ "$(json "$T/stats" io 2>/dev/null)" = uring ]; then
    methods="$methods uring:ring"
else
    skip ring "io_uring is not there, reads by it are not tried"
fi
for m in $methods; do
    io=${m%:*} op=${m#*:}
    serves "${io}_short" "short $op .bank 0" "$good" --io "$io"
    serves "${io}_late" "slow $op L002.bank 0" "$good" --io "$io"
    [ "$io" = uring ] || serves "${io}_interrupted" "eintr $op .bank 0" "$good" --io "$io"
    serves "${io}_one_failure" "eio $op L002.bank 9" "$good" --io "$io"
    serves "${io}_failed_bank" "eio $op L003.bank 0" 'error error error error' --io "$io"
    serves "${io}_flipped_once" "flip $op L003.bank 9" "$one" --io "$io"
    serves "${io}_flipped_in_prompt" "flip $op L001.bank 4" "$one" --io "$io"
    serves "${io}_flipped_first_touch" "flip $op L002.bank 6" "$one" --io "$io" --check first
    serves "${io}_flipped_always" "flip $op L004.bank 0" 'error error error error' --io "$io"
    serves "${io}_flipped_lookahead" "flip $op L003.bank 12" "$good|$one" --io "$io" --lookahead 4
done

# Two seats share the engine: a fault may cost both answers, and nothing else.
serves seats_flipped 'flip read L002.bank 9' "$one" --io pread --seats 2
faulty_server 'flip read L003.bank 12; eio read L004.bank 30; eio read L004.bank 31' --io pread --seats 2
wrong=0 lost=0
for round in 1 2 3; do
    for i in 0 1 2; do
        curl -s -o "$T/r$i" -w '%{http_code}' "$URL/v1/completions" -d "$(body $i)" >"$T/c$i" &
        eval "pid$i=\$!"
    done
    wait "$pid0" "$pid1" "$pid2"
    for i in 0 1 2; do
        case $(judge "$(cat "$T/c$i")" "$T/r$i" $i) in
        right) ;;
        error) lost=$((lost + 1)) ;;
        *) wrong=$((wrong + 1)) ;;
        esac
    done
done
check seats_together "$wrong wrong, $lost lost" [ "$wrong" = 0 ]
check seats_together_injected "$(cat "$T/injected")" grep -q flip "$T/injected"
check seats_together_lose_few "$lost lost of 9" [ "$lost" -ge 1 -a "$lost" -le 6 ]
answers
check seats_recover "$got" [ "$got" = "$good" ]
goes_on seats_together

# A stream that has begun ends with an error event, not with [DONE] after a part.
faulty_server 'flip read L003.bank 30' --io pread
for i in 0 1 2; do
    curl -sN -o "$T/stream" "$URL/v1/completions" -d "$(body $i ',"stream":true')"
    grep -q '"error"' "$T/stream" && break
done
check stream_injected "no fault was injected" [ -s "$T/injected" ]
check stream_has_begun "$(head -c 300 "$T/stream")" grep -q '"text"' "$T/stream"
check stream_is_told "$(tail -n 3 "$T/stream")" grep -q '"code":"engine_error"' "$T/stream"
check stream_does_not_finish "$(tail -n 3 "$T/stream")" \
    [ "$(grep -cE '"finish_reason":"(stop|length)"' "$T/stream")" = 0 ]
answers
check stream_recovers "$got" [ "$got" = "$good" ]
goes_on stream

# ---- the trunk: at the start of the server

for rule in 'eio read trunk.bin 3' 'flip read trunk.bin 3' 'eio open trunk.bin 1' 'flip read L002.bank 1'; do
    name=start_$(echo "$rule" | tr ' .' '__')
    : >"$T/injected"
    SLUICE_FAULT=$rule SLUICE_FAULT_LOG=$T/injected LD_PRELOAD=$SHIM \
        "$SLUICE" serve "$P" --port 0 >"$T/out" 2>"$T/err" </dev/null
    status=$?
    check "$name" "exit status $status: $(head -c 300 "$T/err")" [ "$status $(wc -l <"$T/err")" = "4 1" ]
    check "${name}_injected" "no fault was injected" [ -s "$T/injected" ]
done

# ---- the folder of earlier prompts' states: what fails there costs time, not answers

# A conversation of turns, twice: the second server goes on from the first one's files.
talk() { # answers in $T/talk
    : >"$T/talk"
    for q in 'What is a kernel?' 'Say it again.' 'What is a function?' 'What is a kernel?'; do
        ask /v1/chat/completions "{\"messages\":[{\"role\":\"user\",\"content\":\"$q\"}],\"max_tokens\":16,\"temperature\":0}"
        echo "$code $(json "$T/out" choices 0 message content) $(json "$T/out" choices 0 message reasoning_content)" >>"$T/talk"
    done
}
SMALL=(--prefix-cache 700KiB --prefix-dir "$T/states")
serve_start "$P"
talk
cp "$T/talk" "$T/talk.want"
serve_stop TERM
keeps() { # NAME RULE
    rm -rf "$T/states"
    faulty_server "$2" "${SMALL[@]}"
    talk
    check "states_$1" "$(diff "$T/talk.want" "$T/talk" | head -n 4)" cmp -s "$T/talk" "$T/talk.want"
    check "states_$1_injected" "no fault was injected" [ -s "$T/injected" ]
    goes_on "states_$1"
    serve_start "$P" "${SMALL[@]}"
    talk
    check "states_$1_next" "$(diff "$T/talk.want" "$T/talk" | head -n 4)" cmp -s "$T/talk" "$T/talk.want"
    serve_stop TERM
}
keeps full_disk 'enospc write states/ 2; enospc write states/ 5'
keeps always_full 'enospc write states/ 0'
keeps torn 'torn write states/ 3'
keeps short 'short write states/ 0'
keeps failed_rename 'eio rename states/ 1'
keeps failed_open 'eio open states/ 0'
keeps flipped_write 'flip write states/ 4'
# The files are whole, and read wrong.
rm -rf "$T/states"
serve_start "$P" "${SMALL[@]}"
talk
serve_stop TERM
for rule in 'flip read kept/ 3' 'eio read kept/ 2' 'eio read kept/ 0' 'short read kept/ 0'; do
    name=states_$(echo "${rule// kept\/ /_}" | tr ' ' '_')
    cp -r "$T/states" "$T/kept"
    faulty_server "$rule" --prefix-cache 700KiB --prefix-dir "$T/kept"
    talk
    check "$name" "$(diff "$T/talk.want" "$T/talk" | head -n 4)" cmp -s "$T/talk" "$T/talk.want"
    check "${name}_injected" "no fault was injected" [ -s "$T/injected" ]
    goes_on "$name"
    rm -rf "$T/kept"
done
