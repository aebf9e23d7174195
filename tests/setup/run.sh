#!/bin/sh
# The wizard on a terminal: every screen against its text, every refusal, plain lines and dialogs. Prints pytest's
# closing line.
#   tests/setup/run.sh [build folder, else $BUILD, else build] [pytest arguments]
#   --update   writes the screens anew (look at the difference before you keep it)
set -eu
build=${1:-${BUILD:-build}}
[ $# -gt 0 ] && shift
make -s -j2 BUILD="$build" "$build/release/bin/hx-setup" "$build/release/bin/hx" "$build/release/bin/p2p_check" \
    "$build/release/tests/libnvml-shim.so" >&2
python=$(scripts/venv.sh "$build/venv-setup" pytest==8.4.2 pyte==0.8.2 wcwidth==0.2.13)
case $build in /*) top=$build ;; *) top=$PWD/$build ;; esac
export HX_BIN="$top/release/bin"
exec "$python" -B -m pytest -q -p no:cacheprovider tests/setup "$@"
