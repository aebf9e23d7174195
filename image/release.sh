#!/bin/sh
# Compresses the stick's image and says the sums of everything that is handed out.
# usage: release.sh BUILD_FOLDER VERSION
here=$(dirname "$0")
# shellcheck source=image/lib.sh
. "$here/lib.sh"

[ $# -eq 2 ] || die "usage: release.sh BUILD_FOLDER VERSION"
IMAGE=$(cd "$1/image" && pwd)
out=$IMAGE/work/out
compress() {
    in_tools xz -6 -T2 --keep --force /image/work/out/stick.img
}
timed "compressed image" compress
(cd "$out" && sha256sum stick.img stick.img.xz "hx170-$2.bundle" manifest >SHA256SUMS)
echo "image: compressed $(size "$out/stick.img.xz"), bundle $(size "$out/hx170-$2.bundle") bytes, in $out"
