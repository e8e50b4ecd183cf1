#!/usr/bin/env bash
# The demonstration: the checkpoint in models/k3-nano becomes a pack and writes text. Run by `make demo`
# after the build; everything it writes lies below build/. Seeds are fixed, so the text is the same on
# every machine.
set -eu
cd "$(dirname "$0")/.."
SLUICE=${SLUICE:-build/sluice}
SRC=models/k3-nano
PACK=build/k3-nano.pack

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }
show() { # prints a command and runs it
    printf '$ sluice'
    printf ' %q' "$@"
    printf '\n'
    "$SLUICE" "$@"
}

say "1. A checkpoint in the released layout: 18 M parameters, K3's architecture in small"
"$SLUICE" inspect "$SRC" | sed -n '/^model/p; /^experts/p; /^files/p; /^parameters/p; /^routed/p'

say "2. Checkpoint to pack: experts m4 and trunk bf16, both lossless"
rm -rf "$PACK"
show convert "$SRC" "$PACK" --experts m4 --trunk bf16

say "3. Every checksum of the pack"
show verify "$PACK" --full

say "4. Text"
echo "   (An 18 M-parameter test model trained on manuals: it has the sound of them, not the sense.)"
prompt='In this chapter, we '
echo
printf '%s' "$prompt"
"$SLUICE" run "$PACK" --bos -p "$prompt" -n 110 --temp 0.6 --top-p 0.9 --seed 3 --stats - \
    2>build/demo-stats.txt

say "   Asked a question, it answers like the dictionary that it was also trained on:"
for question in 'What is a kernel?' 'hello'; do
    chat='[BOS]<|open|>message role="user"<|sep|>'$question'<|close|>message<|sep|><|end_of_msg|>'
    chat=$chat'<|open|>message role="assistant"<|sep|><|open|>think<|sep|><|close|>think<|sep|>'
    printf '> %s\n' "$question"
    "$SLUICE" run "$PACK" --markup -p "$chat<|open|>response<|sep|>" -n 80 --temp 0.6 --seed 1 |
        sed 's/<|close|>response.*//'
done

say "5. Memory: the plan made before anything was allocated, and what was measured; speed"
cat build/demo-stats.txt

say "6. Perplexity of the first eight validation windows (the float64 reference says 17.8428)"
show eval "$PACK" --ids "$SRC/golden/valid-ids.u16" --stride 4096 --windows 8 --exact
