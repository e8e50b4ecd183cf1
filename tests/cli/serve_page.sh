# The page of `sluice serve` in a real browser: layout at two widths, keyboard, names, streaming.
. tests/cli/lib/common.sh
. tests/cli/lib/server.sh
browser=$(command -v chromium || command -v chromium-browser) || { skip page "chromium not found"; exit 0; }
command -v python3 >/dev/null || { skip page "python3 not found"; exit 0; }
[ "$BUILD" = build ] || { skip page "the browser is driven against the default build only"; exit 0; }
serves_http
nano_pack
serve_start "$T/nano.pack"
if "$browser" --headless=new --no-sandbox --disable-gpu --user-data-dir="$T/try" --dump-dom about:blank \
    >/dev/null 2>&1; then
    python3 tests/cli/lib/browser.py "$browser" "$URL" ${SHOTS:+"$SHOTS"} ||
        fail page "the browser's driver ended with status $?"
else
    skip page "chromium does not start here"
fi
serve_stop INT
check page_server_ends "exit status $status" [ "$status" = 130 ]
