#!/bin/sh
# Installs the Debian or Ubuntu packages that the build and its tests need, as root or through a sudo
# that asks nothing; otherwise prints the command and fails. Optional libraries come along where the
# system has them. Arguments add sets: lint, aarch64, and extra (second opinions of .ci/run).
set -u
packages="gcc libc6-dev make libcjson-dev zlib1g-dev libpcre2-dev libmd-dev libcmocka-dev"
optional="liburing-dev libnuma-dev libmicrohttpd-dev"
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
    echo "deps: this is not Debian or Ubuntu; install the equivalents of: $packages; optional: $optional" >&2
    exit 1
}

# Those of its arguments that are not installed.
absent() {
    for p in "$@"; do
        dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -q 'ok installed' || printf ' %s' "$p"
    done
}
# shellcheck disable=SC2086
wanted=$(absent $packages)
# shellcheck disable=SC2086
extras=$(absent $optional)
if [ -z "$wanted$extras" ]; then
    echo "deps: all packages are installed"
    exit 0
fi

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
elif [ -z "$wanted" ]; then
    echo "deps: optional, not installed:$extras"
    exit 0
else
    echo "deps: run: sudo apt-get update && sudo apt-get install -y$wanted$extras" >&2
    exit 1
fi

install() {
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        "$@" >/dev/null
}
echo "deps: installing$wanted$extras"
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
# shellcheck disable=SC2086
if [ -n "$wanted" ] && ! install $wanted; then
    echo "deps: failed; run: apt-get update && apt-get install -y$wanted" >&2
    exit 1
fi
# shellcheck disable=SC2086
if [ -n "$extras" ] && ! install $extras; then
    echo "deps: optional, not to be had here:$extras"
fi
exit 0
