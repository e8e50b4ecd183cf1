# docs/boards.md is what scripts/boards.sh writes today.
. tests/cli/lib/common.sh
SLUICE="$SLUICE" sh scripts/boards.sh "$T/boards.md"
check boards_doc_is_current "run 'sh scripts/boards.sh': $(diff docs/boards.md "$T/boards.md" | head -n 4 | tr '\n' ' ')" \
    cmp -s docs/boards.md "$T/boards.md"
n=$(grep -c '^## ' "$T/boards.md")
m=$(find boards -name '*.json' ! -name schema.json | wc -l)
check every_board_is_there "$n of $m" [ "$n" = "$m" ]
