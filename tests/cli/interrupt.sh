# Ctrl-C: the text so far stands, the exit status is 130.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
for sig in INT TERM; do
    rm -f "$T/out"
    # A background job of a script ignores SIGINT unless it is started with job control.
    set -m
    (
        trap - EXIT
        exec "$SLUICE" run "$P" -p 'The function' -n 100000000 --ctx 30000 --ignore-eos
    ) >"$T/out" 2>"$T/err" &
    pid=$!
    set +m
    until [ -s "$T/out" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
    kill -$sig $pid
    wait $pid
    status=$?
    check "SIG${sig}_exits_130" "exit $status: $(head -c 200 "$T/err")" [ $status = 130 ]
    check "SIG${sig}_keeps_the_text" "no text" [ -s "$T/out" ]
done
