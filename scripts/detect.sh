#!/bin/sh
# Finds out what compiler and machine can do, writes it as make variables, says what is in and out.
#
# Environment: CC; SYSROOT (cross builds: libraries come from there); INSTALL=1 (may call deps.sh for
# what is missing). Argument: output file.
# Every answer comes from a test program that compiles and links; pkg-config, where it exists, only
# offers flags for it.
set -u
out=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
CC=${CC:-cc}
SYSROOT=${SYSROOT:-}
cppflags= ldflags=
if [ -n "$SYSROOT" ]; then
    triplet=$($CC -dumpmachine 2>/dev/null)
    cppflags="-isystem $SYSROOT/usr/include -isystem $SYSROOT/usr/include/$triplet"
    ldflags="-L$SYSROOT/usr/lib/$triplet -Wl,-rpath-link,$SYSROOT/usr/lib/$triplet"
fi

# links NAME FLAGS LIBS: does $work/NAME.c compile and link?
links() {
    # shellcheck disable=SC2086
    $CC $cppflags $2 "$work/$1.c" -o "$work/$1" $ldflags $3 >"$work/$1.log" 2>&1
}

# library NAME PKG LIBS: sets LIBS_NAME (and adds include flags) when it is usable.
library() {
    eval "LIBS_$1="
    if [ -z "$SYSROOT" ] && command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$2" 2>/dev/null; then
        flags=$(pkg-config --cflags "$2")
        pc_libs=$(pkg-config --libs "$2") # not `libs`: that is the caller's list
        if links "$1" "$flags" "$pc_libs"; then
            cppflags="$cppflags $flags"
            eval "LIBS_$1=\$pc_libs"
            return 0
        fi
    fi
    links "$1" "" "$3" || return 1
    eval "LIBS_$1=\$3"
}

printf '#include <cjson/cJSON.h>\nint main(void) { const char *e; return !cJSON_ParseWithLengthOpts("1", 1, &e, 0); }\n' >"$work/cjson.c"
printf '#include <zlib.h>\nint main(void) { return (int)crc32_z(0, 0, 0); }\n' >"$work/zlib.c"
printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\nint main(void) { return pcre2_config(PCRE2_CONFIG_UNICODE, 0); }\n' >"$work/pcre2.c"
printf '#include <stddef.h>\n#include <stdint.h>\n#include <sys/types.h>\n#include <sha2.h>\nint main(void) { SHA2_CTX c; SHA256Init(&c); return 0; }\n' >"$work/libmd.c"
printf '#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <setjmp.h>\n#include <cmocka.h>\nstatic void t(void **s) { (void)s; }\nint main(void) { const struct CMUnitTest a[] = {cmocka_unit_test(t)}; return cmocka_run_group_tests(a, NULL, NULL); }\n' >"$work/cmocka.c"
printf '#include <liburing.h>\nint main(void) { struct io_uring r; return io_uring_queue_init(8, &r, 0); }\n' >"$work/uring.c"
printf '#include <numa.h>\nint main(void) { return numa_available(); }\n' >"$work/numa.c"
printf '#include <microhttpd.h>\nint main(void) { return MHD_is_feature_supported(MHD_FEATURE_POLL) == 0; }\n' >"$work/microhttpd.c"
printf 'int main(void) { return 0; }\n' >"$work/plain.c"

find_all() {
    missing= packages=
    if ! links plain "" ""; then
        missing=" C-compiler" packages=" gcc libc6-dev"
    fi
    need() {
        library "$1" "$2" "$3" && return 0
        missing="$missing $1" packages="$packages $4"
    }
    need cjson libcjson -lcjson libcjson-dev
    need zlib zlib -lz zlib1g-dev
    need pcre2 libpcre2-8 -lpcre2-8 libpcre2-dev
    need libmd libmd -lmd libmd-dev
}

find_all
if [ -n "$missing" ] && [ "${INSTALL:-}" = 1 ] && [ -z "$SYSROOT" ]; then
    sh scripts/deps.sh || exit 1
    find_all
