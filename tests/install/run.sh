#!/bin/sh
# hx-install and hx-update on a machine in a folder: disks are sparse files, the hash tree is veritysetup's, what is written
# is read with fsck.vfat, mtools, sfdisk, e2fsprogs. Prints pytest's closing line.
#   tests/install/run.sh [build folder, else $BUILD, else build] [pytest arguments]
set -eu
build=${1:-${BUILD:-build}}
[ $# -gt 0 ] && shift
make -s -j2 BUILD="$build" "$build/release/bin/hx-install" "$build/release/bin/hx-update" >&2
python=$(scripts/venv.sh "$build/venv")
case $build in /*) top=$build ;; *) top=$PWD/$build ;; esac
export HX_INSTALL="$top/release/bin/hx-install" HX_UPDATE="$top/release/bin/hx-update"
exec "$python" -B -m pytest -q -p no:cacheprovider tests/install "$@"
