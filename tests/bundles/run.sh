#!/bin/sh
# Driver bundles end to end: a machine in a folder (--root), bundles from the recorded cases, and a
# stand-in module that is built against the installed kernel headers. Prints pytest's closing line.
#   tests/bundles/run.sh [build folder, else $BUILD, else build] [pytest arguments]
set -eu
build=${1:-${BUILD:-build}}
[ $# -gt 0 ] && shift
make -s -j2 BUILD="$build" "$build/release/bin/hx-cards" >&2
mkdir -p "$build/bundles"
gcc -shared -fPIC -O1 -Wall -Werror -o "$build/bundles/cut.so" tests/bundles/cut.c -ldl
python=$(scripts/venv.sh "$build/venv")
export HX_CARDS="$PWD/$build/release/bin/hx-cards" HX_CUT="$PWD/$build/bundles/cut.so"
case $build in /*) HX_CARDS="$build/release/bin/hx-cards" HX_CUT="$build/bundles/cut.so" ;; esac
exec "$python" -B -m pytest -q -p no:cacheprovider tests/bundles "$@"
