#!/bin/sh
# Builds hx-fetch and what its tests use, makes the demo model, and runs the suite against a hub on the loopback
# address. Prints pytest's closing line.
#   tests/fetch/run.sh [build folder, else $BUILD, else build] [pytest arguments]
# Without arguments for pytest: everything that is not marked "long".
set -eu
build=${1:-${BUILD:-build}}
[ $# -gt 0 ] && shift
make -s -j2 BUILD="$build" all faultfs >&2
bin=$build/release/bin
model=$build/demo
if ! grep -qs '"complete":true' "$model/state.json"; then
    "$bin/hx-inspect" tiny "$model" --tokenizer "$build/data/tokenizer.json" \
        --map "$build/data/engram_map.i32" >&2
fi
python=$(scripts/venv.sh "$build/venv-fetch" pytest==8.4.2 pytest-xdist==3.8.0 openai==1.109.1)
export HX_FETCH="${HX_FETCH:-$bin/hx-fetch}" HX_ENGINE="$bin/hx-engine" HX_MODEL="$model" \
    HX_TOKENIZER="$build/data/tokenizer.json" HX_FAULTFS="$build/release/tests/faultfs"
[ $# -gt 0 ] || set -- -m "not long"
exec "$python" -B -m pytest -q -p no:cacheprovider -n 4 --dist loadgroup -o markers="long: minutes" tests/fetch "$@"
