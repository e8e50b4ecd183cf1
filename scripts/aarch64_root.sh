#!/bin/sh
# Makes a folder with the arm64 libraries that a cross build links: fetched with apt-get download from
# the package sources of this machine, unpacked with dpkg -x. The system's own package state is not
# touched: apt runs on lists, cache and status of its own. Argument: the folder. Exit status 77: the
# packages cannot be had here (no cross compiler, no arm64 packages), with one line that says why.
set -u
root=$1
packages="libcjson-dev libcjson1 zlib1g-dev zlib1g libpcre2-dev libpcre2-8-0 libmd-dev libmd0
          libcmocka-dev libcmocka0 liburing-dev liburing2 libnuma-dev libnuma1"
give_up() {
    echo "aarch64: $1" >&2
    exit 77
}

command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 ||
    give_up "no cross compiler; run: sudo apt-get install -y gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"
[ "$(cat "$root/.complete" 2>/dev/null)" = "$packages" ] && exit 0
command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || give_up "apt-get or dpkg not found"

state=$(mktemp -d) || exit 1
trap 'rm -rf "$state"' EXIT
mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/debs"
: >"$state/status"
# apt drops to its own user for downloads where that user may write; here it need not.
private="-qq -o Dir::State=$state -o Dir::State::lists=$state/lists -o Dir::State::status=$state/status
         -o Dir::Cache=$state/cache -o APT::Architecture=arm64 -o APT::Architectures=arm64
         -o APT::Sandbox::User=root -o Debug::NoLocking=1 -o Acquire::Languages=none"
# shellcheck disable=SC2086
apt-get $private update >"$state/log" 2>&1 ||
    give_up "arm64 package lists cannot be fetched: $(grep -m 1 '^[EW]:' "$state/log")"
# shellcheck disable=SC2086
(cd "$state/debs" && apt-get $private download $packages) >"$state/log" 2>&1 ||
    give_up "arm64 packages cannot be fetched: $(grep -m 1 '^[EW]:' "$state/log")"

rm -rf "$root"
mkdir -p "$root"
for deb in "$state"/debs/*.deb; do
    dpkg -x "$deb" "$root" || exit 1
done
# Absolute links (libz.so -> /lib/...) mean the root of an arm64 system, which is this folder.
find "$root" -type l | while read -r link; do
    target=$(readlink "$link")
    case $target in
    /*) ln -sf "$(cd "$root" && pwd)$target" "$link" ;;
    esac
done
echo "$packages" >"$root/.complete"
echo "aarch64: libraries unpacked in $root"
