# The server under many clients, a quarter of which hang up: a short run of scripts/load_serve.py, with
# one seat and with three. The long one: scripts/load_serve.py build/sluice PACK --seconds 600
. tests/cli/lib/common.sh
. tests/cli/lib/server.sh
serves_http
command -v python3 >/dev/null || { skip load "python3 not found"; exit 0; }
nano_pack
memory=
[ "$BUILD" = build ] || memory=--no-memory # sanitizers keep freed memory
# shellcheck disable=SC2086
python3 scripts/load_serve.py "$SLUICE" "$T/nano.pack" --seconds 9 --requests 20 --quiet $memory
# shellcheck disable=SC2086
python3 scripts/load_serve.py "$SLUICE" "$T/nano.pack" --seconds 4 --requests 12 --clients 6 --seats 3 --quiet $memory |
    sed 's/^\(ok\|FAIL\) /&three_seats_/'
