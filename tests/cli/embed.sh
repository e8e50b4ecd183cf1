# The public header is enough for a host program, and the shared library has what it declares.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
text='The function returns'

run run "$P" -p "$text" -n 24 --temp 0
cp "$T/out" "$T/want"
if "$BUILD/tests/embed/tool_embed" "$P" "$text" 24 >"$T/out" 2>"$T/err"; then
    echo >>"$T/out" # run ends with a newline
    check static_library_same_text "$(cat "$T/out")" cmp -s "$T/out" "$T/want"
else
    fail static_library_same_text "$(head -c 300 "$T/err")"
fi
"$BUILD/tests/embed/tool_embed" "$T/no-such.pack" a 1 >"$T/out" 2>"$T/err"
status=$?
check error_reaches_the_host "exit $status" [ $status = 4 ]
check host_includes_the_public_header_alone "another header of ours" \
    [ "$(grep -c '^#include "' tests/embed/tool_embed.c)" = 1 ]

cc=${CC:-cc}
if [ "$BUILD" != build ]; then
    skip shared_library_same_text "only the default build is linked again"
elif ! command -v "$cc" >/dev/null; then
    skip shared_library_same_text "no compiler"
elif "$cc" -std=c11 -Wall -Wextra -Werror -I. tests/embed/tool_embed.c -o "$T/host" \
    -L"$BUILD" -lsluice -Wl,-rpath,"$PWD/$BUILD" 2>"$T/err"; then
    "$T/host" "$P" "$text" 24 >"$T/out" 2>"$T/err"
    echo >>"$T/out"
    check shared_library_same_text "$(head -c 300 "$T/err")" cmp -s "$T/out" "$T/want"
else
    fail shared_library_same_text "$(head -c 500 "$T/err")"
fi

# Every function that the header declares is exported, and nothing else.
if [ ! -f "$BUILD/libsluice.so" ]; then
    skip exported_as_declared "no shared library in $BUILD"
elif command -v nm >/dev/null; then
    sed -n 's/^.*[ *]\(sluice_[a-z_]*\)(.*/\1/p' runtime/sluice.h | grep -v '_fn$' | sort -u >"$T/declared"
    nm -D --defined-only "$BUILD/libsluice.so" | awk '$2 == "T" { print $3 }' | sort -u >"$T/exported"
    check exported_as_declared "$(diff "$T/declared" "$T/exported" | tr '\n' ' ')" \
        cmp -s "$T/declared" "$T/exported"
else
    skip exported_as_declared "nm not found"
fi
