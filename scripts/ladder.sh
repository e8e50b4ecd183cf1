#!/bin/sh
# Every row of docs/results/ladder.md and mixes.md in one go, on one commit: converts, evaluates, prints the tables.
#
#   scripts/ladder.sh K3_MINI TEXTS OUT [tokens]     TEXTS holds calib.txt and valid.txt; OUT is a work folder
#
# Work is a graph for make: one file an artefact, so it is resumable, and independent packs and evaluations
# run side by side, one thread each (JOBS, default one a core). Only what others wait for takes more. About
# an hour of CPU time with 202,752 tokens of calibration. Environment: SLUICE, WEIGHT_ERROR (programs), JOBS.
# Tables go to standard output and OUT/ladder.md; with TABLES=1 they are made from what is there, nothing is run.
set -eu
if [ $# -lt 3 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
model=$1 texts=$2 out=$3 tokens=${4:-202752}
bin=${SLUICE:-build/sluice}
tool=${WEIGHT_ERROR:-build/tests/convert/tool_weight_error}
jobs=${JOBS:-$(nproc)}
some=$(((jobs + 3) / 4))
ids=$model/golden/valid-ids.u16
mixes='1.6 2.2 2.6 3.0'
samples='0 1 2 3'
mkdir -p "$out"
graph=$out/ladder.mk
: >"$graph"

# target, prerequisites, command: the target appears when the command has succeeded.
rule() {
    printf '%s: %s\n\t@%s\n' "$1" "$2" "$3" >>"$graph"
}

plain_nice='nice -n 10'
packs=''

# name, prerequisites, threads, options of convert
pack() {
    name=$1 needs=$2 threads=$3
    shift 3
    calm=
    [ "$threads" -gt 1 ] || calm=$plain_nice
    # A killed conversion is taken up by the same command; $$name/pack.json comes last.
    rule "$out/$name/pack.json" "$needs" "$calm $bin convert $model $out/$name --jobs $threads $*"
    packs="$packs $name"
}

# row, its pack, what it needs, options of eval for the row
rows=''
row() {
    r=$1 p=$2 needs=$3
    shift 3
    common="$plain_nice $bin eval $out/$p --ref $out/ref --exact --threads 1 --json $*"
    set -- 8 "--ids $ids --window 256 --stride 4096 --windows 8" \
        32 "--ids $ids --window 256 --stride 2048 --windows 32" \
        32ref "--ids $ids --window 256 --stride 2048 --windows 32 --routes ref" \
        valid "--text $texts/valid.txt --window 256 --windows 60"
    while [ $# -gt 0 ]; do
        f=$out/$r.$1.json
        rule "$f" "$needs $out/ref/pack.json" "$common $2 >$f.part && mv $f.part $f"
        figures="$figures $f"
        shift 2
    done
    rows="$rows $r"
}

# pack: four texts of 500 tokens that go on after 64 tokens of the validation text
sample() {
    for seed in $samples; do
        f=$out/$1.sample$seed.json
        rule "$f" "$out/$1/pack.json $out/prompt$seed" \
            "$plain_nice $bin run $out/$1 --ids \`cat $out/prompt$seed\` -n 500 --seed $seed --ignore-eos --exact --threads 1 --json >$f.part && mv $f.part $f"
        texts_made="$texts_made $f"
    done
}

figures='' texts_made=''
stats=$out/c$tokens.stats sens=$out/sensitivity.stats
pack ref "" 2
pack p36-calib "$stats" "$some" --experts p36 --calib "$stats"
for bits in $mixes; do
    pack "mix$bits" "$stats $sens" 2 --experts "mix:$bits" --calib "$stats" --sensitivity "$sens"
done
for fmt in w36 w26 w16; do
    pack "$fmt-calib" "$stats" 2 --experts "$fmt" --calib "$stats"
done
for fmt in p36 w36 w26 w16; do pack "$fmt-plain" "" 1 --experts "$fmt"; done
for fmt in t8 t6 t4; do pack "$fmt" "" 1 --trunk "$fmt"; done
pack w26-t8 "$stats" 1 --experts w26 --calib "$stats" --trunk t8

for seed in $samples; do
    # 64 ids of the validation text, 16-bit little-endian, as a list
    rule "$out/prompt$seed" "" \
        "od -An -v -tu2 -w2 -j $((seed * 32768)) -N 128 $ids | tr -d ' ' | paste -sd, - >$out/prompt$seed.part && mv $out/prompt$seed.part $out/prompt$seed"
done
rule "$stats" "$out/ref/pack.json" \
    "$bin calibrate $out/ref $texts/calib.txt -o $stats --tokens $tokens --exact --threads $jobs"
rule "$sens" "$out/ref/pack.json" \
    "$bin calibrate $out/ref $texts/calib.txt --sensitivity -o $sens --tokens 4096 --window 256 --exact --threads $some"
rule "$out/ranks.json" "$out/p36-calib/pack.json $out/ref/pack.json" \
    "$bin calibrate $out/p36-calib $texts/calib.txt --ranks --ref $out/ref --tokens 4096 --window 256 --bits 2.625 --exact --threads $some --json >$out/ranks.json.part && mv $out/ranks.json.part $out/ranks.json"

for bits in 2.125 2.375 2.625 3.125; do row "p36-calib-$bits" p36-calib "$out/ranks.json" --bits "$bits"; done
for bits in $mixes; do row "mix$bits" "mix$bits" "$out/mix$bits/pack.json"; done
for p in w36-calib w26-calib w16-calib w36-plain p36-plain w26-plain w16-plain t8 t6 t4 w26-t8 ref; do
    row $p $p "$out/$p/pack.json"
done
for p in ref mix1.6 w16-calib; do sample $p; done
for p in $packs; do
    [ -x "$tool" ] || continue
    [ "$p" != ref ] || continue
    rule "$out/$p.error" "$out/$p/pack.json $out/ref/pack.json" \
        "$plain_nice $tool $out/$p $out/ref >$out/$p.error.part && mv $out/$p.error.part $out/$p.error"
    figures="$figures $out/$p.error"
done

# First what the longest chain waits for.
{
    echo ".DEFAULT_GOAL := all"
    echo ".DELETE_ON_ERROR:"
    echo "all: $stats $sens $out/ranks.json $figures $texts_made"
} >>"$graph"
# -k and no stop: a row that fails leaves the others standing, and a dash in the table.
start=$(date +%s)
[ "${TABLES:-0}" = 1 ] || make -r -k -j "$jobs" -f "$graph" >"$out/ladder.log" 2>&1 ||
    echo "some rows failed: $out/ladder.log" >&2
took=$(($(date +%s) - start))

value() { # file, key, format
    v=$(sed -n "s/.*\"$2\":\([-0-9.e]*\).*/\1/p" "$1" 2>/dev/null) || :
    # shellcheck disable=SC2059
    if [ -n "$v" ]; then printf "$3" "$v"; else printf %s -; fi
}

error_of() { # pack, group and format
    v=$(sed -n "s/^$2 [0-9]* //p" "$out/$1.error" 2>/dev/null) || :
    printf '%s' "${v:--}"
}

line() { # row, pack, label, bits, group and format of its weight error ("" for a mix)
    bytes=$(cat "$out/$2"/experts/*.bank 2>/dev/null | wc -c)
    printf '| %s | %s | %s | %s | ' "$3" "$4" "$bytes" "$(error_of "$2" "$5")"
    for what in 8 32 32ref valid; do printf '%s | ' "$(value "$out/$1.$what.json" kl_mean %.5f)"; done
    for what in 8 32 valid; do
        printf '%s / %s | ' "$(value "$out/$1.$what.json" ppl_ratio %.4f)" "$(value "$out/$1.$what.json" top1 %.4f)"
    done
    printf '%s | %s |\n' "$(value "$out/$1.8.json" flips %.4f)" "$(value "$out/$1.32.json" flips %.4f)"
}

tables() {
    "$bin" --version
    echo "$tokens tokens of calibration, $jobs jobs, $took seconds"
    echo
    echo '| pack | bits a weight | bytes of the banks | weight error | KL 8 | KL 32 | KL 32, reference routes | KL valid.txt | ppl ratio / top-1, 8 | 32 | valid.txt | flips 8 | flips 32 |'
    echo '|---|---|---|---|---|---|---|---|---|---|---|---|---|'
    line ref ref 'm4, trunk bf16' 4.125 ''
    for f in w16:1.125 w26:2.125 p36:3.125 w36:3.125; do
        fmt=${f%:*}
        line "$fmt-plain" "$fmt-plain" "$fmt, not calibrated" "${f#*:}" "experts $fmt"
        [ "$fmt" = p36 ] || line "$fmt-calib" "$fmt-calib" "$fmt" "${f#*:}" "experts $fmt"
    done
    line p36-calib-2.125 p36-calib 'p36, base' '2.125 read' 'experts p36-base'
    line p36-calib-2.375 p36-calib 'p36' '2.375 read' ''
    line p36-calib-2.625 p36-calib 'p36' '2.625 read' ''
    line p36-calib-3.125 p36-calib 'p36, whole' 3.125 'experts p36'
    for bits in $mixes; do line "mix$bits" "mix$bits" "mix:$bits" "$bits" ''; done
    line t8 t8 'trunk t8, experts m4' 8.5 'trunk t8'
    line t6 t6 'trunk t6, experts m4' 6.5 'trunk t6'
    line t4 t4 'trunk t4, experts m4' 4.5 'trunk t4'
    line w26-t8 w26-t8 'w26, trunk t8' 2.125 'experts w26'
    echo
    echo '| pack | flips by layer, 32 windows |'
    echo '|---|---|'
    for r in $rows; do
        [ ! -s "$out/$r.32.json" ] || printf '| %s | %s |\n' "$r" \
            "$(sed -n 's/.*"flips_by_layer":\[\([^]]*\)\].*/\1/p' "$out/$r.32.json" | tr , '\n' |
                awk '{ printf "%s ", $1 == "null" ? "-" : sprintf("%.3f", $1) }')"
    done
    echo
    echo 'Rank plan and mixes:'
    echo
    cat "$out/ranks.json" 2>/dev/null || :
    echo
    echo '| pack | sample tokens | 8-token runs the sample had before | share |'
    echo '|---|---|---|---|'
    for p in ref mix1.6 w16-calib; do
        for seed in $samples; do
            sed -n 's/.*"ids":\[\([0-9,]*\)\].*/\1/p' "$out/$p.sample$seed.json" 2>/dev/null
        done | awk -F, -v p="$p" '{
            n += NF
            for (i = 1; i + 7 <= NF; i++) {
                k = $i
                for (j = 1; j < 8; j++) k = k "," $(i + j)
                all++
                if ((NR, k) in had) again++
                had[NR, k] = 1
            }
        } END { printf "| %s | %d | %d of %d | %.4f |\n", p, n, again, all, all ? again / all : 0 }'
    done
    echo
    for p in mix1.6 w16-calib; do
        printf '%s, seed 1:\n\n' "$p"
        sed -n 's/.*"text":"\(.*\)","stop".*/> \1/p' "$out/$p.sample1.json" 2>/dev/null | cut -c1-900
        echo
    done
}
tables >"$out/ladder.md.part"
mv "$out/ladder.md.part" "$out/ladder.md"
cat "$out/ladder.md"