fi
if [ -n "$missing" ]; then
    echo "make: cannot build with CC=$CC, missing:$missing" >&2
    if [ -n "$SYSROOT" ]; then
        echo "make: not under $SYSROOT; remove it and run: make aarch64" >&2
    else
        echo "make: run: sudo apt-get install -y$packages    (or: make deps)" >&2
    fi
    exit 1
fi
library cmocka cmocka -lcmocka
arch=$($CC -dumpmachine)
arch=${arch%%-*}

# ISA variants are files named *_ISA.c; each must be accepted by the compiler, since the dispatch
# table names them all.
accepts() { links plain "$1" ""; }
isa= refused=
try_isa() {
    if accepts "$2"; then isa="$isa $1"; else refused="$refused $1"; fi
}
case $arch in
x86_64)
    try_isa avx2 "-mavx2 -mfma -mf16c -mbmi2"
    try_isa avx512 "-mavx512f -mavx512bw -mavx512dq -mavx512vl"
    try_isa vnni -mavx512vnni
    try_isa vbmi -mavx512vbmi
    name=x86-64
    ;;
aarch64)
    try_isa dotprod -march=armv8.2-a+dotprod
    isa=" neon$isa"
    name=aarch64
    ;;
*)
    name="$arch (C only)"
    ;;
esac
if [ -n "$refused" ]; then
    echo "make: $CC does not accept the flags for:$refused; gcc 8 or clang 7 is enough" >&2
    exit 1
fi

# What this CPU will choose; the binary decides again wherever it runs.
has_flag() { grep -qw -- "$1" /proc/cpuinfo 2>/dev/null; }
here=
if [ -z "$SYSROOT" ]; then
    here="C"
    has_flag avx2 && here=avx2
    has_flag avx512vl && here=avx512
    has_flag avx512_vnni && here="$here vnni"
    has_flag avx512_vbmi && here="$here vbmi"
    [ "$arch" = aarch64 ] && here=neon
    here=", this CPU: $here"
fi

# Optional parts are in when some file asks for them and the library is there.
libs="$LIBS_cjson $LIBS_zlib $LIBS_pcre2 $LIBS_libmd"
defines= report=
optional() { # label header macro library-name pkg libs
    if ! grep -qs "#include <$2>" base/*.c offload/*.c runtime/*.c; then
        report="$report | $1 no (not used by this version)"
    elif library "$4" "$5" "$6"; then
        eval "libs=\"\$libs \$LIBS_$4\""
        defines="$defines -D$3=1"
        report="$report | $1 yes"
    else
        report="$report | $1 no ($2 not found)"
    fi
}
optional io_uring liburing.h SL_HAVE_URING uring liburing -luring
optional numa numa.h SL_HAVE_NUMA numa numa -lnuma
optional server microhttpd.h SL_HAVE_MICROHTTPD microhttpd libmicrohttpd -lmicrohttpd
if ! ls kernels/cuda/*.cu >/dev/null 2>&1; then
    report="$report | cuda no (not used by this version)"
elif cuda=$(PATH="$PATH:/usr/local/cuda/bin" command -v nvcc); then
    report="$report | cuda with CUDA=1"
else
    report="$report | cuda no (nvcc not found)"
fi
[ -n "$LIBS_cmocka" ] && tests=yes || tests="no (cmocka not found: make deps)"

{
    echo "CONFIG_ARCH := $arch"
    echo "CONFIG_CPPFLAGS := $cppflags$defines"
    echo "CONFIG_LDFLAGS := $ldflags"
    echo "CONFIG_LIBS := $libs"
    echo "CONFIG_CMOCKA := $LIBS_cmocka"
    echo "CONFIG_NVCC := ${cuda:-}"
} >"$out.tmp" && mv "$out.tmp" "$out" || exit 1
echo "sluice for $name: isa$isa$here$report | tests $tests"
