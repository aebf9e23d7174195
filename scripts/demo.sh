#!/usr/bin/env bash
# Makes the small demo model, serves it on a free port, asks it one question and prints the answer as it streams in.
# usage: demo.sh BUILD_FOLDER VARIANT
set -euo pipefail
if [ $# -ne 2 ]; then
    echo "usage: demo.sh BUILD_FOLDER VARIANT" >&2
    exit 64
fi
build=$1
bin=$1/$2/bin
model=$build/demo
log=$build/demo.log
for program in hx-inspect hx-engine; do
    if [ ! -x "$bin/$program" ]; then
        echo "demo: $bin/$program is not there; run 'make all' first" >&2
        exit 69
    fi
done

server=
stop() {
    if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
        kill -TERM "$server"
        wait "$server" || true
    fi
}
trap stop EXIT

echo "1. The demo model: the real architecture and tokenizer, small, with made-up weights ($model)."
if [ ! -f "$model/state.json" ]; then
    rm -rf "$model"
    "$bin/hx-inspect" tiny "$model" --tokenizer "$build/data/tokenizer.json" --map "$build/data/engram_map.i32"
fi

# The kernel picks a port that is free; the server is told to take it.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
echo "2. The server: $bin/hx-engine on $url (log: $log)."
"$bin/hx-engine" --engine.model="$model" --engram.slow_read=60s --server.listen="127.0.0.1:$port" 2>"$log" &
server=$!
for ((i = 0; i < 300; i++)); do
    if curl -fs --max-time 2 "$url/health" >/dev/null; then break; fi
    if ! kill -0 "$server" 2>/dev/null; then
        echo "demo: the server ended before it was ready:" >&2
        tail -5 "$log" >&2
        exit 70
    fi
    sleep 0.1
done
if ! curl -fs --max-time 2 "$url/health" >/dev/null; then
    echo "demo: no answer on $url/health for 30 s, see $log" >&2
    exit 70
fi

question="Which rivers meet at Passau?"
echo "3. One streamed chat request. Question: $question"
echo "   The weights are random, so the text is noise; everything around it is the real path."
echo
body=$(printf '{"model":"demo","stream":true,"max_tokens":48,"temperature":0,"reasoning_effort":"none",
    "messages":[{"role":"user","content":"%s"}]}' "$question")
model_id=$(curl -fsS --max-time 10 "$url/v1/models" | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')
body=${body/\"demo\"/\"$model_id\"}
curl -fsSN --max-time 300 -H 'Content-Type: application/json' -d "$body" "$url/v1/chat/completions" | python3 -c '
import json, sys
n, reason = 0, None
for line in sys.stdin:
    if not line.startswith("data: ") or line.strip() == "data: [DONE]":
        continue
    for choice in json.loads(line[6:])["choices"]:
        delta = choice.get("delta", {})
        piece = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
        n += bool(piece)
        reason = choice.get("finish_reason") or reason
        print(piece, end="", flush=True)
print("\n\n   %d pieces of text, finish_reason %s" % (n, reason))
sys.exit(0 if n and reason else 1)'
echo "4. Stopping the server."
