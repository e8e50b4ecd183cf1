#!/usr/bin/env bash
# Includes go one way only: base <- kernels <- quant <- offload <- convert <- runtime.
# A file may include its own folder and those before it; tests may include all; nobody includes tests
# but tests. Project headers are named from the root: "base/err.h", never "err.h" or "../base/err.h".
cd "$(dirname "$0")/.." || exit 1
order=(base kernels quant offload convert runtime)
declare -A rank=([tests]=100)
for i in "${!order[@]}"; do rank[${order[$i]}]=$i; done

bad=0
n=0
for folder in "${order[@]}" tests; do
    [ -d "$folder" ] || continue
    while IFS=: read -r file line text; do
        [ -n "$file" ] || continue
        n=$((n + 1))
        header=${text#*\"}
        header=${header%%\"*}
        top=${header%%/*}
        if [ "$top" = "$header" ] || [ ! -f "$header" ]; then
            echo "FAIL includes: $file:$line: \"$header\" is not a path from the project root"
            bad=1
        elif [ "${rank[$top]:-99}" -gt "${rank[$folder]}" ]; then
            echo "FAIL includes: $file:$line: $folder/ must not include $header"
            bad=1
        fi
    done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' --include='*.[ch]' \
        --include='*.cu' --include='*.cuh' "$folder")
done
# The order also holds for file names: unique across the tree, so that a name says one thing.
twins=$(find "${order[@]}" tests -name '*.[ch]' 2>/dev/null | sed 's|.*/||' | sort | uniq -d)
for t in $twins; do
    echo "FAIL names: $t exists in more than one folder"
    bad=1
done
[ $n -gt 0 ] || { echo "FAIL includes: no include line found"; bad=1; }
[ $bad = 0 ] && echo "ok includes: $n lines" && echo "ok names"
exit $bad
