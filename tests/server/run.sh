#!/bin/sh
# Builds the servers, makes the demo model and runs the suite: tests of the HTTP side against the
# scripted engine, tests of whole answers against the real engine with the demo model. Every test
# starts what it needs on a free port and stops it by its pid. Prints pytest's closing line.
#   tests/server/run.sh [build folder, else $BUILD, else build] [pytest arguments]
set -eu
build=${1:-${BUILD:-build}}
[ $# -gt 0 ] && shift
make -s -j2 BUILD="$build" all >&2
bin=$build/release/bin
model=$build/demo
if ! grep -qs '"complete":true' "$model/state.json"; then
    "$bin/hx-inspect" tiny "$model" --tokenizer "$build/data/tokenizer.json" \
        --map "$build/data/engram_map.i32" >&2
fi
python=$(scripts/venv.sh "$build/venv")
export HX_SERVER="$bin/hx-engine-fake" HX_ENGINE="$bin/hx-engine" HX_MODEL="$model"
exec "$python" -B -m pytest -q -p no:cacheprovider tests/server "$@"
