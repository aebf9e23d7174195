#!/bin/sh
# Makes the update bundle: manifest, its signature, root, hash tree, kernel image, in one tar file (docs/image.md).
# usage: bundle.sh BUILD_FOLDER VERSION SIGNING_KEY MINIMUM_VERSION SOURCE_TIME
here=$(dirname "$0")
# shellcheck source=image/lib.sh
. "$here/lib.sh"

[ $# -eq 5 ] || die "usage: bundle.sh BUILD_FOLDER VERSION SIGNING_KEY MINIMUM_VERSION SOURCE_TIME"
IMAGE=$(cd "$1/image" && pwd)
version=$2
key=$3
out=$IMAGE/work/out
[ -f "$out/root.hash" ] || die "$out/root.hash is missing: make image makes it"

manifest() {
    cat <<EOF
schema = 1
product = hx170
version = $version
minimum_version = $4
kernel = $(cat "$IMAGE/work/kernel")
root_hash = $(cat "$out/root.hash")
EOF
    for part in root.erofs root.verity uki.efi; do
        echo "$part.size = $(size "$out/$part")"
        echo "$part.sha256 = $(sha256sum "$out/$part" | cut -d' ' -f1)"
    done
}

bundle() {
    manifest "$@" >"$out/manifest"
    openssl pkeyutl -sign -rawin -inkey "$key" -in "$out/manifest" -out "$out/manifest.sig"
    tar -C "$out" --format=ustar --owner=0 --group=0 --numeric-owner --mode=644 --mtime="@$5" \
        -cf "$out/hx170-$version.bundle" manifest manifest.sig root.erofs root.verity uki.efi
}
timed "update bundle" bundle "$@"
