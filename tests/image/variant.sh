#!/bin/sh
# Update bundle of another version, made from the tree of the image that is built: the same system, good or broken on
# purpose. Takes seconds, since only the root is packed again, and with less compression.
# usage: tests/image/variant.sh BUILD_FOLDER FAULT VERSION SIGNING_KEY OUTPUT
#
#   good     nothing but the version
#   hang     process 1 stops for good in the middle of the start, once the hardware watchdog is armed: only that ends it
#   sick     starts, but SSH never listens: the health gate ends that
#   stuck    starts, but something before boot-complete never comes to an end: the timer ends that
#   lost     /var cannot be mounted: the start ends in the recovery screen
here=$(dirname "$0")/../../image
# shellcheck source=image/lib.sh
. "$here/lib.sh"

[ $# -eq 5 ] || die "usage: variant.sh BUILD_FOLDER FAULT VERSION SIGNING_KEY OUTPUT"
IMAGE=$(cd "$1/image" && pwd)
fault=$2
version=$3
key=$4
output=$5
work=$IMAGE/work/variant
tree=$work/tree
out=$work/out
units=$tree/usr/lib/systemd/system
kernel=$(cat "$IMAGE/work/kernel")
need_root

# unit NAME: a unit of the broken system from standard input.
unit() {
    cat >"$units/$1"
}

# wanted NAME BY: it starts with BY.
wanted() {
    mkdir -p "$units/$2.wants"
    ln -sf "../$1" "$units/$2.wants/$1"
}

break_it() {
    case $fault in
        good) ;;
        hang)
            unit test-hang.service <<'END'
[Unit]
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'until grep -qx active /sys/class/watchdog/watchdog0/state; do sleep 1; done; \
    echo test-hang: process 1 stops >/dev/console; sleep 2; echo 1 >/sys/fs/cgroup/init.scope/cgroup.freeze'
END
            wanted test-hang.service sysinit.target ;;
        sick)
            rm -f "$tree/etc/systemd/system/multi-user.target.wants/ssh.service"
            ln -sf /dev/null "$tree/etc/systemd/system/ssh.service" ;;
        stuck)
            unit test-stuck.service <<'END'
[Unit]
Before=boot-complete.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/sleep infinity
END
            mkdir -p "$units/boot-complete.target.requires"
            ln -sf ../test-stuck.service "$units/boot-complete.target.requires/test-stuck.service" ;;
        lost)
            sed -i.old 's/^Type=ext4/Type=xfs/' "$units/var.mount"
            rm -f "$units/var.mount.old" ;;
        *) die "$fault: no such fault" ;;
    esac
}

make_tree() {
    rm -rf "$work"
    mkdir -p "$work/out"
    cp -al "$IMAGE/work/tree" "$tree"
    # Hard links: what changes becomes a file of its own first.
    for file in /usr/lib/os-release /usr/share/hx170/version; do
        sed "s/\([= ]\|^\)$old\(\"\|$\)/\1$version\2/" "$IMAGE/work/tree$file" >"$work/new"
        rm -f "$tree$file"
        install -m 644 "$work/new" "$tree$file"
    done
    break_it
}

make_parts() {
    in_tools mkfs.erofs --quiet -zlz4 -C65536 -T0 --workers=2 /image/work/variant/out/root.erofs /image/work/variant/tree
    in_tools veritysetup format --salt="$(printf '%s' "$version $fault" | sha256sum | cut -d' ' -f1)" \
        --root-hash-file=/image/work/variant/out/root.hash /image/work/variant/out/root.erofs /image/work/variant/out/root.verity \
        >"$work/verity.log"
    sed "s/roothash=[0-9a-f]*/roothash=$(cat "$out/root.hash")/" "$IMAGE/work/out/cmdline" >"$out/cmdline"
    in_tools ukify build --linux=/image/work/vmlinuz --microcode=/image/work/microcode.cpio --initrd=/image/work/out/initrd --cmdline=@/image/work/variant/out/cmdline \
        --os-release=@/image/work/variant/tree/usr/lib/os-release --uname="$kernel" \
        --stub=/image/work/tree/usr/lib/systemd/boot/efi/linuxx64.efi.stub --output=/image/work/variant/out/uki.efi \
        >"$work/ukify.log" 2>&1 || die "ukify: $(cat "$work/ukify.log")"
}

# The same way as the real one: image/bundle.sh on a folder that looks like a build folder.
make_bundle() {
    mkdir -p "$work/build/image/work"
    cp "$IMAGE/work/kernel" "$work/build/image/work/kernel"
    mv "$out" "$work/build/image/work/out"
    "$here/bundle.sh" "$work/build" "$version" "$key" 0 0 >/dev/null
    mkdir -p "$(dirname "$output")"
    mv "$work/build/image/work/out/hx170-$version.bundle" "$output"
    rm -rf "$work"
}

old=$(sed -n 's/^IMAGE_VERSION=//p' "$IMAGE/work/tree/usr/lib/os-release" | sed 's/\./\\./g')
make_tree
make_parts
make_bundle
