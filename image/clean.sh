#!/bin/sh
# Makes the image's tree out of the installed packages, before anything of ours goes in: what removed.txt and
# modules-removed.txt name goes, nobody can log in by password, nothing is set-uid.
# usage: clean.sh BUILD_FOLDER
here=$(dirname "$0")
# shellcheck source=image/lib.sh
. "$here/lib.sh"

[ $# -eq 1 ] || die "usage: clean.sh BUILD_FOLDER"
IMAGE=$(cd "$1/image" && pwd)
base=$IMAGE/base
work=$IMAGE/work
tree=$work/clean
[ -d "$base/usr" ] || die "$base is missing: packages.sh makes it"
key=$(cat "$IMAGE/image.stamp" "$here/clean.sh" "$here/removed.txt" "$here/modules-removed.txt" | sha256sum | cut -d' ' -f1)
[ "$(cat "$work/clean.stamp" 2>/dev/null)" = "$key" ] && exit 0
need_root
mkdir -p "$work"
rm -rf "$tree" "$work/clean.stamp" "$work/microcode"

clean() {
    # Links: files are replaced here and in what follows, never written to.
    cp -al "$base" "$tree"
    kernel=$(basename "$tree"/usr/lib/modules/*)
    cp "$tree/boot/vmlinuz-$kernel" "$work/vmlinuz"
    echo "$kernel" >"$work/kernel"
    cut -d' ' -f1,2 "$tree/packages.lock" >"$work/packages"

    in_tools depmod --basedir /image/work/clean "$kernel"
    cp "$tree/usr/lib/modules/$kernel/modules.dep" "$work/modules.dep"
    list "$here/modules-removed.txt" | while read -r folder; do
        rm -rf "$tree/usr/lib/modules/$kernel/kernel/$folder"
    done
    # What needs one of those goes too; modules.dep names the needs of needs as well.
    (cd "$tree/usr/lib/modules/$kernel" && sed 's/://' "$work/modules.dep" | while read -r module needs; do
        for need in $needs; do
            if [ ! -f "$need" ]; then
                echo "$module"
                break
            fi
        done
    done | xargs -r rm -f)

    # Fixes of processors: not files of the root but the first thing that the kernel is given.
    mkdir -p "$work/microcode/kernel/x86/microcode"
    cat "$tree"/usr/lib/firmware/intel-ucode/* >"$work/microcode/kernel/x86/microcode/GenuineIntel.bin"
    cat "$tree"/usr/lib/firmware/amd-ucode/*.bin >"$work/microcode/kernel/x86/microcode/AuthenticAMD.bin"
    find "$tree/usr/lib/firmware" -mindepth 1 -maxdepth 1 ! -name rtl_nic ! -name bnx2 -exec rm -rf {} +

    list "$here/removed.txt" | while read -r pattern; do
        # shellcheck disable=SC2086  # a pattern
        rm -rf "$tree"$pattern
    done
    find "$tree/var" "$tree/run" "$tree/tmp" "$tree/boot" "$tree/root" "$tree/etc/systemd/system" -mindepth 1 -delete
    find "$tree/usr/share/doc" -mindepth 2 ! -name copyright -type f -delete
    find "$tree/usr/share/doc" -mindepth 2 -type l ! -name copyright -delete
    find "$tree/usr" -name '*.pyc' -delete
    find "$tree" -xdev -xtype l -path "$tree/etc/alternatives/*" -delete

    # Accounts: locked, whatever a package thought.
    sed -i 's/^\([^:]*\):[^:]*:.*/\1:!*:1::::::/' "$tree/etc/shadow"
    find "$tree" -xdev -type f -perm /6000 -exec sh -c 'cp -p "$1" "$1.new" && chmod u-s,g-s "$1.new" && mv "$1.new" "$1"' _ {} \;

    in_tools depmod --basedir /image/work/clean "$kernel"
    rm -f "$tree/usr/lib/modules/$kernel/build" "$tree/usr/lib/modules/$kernel/source"
}
timed "clean tree" clean
echo "$key" >"$work/clean.stamp"
