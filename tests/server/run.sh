#!/bin/sh
# Builds the server over the scripted engine and runs the suite against it.
#   tests/server/run.sh [build folder] [pytest arguments]
set -eu
build=${1:-build}
[ $# -gt 0 ] && shift
make -s -j2 BUILD="$build" "$build/release/bin/hx-engine-fake" >&2
python=$(scripts/venv.sh "$build/venv")
HX_SERVER=$build/release/bin/hx-engine-fake exec "$python" -m pytest -q -p no:cacheprovider tests/server "$@"
