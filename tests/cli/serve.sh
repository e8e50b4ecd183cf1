# sluice serve over HTTP with curl: every endpoint, streamed equal to whole, refusals, keys, limits,
# lost clients, a full queue, and a clean end.
. tests/cli/lib/common.sh
. tests/cli/lib/server.sh
serves_http
nano_pack
P=$T/nano.pack

# The text of a stream: the joined deltas of one key (content, reasoning_content, text).
joined() { # FILE KEY
    sed -n 's/^data: \({.*\)/\1/p' "$1" >"$T/events"
    : >"$T/joined"
    while IFS= read -r event; do
        printf '%s' "$event" >"$T/event"
        if [ "$2" = text ]; then
            json "$T/event" choices 0 text 2>/dev/null
        else
            json "$T/event" choices 0 delta "$2" 2>/dev/null
        fi | head -c -1 >>"$T/joined"
    done <"$T/events"
    cat "$T/joined"
}

serve_start "$P" --queue 2 --prefix-cache 16MiB
# ---------------------------------------------------------------- the small endpoints
get /health
check health "$code $(cat "$T/out")" [ "$code $(json "$T/out" status)" = "200 ok" ]
get /v1/models
check models "$code $(cat "$T/out")" [ "$code $(json "$T/out" data 0 id)" = "200 nano" ]
get /v1/models/nano
check model "$code $(cat "$T/out")" [ "$code $(json "$T/out" object)" = "200 model" ]
get /v1/models/other
error_is other_model_is_404 404 model_not_found
get /nothing
error_is unknown_path 404 unknown_url
get /v1/completions
error_is get_where_post_belongs 405 method_not_allowed
ask /health '{}'
error_is post_where_get_belongs 405 method_not_allowed
curl -s -D "$T/head" -o "$T/out" "$URL/"
check page_has_a_policy "$(cat "$T/head")" grep -qi "^content-security-policy: default-src 'none'" "$T/head"
check page_is_html "$(head -c 100 "$T/out")" grep -qi '<!doctype html>' "$T/out"
check page_is_whole "bytes differ from runtime/page/index.html" cmp -s "$T/out" runtime/page/index.html
check page_asks_nobody_else "names another origin" [ "$(grep -cE '(src|href)="?(https?:)?//' "$T/out")" = 0 ]

# ---------------------------------------------------------------- completions
ids=$(json $NANO/golden/golden.json sequences 1 ids)
want=$("$SLUICE" run "$P" --ids "$ids" -n 32 --temp 0 --ignore-eos --json >"$T/run" && json "$T/run" text)
ask /v1/completions "{\"model\":\"nano\",\"prompt\":[$ids],\"max_tokens\":32,\"temperature\":0,\"ignore_eos\":true}"
check completion_of_ids_equals_run "$code $(head -c 300 "$T/out")" \
    [ "$(json "$T/out" choices 0 text)" = "$want" ]
check completion_finish "$(json "$T/out" choices 0 finish_reason)" \
    [ "$(json "$T/out" choices 0 finish_reason)" = length ]
check completion_usage "$(json "$T/out" usage)" \
    [ "$(json "$T/out" usage prompt_tokens) $(json "$T/out" usage completion_tokens) $(json "$T/out" usage total_tokens)" = "32 32 64" ]
text='The function returns'
"$SLUICE" run "$P" -p "$text" -n 40 --seed 7 --json >"$T/run"
ask /v1/completions "{\"prompt\":\"$text\",\"max_tokens\":40,\"seed\":7}"
check completion_of_text_equals_run "$(head -c 300 "$T/out")" \
    [ "$(json "$T/out" choices 0 text)" = "$(json "$T/run" text)" ]
curl -sN -o "$T/stream" "$URL/v1/completions" -d "{\"prompt\":\"$text\",\"max_tokens\":40,\"seed\":7,\"stream\":true}"
check completion_stream_equals_whole "$(joined "$T/stream" text)" \
    [ "$(joined "$T/stream" text)" = "$(json "$T/run" text)" ]
check stream_ends_with_done "$(tail -n 2 "$T/stream")" grep -q '^data: \[DONE\]' "$T/stream"
ask /v1/completions "{\"prompt\":\"$text\",\"max_tokens\":4,\"seed\":7,\"logprobs\":2}"
check completion_logprobs "$(head -c 400 "$T/out")" \
    [ "$(json "$T/out" choices 0 logprobs token_logprobs | tr ',' '\n' | wc -l)" = 4 ]
check completion_offsets "$(json "$T/out" choices 0 logprobs text_offset)" \
    [ "$(json "$T/out" choices 0 logprobs text_offset 0)" = 0 ]
ask /v1/completions "{\"prompt\":\"$text\",\"max_tokens\":0}"
check no_tokens_asked_for "$(cat "$T/out")" [ "$code $(json "$T/out" usage completion_tokens)" = "200 0" ]
# A stop string: the text before its first appearance, and nothing of it.
full=$(json "$T/run" text)
stop=${full:20:6}
ask /v1/completions "$(printf '{"prompt":"%s","max_tokens":40,"seed":7,"stop":["%s"]}' "$text" "$stop")"
check stop_string "'$(json "$T/out" choices 0 text)' of '$full' at '$stop'" \
    [ "$(json "$T/out" choices 0 text)" = "${full%%"$stop"*}" ]
check stop_string_finish "$(cat "$T/out")" [ "$(json "$T/out" choices 0 finish_reason)" = stop ]
curl -sN -o "$T/stream" "$URL/v1/completions" \
    -d "$(printf '{"prompt":"%s","max_tokens":40,"seed":7,"stop":"%s","stream":true}' "$text" "$stop")"
check stop_string_streamed "$(joined "$T/stream" text)" [ "$(joined "$T/stream" text)" = "${full%%"$stop"*}" ]

# ---------------------------------------------------------------- chat
q='"messages":[{"role":"user","content":"What is a kernel?"}],"max_tokens":60,"temperature":0.6,"seed":1'
ask /v1/chat/completions "{\"model\":\"nano\",$q}"
check chat "$code $(head -c 300 "$T/out")" [ "$code $(json "$T/out" object)" = "200 chat.completion" ]
cp "$T/out" "$T/whole"
check chat_has_content "$(cat "$T/out")" [ -n "$(json "$T/out" choices 0 message content)" ]
check chat_has_reasoning "$(cat "$T/out")" [ -n "$(json "$T/out" choices 0 message reasoning_content)" ]
curl -sN -o "$T/stream" "$URL/v1/chat/completions" \
    -d "{$q,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
for key in content reasoning_content; do
    check "chat_stream_equals_whole_$key" "'$(joined "$T/stream" $key)'" \
        [ "$(joined "$T/stream" $key)" = "$(json "$T/whole" choices 0 message $key)" ]
done
sed -n 's/^data: \({.*"usage":{.*\)/\1/p' "$T/stream" >"$T/event"
check stream_usage "$(cat "$T/event")" \
    [ "$(json "$T/event" usage completion_tokens)" = "$(json "$T/whole" usage completion_tokens)" ]
ids_in_stream=$(sed -n 's/^data: {"id":"\([^"]*\)".*/\1/p' "$T/stream" | sort -u | wc -l)
check one_id_a_stream "$ids_in_stream ids" [ "$ids_in_stream" = 1 ]
ask /v1/chat/completions "{$q,\"logprobs\":true,\"top_logprobs\":3,\"reasoning_effort\":\"none\"}"
check chat_logprobs "$(head -c 600 "$T/out")" [ "$(json "$T/out" choices 0 logprobs content 0 token)" = \
    "$(json "$T/out" choices 0 message content | head -c "$(json "$T/out" choices 0 logprobs content 0 token | head -c -1 | wc -c)")" ]
ask /v1/chat/completions "{$q,\"response_format\":{\"type\":\"json_object\"}}"
check wrong_json_is_told "$(tail -c 400 "$T/out")" \
    [ "$code $(json "$T/out" choices 0 error type)" = "200 invalid_output" ]
check wrong_json_is_no_success "$(json "$T/out" choices 0 finish_reason)" \
    [ "$(json "$T/out" choices 0 finish_reason)" != stop ]

# Turn two goes on from where turn one ended: only new tokens are computed.
ask /v1/chat/completions '{"messages":[{"role":"user","content":"hello"}],"max_tokens":20,"seed":3,"reasoning_effort":"none"}'
content=$(json "$T/out" choices 0 message content)
n=$(($(json "$T/out" usage prompt_tokens) + $(json "$T/out" usage completion_tokens)))
cat >"$T/turn2" <<END
{"messages":[{"role":"user","content":"hello"},
 $(sed -n 's/.*"message":\({.*}\),"logprobs".*/\1/p' "$T/out"),
 {"role":"user","content":"And then?"}],"max_tokens":1,"reasoning_effort":"none"}
END
ask /v1/chat/completions "@$T/turn2"
cached=$(json "$T/out" usage prompt_tokens_details cached_tokens)
check turn_two_reuses_turn_one "$code, $cached of $n cached, content '$content'" [ "${cached:-0}" -ge $((n - 2)) ]
check cached_is_at_most_the_prompt "$cached" [ "$cached" -le "$(json "$T/out" usage prompt_tokens)" ]

# Another conversation in between moves the session away; the stored state of the first is found again.
ask /v1/chat/completions '{"messages":[{"role":"user","content":"Something else."}],"max_tokens":3,"reasoning_effort":"none"}'
ask /v1/chat/completions "@$T/turn2"
again=$(json "$T/out" usage prompt_tokens_details cached_tokens)
check turn_two_after_another_conversation "$again cached" [ "${again:-0}" -ge $((n - 2)) ]
get /stats
check stored_states_are_counted "$(json "$T/out" prefix_snapshots)" [ "$(json "$T/out" prefix_snapshots)" -ge 1 ]

# ---------------------------------------------------------------- refusals
refuse() { # NAME PATH BODY STATUS CODE [PARAM]
    ask "$2" "$3"
    error_is "$1" "$4" "$5"
    [ -z "${6:-}" ] || check "$1_param" "$(cat "$T/out")" [ "$(json "$T/out" error param)" = "$6" ]
}
C=/v1/chat/completions
M='"messages":[{"role":"user","content":"a"}]'
refuse no_json $C '{"messages":' 400 invalid_json
refuse no_object $C '[1]' 400 invalid_json
refuse two_values $C '{} {}' 400 invalid_json
refuse nul_in_text $C '{"messages":[{"role":"user","content":"a\u0000b"}]}' 400 invalid_json
printf '{"prompt":"\xff"}' >"$T/body"
ask /v1/completions "@$T/body"
error_is not_utf8 400 invalid_json
refuse empty_body $C '' 400 invalid_json
refuse no_messages $C '{}' 400 invalid_value messages
refuse n_is_2 $C "{$M,\"n\":2}" 400 unsupported_parameter n
refuse logit_bias $C "{$M,\"logit_bias\":{\"1\":2}}" 400 unsupported_parameter logit_bias
refuse penalty $C "{$M,\"presence_penalty\":0.5}" 400 unsupported_parameter presence_penalty
refuse temperature_text $C "{$M,\"temperature\":\"hot\"}" 400 invalid_value temperature
refuse temperature_huge $C "{$M,\"temperature\":1e999}" 400 invalid_value temperature
refuse top_p_2 $C "{$M,\"top_p\":2}" 400 invalid_value top_p
refuse too_many_stops $C "{$M,\"stop\":[\"\"]}" 400 invalid_value stop
refuse stream_text $C "{$M,\"stream\":\"yes\"}" 400 invalid_value stream
refuse other_model $C "{\"model\":\"gpt\",$M}" 404 model_not_found model
refuse bad_role $C '{"messages":[{"role":"boss","content":"a"}]}' 400 invalid_value
refuse schema_keyword $C "{$M,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"if\":{}}}}}" \
    400 unsupported_value response_format.json_schema.schema
refuse echo_on /v1/completions '{"prompt":"a","echo":true}' 400 unsupported_parameter echo
refuse two_prompts /v1/completions '{"prompt":["a","b"]}' 400 unsupported_parameter prompt
refuse id_outside /v1/completions '{"prompt":[4096]}' 400 invalid_value prompt
refuse prompt_missing /v1/completions '{}' 400 invalid_value prompt
ask $C "{$M,\"max_tokens\":1,\"n\":1,\"frequency_penalty\":0,\"logit_bias\":{},\"user\":\"x\",\"top_k\":-1}"
check neutral_values_pass "$code $(cat "$T/out")" [ "$code" = 200 ]
refuse too_long_for_ctx /v1/completions "{\"prompt\":[$(seq -s, 1 4095),1,2,3]}" 400 context_length_exceeded prompt

# ---------------------------------------------------------------- who may ask
get /v1/models -H 'Host: evil.example'
error_is rebinding_is_refused 403 host_not_allowed
get /v1/models -H 'Host: 127.0.0.1.evil.example'
error_is rebinding_by_prefix_is_refused 403 host_not_allowed
ask $C "{$M,\"max_tokens\":1}" -H 'Origin: https://evil.example'
error_is other_origin_is_refused 403 origin_not_allowed
ask $C "{$M,\"max_tokens\":1}" -H "Origin: $URL"
check own_origin_may_ask "$code" [ "$code" = 200 ]

# ---------------------------------------------------------------- lost clients, a full queue
long='{"prompt":"The function","max_tokens":4000,"ignore_eos":true,"stream":true}'
curl -sN -o "$T/long" "$URL/v1/completions" -d "$long" &
a=$!
until [ -s "$T/long" ]; do sleep 0.02; done
curl -s -o "$T/wait1" "$URL/v1/completions" -d '{"prompt":"a","max_tokens":1}' &
b=$!
curl -s -o "$T/wait2" "$URL/v1/completions" -d '{"prompt":"a","max_tokens":1}' &
c=$!
until get /stats && [ "$(json "$T/out" queued)" = 2 ]; do
    kill -0 $a 2>/dev/null || break
    sleep 0.02
done
curl -s -D "$T/head" -o "$T/out" "$URL/v1/completions" -d '{"prompt":"a","max_tokens":1}'
code=$(sed -n '1s/HTTP[^ ]* \([0-9]*\).*/\1/p' "$T/head")
error_is full_queue_is_429 429 queue_full
check full_queue_says_when "$(cat "$T/head")" grep -Eqi '^retry-after: [1-9][0-9]*' "$T/head"
get /health
check health_while_busy "$code" [ "$code" = 200 ]
kill $b
until get /stats && [ "$(json "$T/out" queued)" = 1 ]; do sleep 0.02; done
ok lost_client_leaves_the_queue
kill $a
wait $c
check next_in_line_is_served "$(cat "$T/wait2")" [ "$(json "$T/wait2" usage completion_tokens)" = 1 ]
get /stats
check lost_clients_are_counted "$(json "$T/out" cancelled)" [ "$(json "$T/out" cancelled)" = 2 ]
check nothing_runs_any_more "$(json "$T/out" running)" [ "$(json "$T/out" running)" = 0 ]
get /metrics
check metrics_text "$(head -c 300 "$T/out")" grep -q '^sluice_requests_total{result="refused"} 1$' "$T/out"
bad=$(grep -vcE '^(# (HELP|TYPE) [a-z_]+ .*|[a-z_]+(\{[a-z]+="([^"\\]|\\.)*"(,[a-z]+="([^"\\]|\\.)*")*\})? [-+0-9.e]+)$' "$T/out")
check metrics_are_well_formed "$bad lines are not" [ "$bad" = 0 ]

# ---------------------------------------------------------------- the end
rm "$T/long"
curl -sN -o "$T/long" "$URL/v1/completions" -d "$long" &
a=$!
until grep -q '"text"' "$T/long" 2>/dev/null; do sleep 0.02; done
start=$EPOCHREALTIME
serve_stop INT
ms=$(((${EPOCHREALTIME/./} - ${start/./}) / 1000))
check interrupt_exits_130 "exit $status: $(cat "$T/serve.err")" [ "$status" = 130 ]
wait $a
check streams_are_told "$(tail -n 3 "$T/long")" grep -q '"code":"shutting_down"' "$T/long"
[ "$BUILD" != build ] || check ends_within_a_second "$ms ms" [ "$ms" -lt 1000 ]

# ---------------------------------------------------------------- keys and limits
SLUICE_API_KEY=geheim serve_start "$P" --max-body 2000 --request-timeout 1 --send-timeout 1 --model-name k3 --cors https://app.example
get /v1/models
error_is key_is_asked_for 401 invalid_api_key
get /v1/models -H 'Authorization: Bearer geheim2'
error_is wrong_key 401 invalid_api_key
get /v1/models -H 'Authorization: Bearer gehei'
error_is short_key 401 invalid_api_key
get /v1/models -H 'Authorization: Bearer geheim'
check right_key "$code" [ "$code $(json "$T/out" data 0 id)" = "200 k3" ]
for path in /metrics /stats; do
    get $path
    error_is "key_for$(echo $path | tr / _)" 401 invalid_api_key
done
for path in / /health; do
    get $path
    check "no_key_for$(echo $path | tr / _)" "$code" [ "$code" = 200 ]
done
K='Authorization: Bearer geheim'
big=$(head -c 3000 /dev/zero | tr '\0' a)
ask /v1/completions "{\"prompt\":\"$big\"}" -H "$K"
error_is large_body 413 request_too_large
ask /v1/completions "{\"prompt\":\"$big\"}" -H "$K" -H 'Transfer-Encoding: chunked'
error_is large_chunked_body 413 request_too_large
ask /v1/completions '{"prompt":"a","max_tokens":2}' -H "$K" -H 'Transfer-Encoding: chunked'
check chunked_body "$code $(cat "$T/out")" [ "$code" = 200 ]
ask /v1/completions '{"prompt":"a","max_tokens":2}' -H "$K" -H 'Origin: https://app.example'
check allowed_origin "$code" [ "$code" = 200 ]
curl -s -D "$T/head" -o /dev/null -X OPTIONS "$URL$C" -H 'Origin: https://app.example'
check preflight "$(cat "$T/head")" grep -qi '^access-control-allow-origin: https://app.example' "$T/head"
# A client that dawdles over its request is shown the door.
host=${URL#http://}
exec 5<>"/dev/tcp/${host%:*}/${host#*:}"
printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{' >&5
slow=$(timeout 20 cat <&5 | head -c 100)
check slow_request_ends "status $?" [ "${PIPESTATUS[0]}" = 0 ]
exec 5>&-
get /health
check alive_after_slow_client "$code '$slow'" [ "$code" = 200 ]
serve_stop TERM
check terminate_exits_0 "exit $status: $(cat "$T/serve.err")" [ "$status" = 0 ]

# ---------------------------------------------------------------- usage
refused no_such_host 2 'host' serve "$P" --host no-such-host.invalid
refused empty_key 2 'the key is empty' serve "$P" --api-key ''
refused serve_missing_pack 4 'no-such.pack' serve "$T/no-such.pack"
"$SLUICE" serve "$P" --host 0.0.0.0 --port 0 2>"$T/serve.err" &
PID=$!
until grep -q 'asks for no key' "$T/serve.err" || ! kill -0 $PID 2>/dev/null; do sleep 0.02; done
check open_server_warns "$(cat "$T/serve.err")" grep -q 'warning: 0.0.0.0 can be reached' "$T/serve.err"
serve_stop TERM
