# run --stats: planned and measured peaks, bytes by tier, time by stage agree with each other.
. tests/cli/lib/common.sh
nano_pack
P=$T/nano.pack
S=$T/s.json
num() { json "$S" "$@"; }
holds() { awk "BEGIN { exit !($1) }"; }
run run "$P" -p 'The function returns the number of' -n 40 --ignore-eos --ctx 128 --stats "$S"
check runs "exit $status: $(head -c 200 "$T/err")" [ "$status" = 0 ]
for phase in prefill decode; do
    sum="$(num ${phase}_stage_seconds attention) + $(num ${phase}_stage_seconds experts) + \
         $(num ${phase}_stage_seconds waiting) + $(num ${phase}_stage_seconds head)"
    # What is not in a stage: checks of the ids, and the clock itself.
    check ${phase}_stages_sum "$sum against $(num ${phase}_seconds)" \
        holds "$sum <= $(num ${phase}_seconds) * 1.0001 && $sum > 0.5 * $(num ${phase}_seconds)"
    for stage in attention experts waiting head; do
        check ${phase}_$stage "$(num ${phase}_stage_seconds $stage)" \
            holds "$(num ${phase}_stage_seconds $stage) >= 0"
    done
done
check waiting_is_the_stall "$(num stall_seconds)" \
    holds "($(num prefill_stage_seconds waiting) + $(num decode_stage_seconds waiting) - \
            $(num stall_seconds)) ^ 2 < 1e-12"
check drive_tier "$(num tier_bytes drive_experts)" \
    [ "$(num tier_bytes drive_experts)" = "$(num expert_bytes_read)" ]
check trunk_tier "$(num tier_bytes drive_trunk)" \
    [ "$(num tier_bytes drive_trunk)" = "$(stat -c %s "$P/trunk.bin")" ]
# Records of this pack have one size: a hit is a record that came from memory.
check ram_tier "$(num tier_bytes ram_experts)" \
    holds "$(num tier_bytes ram_experts) == $(num expert_hits) * $(num expert_bytes_read) / $(num expert_misses)"
for phase in prefill decode; do
    check ${phase}_busy_share "$(num ${phase}_drive_busy_share)" \
        holds "$(num ${phase}_drive_busy_share) >= 0 && $(num ${phase}_drive_busy_share) <= 1.0001"
done
check drives_read_it_all "$(num drives 0 bytes)" [ "$(num drives 0 bytes)" = "$(num expert_bytes_read)" ]
check drive_was_busy "$(num drives 0 busy_seconds)" holds "$(num drives 0 busy_seconds) > 0"
"$SLUICE" --version | grep -q fsanitize && skip peak_within_plan "a sanitizer's own memory is in no plan" && exit 0
check peak_within_plan "planned $(num planned_peak_bytes), measured $(num measured_peak_bytes)" \
    holds "$(num measured_peak_bytes) <= $(num planned_peak_bytes) && \
           $(num planned_peak_bytes) - $(num measured_peak_bytes) < 32 * 1048576"
