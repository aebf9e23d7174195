#!/bin/sh
# Side by side on the loopback address: curl, aria2c, the hub's own Python client and hx-fetch get the same bytes from
# the same server to the same disk. Prints one table; the record goes to docs/perf-log.md.
#   tests/bench/fetch_speed.sh [build folder, else $BUILD, else build] [options of fetch_speed.py]
set -eu
build=${1:-${BUILD:-build}}
[ $# -gt 0 ] && shift
make -s -j2 BUILD="$build" "$build/release/bin/hx-fetch" >&2
python=$(scripts/venv.sh "$build/venv-speed" huggingface_hub==0.36.0)
exec "$python" -B tests/bench/fetch_speed.py --fetch "$build/release/bin/hx-fetch" --work "$build/bench/fetch" "$@"
