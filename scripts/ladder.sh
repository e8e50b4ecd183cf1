#!/bin/sh
# Every row of docs/results/ladder.md in one go, on one commit: converts, evaluates, prints table lines.
#
#   scripts/ladder.sh K3_MINI TEXTS OUT [tokens]      TEXTS holds calib.txt and valid.txt; OUT is a work folder
#
# Resumable: a pack or evaluation that is there is kept. About 4 CPU-hours with 202,752 tokens of
# calibration; THREADS sets --threads and --jobs.
set -eu
if [ $# -lt 3 ]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
model=$1 texts=$2 out=$3 tokens=${4:-202752}
bin=${SLUICE:-build/sluice}
threads=${THREADS:-$(nproc)}
ids=$model/golden/valid-ids.u16
mkdir -p "$out"

pack() { # name, then options of convert
    name=$1
    shift
    [ -f "$out/$name/pack.json" ] || "$bin" convert "$model" "$out/$name" --jobs "$threads" "$@" >&2
}

# pack, what, options of eval: one file of figures
figures() {
    f=$out/$1.$2.json
    p=$1
    shift 2
    if [ ! -s "$f" ]; then
        "$bin" eval "$out/$p" --ref "$out/ref" --threads "$threads" --json "$@" >"$f.part"
        mv "$f.part" "$f"
    fi
}

value() { # file, key
    sed -n "s/.*\"$2\":\([-0-9.e]*\).*/\1/p" "$1"
}

row() { # pack, label
    p=$1
    bytes=$(cat "$out/$p"/experts/*.bank | wc -c)
    figures "$p" 8 --ids "$ids" --window 256 --stride 4096 --windows 8
    figures "$p" 32 --ids "$ids" --window 256 --stride 2048 --windows 32
    figures "$p" 32ref --ids "$ids" --window 256 --stride 2048 --windows 32 --routes ref
    figures "$p" valid --text "$texts/valid.txt" --window 256 --windows 60
    printf '| %s | %s | %.4f | %.4f | %.4f | %.4f | %.4f | %.4f |\n' "$2" "$bytes" \
        "$(value "$out/$p.8.json" kl_mean)" "$(value "$out/$p.32.json" kl_mean)" \
        "$(value "$out/$p.32ref.json" kl_mean)" "$(value "$out/$p.valid.json" kl_mean)" \
        "$(value "$out/$p.32.json" ppl_ratio)" "$(value "$out/$p.32.json" top1)"
}

pack ref
stats=$out/c$tokens.stats
[ -f "$stats" ] ||
    "$bin" calibrate "$out/ref" "$texts/calib.txt" -o "$stats" --tokens "$tokens" --threads "$threads" >&2
"$bin" --version
echo '| pack | bytes of the banks | KL 8 | KL 32 | KL 32, reference routes | KL valid.txt | ppl ratio 32 | top-1 32 |'
echo '|---|---|---|---|---|---|---|---|'
for fmt in w16 w26 p36 w36; do
    pack "$fmt-plain" --experts "$fmt"
    row "$fmt-plain" "$fmt, not calibrated"
    pack "$fmt-calib" --experts "$fmt" --calib "$stats"
    row "$fmt-calib" "$fmt, $tokens tokens"
done
for fmt in t8 t6 t4; do
    pack "$fmt" --trunk "$fmt"
    row "$fmt" "trunk $fmt, experts lossless"
done
