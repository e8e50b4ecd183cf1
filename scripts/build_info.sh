#!/bin/sh
# Writes the C file that holds commit and flags; touches it only when they changed.
# Environment: CC, FLAGS. Argument: output file.
set -eu
out=$1

# The commit of this tree, never of a repository that happens to lie around it.
commit=unknown
if [ -e .git ] && command -v git >/dev/null 2>&1; then
    run_git() { git -c safe.directory="$(pwd -P)" "$@" 2>/dev/null; }
    if commit=$(run_git rev-parse --short HEAD); then
        [ -z "$(run_git status --porcelain --untracked-files=no)" ] || commit=$commit-dirty
    else
        commit=unknown
    fi
fi

compiler=$($CC --version 2>/dev/null | head -n 1)
quote() { printf '%s' "$1" | tr -s ' \n' '  ' | sed 's/[\\"]/\\&/g; s/ *$//'; }

{
    echo '#include "base/version.h"'
    echo
    echo "const char sl_build_commit[] = \"$(quote "$commit")\";"
    echo "const char sl_build_flags[] = \"$(quote "$compiler; $FLAGS")\";"
} >"$out.tmp"
if cmp -s "$out.tmp" "$out"; then rm -f "$out.tmp"; else mv "$out.tmp" "$out"; fi
