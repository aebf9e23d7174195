#!/bin/sh
# Driver bundles end to end: a machine in a folder (--root), bundles from the recorded cases, and a
# stand-in module that is built against the installed kernel headers. Prints pytest's closing line.
#   tests/bundles/run.sh [build folder, else $BUILD, else build] [pytest arguments]
set -eu
build=${1:-${BUILD:-build}}
[ $# -gt 0 ] && shift
make -s -j2 BUILD="$build" "$build/release/bin/hx-cards" "$build/release/bin/p2p_check" \
    "$build/release/tests/libnvml-shim.so" >&2
mkdir -p "$build/bundles"
gcc -shared -fPIC -O1 -Wall -Werror -o "$build/bundles/cut.so" tests/bundles/cut.c -ldl
python=$(scripts/venv.sh "$build/venv")
case $build in /*) top=$build ;; *) top=$PWD/$build ;; esac
export HX_CARDS="$top/release/bin/hx-cards" HX_CUT="$top/bundles/cut.so"
export HX_P2P_CHECK="$top/release/bin/p2p_check" HX_NVML_SHIM="$top/release/tests/libnvml-shim.so"
exec "$python" -B -m pytest -q -p no:cacheprovider tests/bundles "$@"
