#!/bin/sh
# Cross-builds the tests and runs them under qemu-user. Arguments: the make program, a test filter.
# What cannot be had on this machine is said in one SKIP line, with status 0.
set -u
make=$1
filter=$2
O=build/aarch64

if ! command -v qemu-aarch64-static >/dev/null 2>&1; then
    echo "SKIP aarch64: qemu-aarch64-static not found; run: sudo apt-get install -y qemu-user-static"
    exit 0
fi
sh scripts/aarch64_root.sh build/aarch64-root
case $? in
0) ;;
77)
    echo "SKIP aarch64: packages missing, see above"
    exit 0
    ;;
*) exit 1 ;;
esac
"$make" --no-print-directory VARIANT=aarch64 tests || exit 1

# The loader and libc of the cross toolchain, the other libraries from our folder. Scripts of the test
# suite call programs by path, so each program gets a stand-in of the same name that starts the
# emulator: build/aarch64/qemu mirrors build/aarch64.
here=$(pwd)
rm -rf "$O/qemu"
(cd "$O" && find sluice tests -type f -perm -u+x ! -name '*.tmp') | while read -r program; do
    mkdir -p "$O/qemu/$(dirname "$program")"
    cat >"$O/qemu/$program" <<END
#!/bin/sh
exec qemu-aarch64-static -L /usr/aarch64-linux-gnu \\
    -E LD_LIBRARY_PATH=$here/build/aarch64-root/usr/lib/aarch64-linux-gnu:$here/build/aarch64-root/lib/aarch64-linux-gnu \\
    $here/$O/$program "\$@"
END
    chmod +x "$O/qemu/$program"
done
# shellcheck disable=SC2086
BUILD=$O/qemu bash tests/run.sh $filter
