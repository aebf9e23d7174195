#!/bin/sh
# Makes the build kit: a read-only file system with compiler and headers of the image's kernel, and its signed manifest.
# usage: kit.sh BUILD_FOLDER VERSION SIGNING_KEY SOURCE_TIME
here=$(dirname "$0")
# shellcheck source=image/lib.sh
. "$here/lib.sh"

[ $# -eq 4 ] || die "usage: kit.sh BUILD_FOLDER VERSION SIGNING_KEY SOURCE_TIME"
IMAGE=$(cd "$1/image" && pwd)
version=$2
key=$3
time=$4
work=$IMAGE/work
kit=$work/kit
out=$work/out
need_root
kernel=$(sed -n 's/^linux-image-\([^ ]*\) .*/\1/p' "$here/packages/image.lock")
[ -d "$IMAGE/kit/usr/src/linux-headers-$kernel" ] || die "the kit has no headers of kernel $kernel: make image-lock"

clean_kit() {
    rm -rf "$kit"
    mkdir -p "$kit"
    cp -al "$IMAGE/kit/usr" "$kit/"
    for link in bin lib lib64 sbin; do
        ln -s "usr/$link" "$kit/$link"
    done
    mkdir -p "$kit/etc/alternatives"
    cp -P "$IMAGE"/kit/etc/alternatives/* "$kit/etc/alternatives/"
    (cd "$kit/usr" && rm -rf share/man share/locale share/info share/bug share/lintian share/bash-completion lib/apt bin/apt* lib/systemd)
    find "$kit/usr/share/doc" -mindepth 2 ! -type d ! -name copyright -delete
    find "$kit" -name '*.pyc' -delete
    find "$kit" -type f -perm /6000 -exec sh -c 'cp -p "$1" "$1.new" && chmod u-s,g-s "$1.new" && mv "$1.new" "$1"' _ {} \;
}

make_kit() {
    in_tools mkfs.erofs --quiet -zlz4hc,9 -C65536 "-T$time" \
        "-U$(printf '%s' "hx170 kit $version" | sha256sum | sed 's/^\(.\{8\}\)\(.\{4\}\)\(.\{4\}\)\(.\{4\}\)\(.\{12\}\).*/\1-\2-\3-\4-\5/')" \
        -x-1 --workers=2 "/image/work/out/hx170-$version.kit" /image/work/kit
    cat >"$out/hx170-$version.kit.manifest" <<EOF
schema = 1
product = hx170-kit
version = $version
kernel = $kernel
kit.size = $(size "$out/hx170-$version.kit")
kit.sha256 = $(sha256sum "$out/hx170-$version.kit" | cut -d' ' -f1)
EOF
    openssl pkeyutl -sign -rawin -inkey "$key" -in "$out/hx170-$version.kit.manifest" -out "$out/hx170-$version.kit.manifest.sig"
}
mkdir -p "$out"
timed "tree of the build kit" clean_kit
timed "build kit" make_kit
echo "image: build kit $(size "$out/hx170-$version.kit") bytes"
