# sluice logits: size, values the same for every way of computing them, atomic, refusals.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
ids=$(json $NANO/golden/golden.json sequences 0 ids)

run logits "$P" --exact --ids "$ids" --out "$T/a.f32" --json
check json_report "exit $status: $(head -c 200 "$T/err")" \
    [ "$(json "$T/out" tokens) $(json "$T/out" vocab)" = "64 4096" ]
check file_size "$(wc -c <"$T/a.f32") bytes" [ "$(wc -c <"$T/a.f32")" = $((64 * 4096 * 4)) ]
for opts in "--threads 1 --chunk 1" "--threads 2 --chunk 7" "--chunk 17 --ctx 64" "--ram 64MB"; do
    # shellcheck disable=SC2086
    run logits "$P" --exact --ids "$ids" --out "$T/b.f32" $opts
    check "same_bits_with_${opts// /_}" "exit $status, or bits differ" cmp -s "$T/a.f32" "$T/b.f32"
done
# The fast path: the same bytes for one plan of chunks, however experts are kept, read and dealt out.
run logits "$P" --ids "$ids" --out "$T/fast.f32" --chunk 16
for opts in "" "--threads 1" "--io pread" "--io mmap" "--evict lru" "--lookahead 3" "--ram 60MB"; do
    # shellcheck disable=SC2086
    run logits "$P" --fast --ids "$ids" --out "$T/b.f32" --chunk 16 $opts
    check "fast_same_bits_with_${opts// /_}" "exit $status, or bits differ" cmp -s "$T/fast.f32" "$T/b.f32"
done
echo "$ids" >"$T/ids.txt"
run logits "$P" --exact --ids-file "$T/ids.txt" --out "$T/b.f32"
check ids_from_text_file "differs from --ids" cmp -s "$T/a.f32" "$T/b.f32"
head -c 128 $NANO/golden/valid-ids.u16 >"$T/ids.u16"
run logits "$P" --exact --ids-file "$T/ids.u16" --out "$T/b.f32"
check ids_from_u16_file "differs from --ids" cmp -s "$T/a.f32" "$T/b.f32"

# Against the float64 reference: each row less its own log-sum is a log-probability.
if command -v python3 >/dev/null && python3 - "$T/a.f32" $NANO/golden/logits-64.f32 <<'PY' >"$T/diff"
import array, math, sys
def rows(path):
    a = array.array("f")
    a.frombytes(open(path, "rb").read())
    for t in range(64):
        r = a[t * 4096:(t + 1) * 4096]
        m = max(r)
        s = m + math.log(sum(math.exp(x - m) for x in r))
        yield [x - s for x in r]
print(max(abs(a - b) for r, q in zip(rows(sys.argv[1]), rows(sys.argv[2])) for a, b in zip(r, q)))
PY
then
    check golden_log_probabilities "largest difference $(cat "$T/diff")" \
        awk -v d="$(cat "$T/diff")" 'BEGIN { exit !(d < 2e-4) }'
else
    skip golden_log_probabilities "python3 not found"
fi

refused no_out 2 "--out F.f32 is missing" logits "$P" --ids 1
refused no_ids 2 "give either --ids" logits "$P" --out "$T/c.f32"
refused empty_ids 2 "no token ids" logits "$P" --ids '' --out "$T/c.f32"
refused unknown_id 2 "id 0: 4096 is outside" logits "$P" --ids 4096 --out "$T/c.f32"
refused unknown_id_in_file 3 "id 3: 65535 is outside" \
    logits "$P" --ids-file <(printf '1,2,3,65535') --out "$T/c.f32"
refused longer_than_ctx 5 "64 tokens at position 0 do not fit into 63" \
    logits "$P" --ids "$ids" --ctx 63 --out "$T/c.f32"
refused missing_folder 4 "no-such" logits "$P" --ids 1 --out "$T/no-such/c.f32"
refused missing_pack 4 "no-such.pack" logits "$T/no-such.pack" --ids 1 --out "$T/c.f32"
check nothing_left_behind "$(ls "$T")" [ -z "$(ls "$T" | grep '^c.f32')" ]
