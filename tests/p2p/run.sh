#!/bin/sh
# Builds p2p_check and the stand-in for the management library, runs the suite. Prints pytest's closing line.
#   tests/p2p/run.sh [build folder, else $BUILD, else build] [pytest arguments]
set -eu
build=${1:-${BUILD:-build}}
[ $# -gt 0 ] && shift
make -s -j2 BUILD="$build" "$build/release/bin/p2p_check" "$build/release/tests/libnvml-shim.so" \
    "$build/release/tests/nvml_print" >&2
python=$(scripts/venv.sh "$build/venv")
export HX_P2P_CHECK="$build/release/bin/p2p_check" HX_NVML_SHIM="$build/release/tests/libnvml-shim.so" \
    HX_NVML_PRINT="$build/release/tests/nvml_print"
exec "$python" -B -m pytest -q -p no:cacheprovider tests/p2p "$@"
