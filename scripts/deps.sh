#!/bin/sh
# Installs the Debian or Ubuntu packages that the build and its tests need, as root or through a sudo
# that asks nothing; otherwise prints the command and fails. Arguments: lint, aarch64 and
# extra (clang, python3 and git for the second opinions of .ci/run) add those sets.
set -u
packages="gcc libc6-dev make libcjson-dev zlib1g-dev libpcre2-dev libmd-dev libcmocka-dev"
for set in "$@"; do
    case $set in
    lint) packages="$packages clang-format clang-tidy" ;;
    aarch64) packages="$packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static" ;;
    extra) packages="$packages clang python3 git" ;;
    *)
        echo "deps.sh: unknown set '$set' (lint, aarch64, extra)" >&2
        exit 2
        ;;
    esac
done

command -v dpkg-query >/dev/null 2>&1 || {
    echo "deps: this is not Debian or Ubuntu; install the equivalents of: $packages" >&2
    exit 1
}
wanted=
for p in $packages; do
    dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -q 'ok installed' || wanted="$wanted $p"
done
if [ -z "$wanted" ]; then
    echo "deps: all packages are installed"
    exit 0
fi

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "deps: run: sudo apt-get update && sudo apt-get install -y$wanted" >&2
    exit 1
fi
echo "deps: installing$wanted"
# shellcheck disable=SC2086
if $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $wanted >/dev/null; then
    exit 0
fi
echo "deps: failed; run: apt-get update && apt-get install -y$wanted" >&2
exit 1
