#!/bin/sh
# Makes the images out of the finished tree: root with its hash tree, initrd, kernel image, ESP, disk for the stick.
# Every byte follows from the inputs: no clock, no random number, no loop device.
# usage: assemble.sh BUILD_FOLDER INIT_PROGRAM VERSION SOURCE_TIME
here=$(dirname "$0")
# shellcheck source=image/lib.sh
. "$here/lib.sh"

[ $# -eq 4 ] || die "usage: assemble.sh BUILD_FOLDER INIT_PROGRAM VERSION SOURCE_TIME"
IMAGE=$(cd "$1/image" && pwd)
init=$2
version=$3
export SOURCE_DATE_EPOCH="$4"
work=$IMAGE/work
tree=$work/tree
out=$work/out
kernel=$(cat "$work/kernel")
need_root
rm -rf "$out"
mkdir -p "$out"

esp_mib=128
efi=/image/work/tree/usr/lib/systemd/boot/efi
# The stick has no partitions for state and models.
installer_line="hx170.mode=installer systemd.unit=hx-installer.target systemd.mount-extra=tmpfs:/var:tmpfs systemd.mask=srv-models.mount systemd.mask=hx-repart.service"

# id TEXT...: 32 hexadecimal digits that follow from the version and the text, in the form of a GUID.
id() {
    printf '%s' "hx170 $version $*" | sha256sum | sed 's/^\(.\{8\}\)\(.\{4\}\)\(.\{4\}\)\(.\{4\}\)\(.\{12\}\).*/\1-\2-\3-\4-\5/'
}

guid() {
    echo "$1" | sed 's/^\(.\{8\}\)\(.\{4\}\)\(.\{4\}\)\(.\{4\}\)\(.\{12\}\)$/\1-\2-\3-\4-\5/'
}

# Through a sorted archive: the order of a folder's entries on the build machine's disk would show in the layout.
make_root() {
    in_tools tar -C /image/work/tree --sort=name --format=pax --pax-option=delete=atime,delete=ctime --numeric-owner \
        "--mtime=@$SOURCE_DATE_EPOCH" -cf /image/work/root.tar .
    in_tools mkfs.erofs --quiet --tar=f -zlz4hc,12 -C65536 "-T$SOURCE_DATE_EPOCH" "-U$(id root)" -x-1 --workers=2 \
        /image/work/out/root.erofs /image/work/root.tar
    rm -f "$work/root.tar"
}

make_verity() {
    in_tools veritysetup format --salt="$(printf '%s' "hx170 salt $version" | sha256sum | cut -d' ' -f1)" --uuid="$(id verity)" \
        --root-hash-file=/image/work/out/root.hash /image/work/out/root.erofs /image/work/out/root.verity >"$work/verity.log"
}

# Modules of the list, each behind what it needs; plain files, since the initrd is packed as a whole.
make_initrd() {
    rd=$work/initrd
    rm -rf "$rd"
    mkdir -p "$rd/modules" "$rd/proc" "$rd/sys" "$rd/dev" "$rd/run" "$rd/sysroot"
    install -m 755 "$init" "$rd/init"
    strip "$rd/init"
    # shellcheck disable=SC2046  # words of the list
    in_tools modprobe --dirname=/image/work/tree --set-version="$kernel" --all --show-depends $(list "$here/init/modules.txt") \
        >"$work/initrd.modules" || die "a module of image/init/modules.txt is not in the kernel $kernel"
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }' "$work/initrd.modules" | while read -r file; do
        name=$(basename "$file" .xz)
        xz -dc "$IMAGE/${file#/image/}" >"$rd/modules/$name"
        echo "$name"
    done >"$work/initrd.order"
    cp "$work/initrd.order" "$rd/modules/order"
    find "$rd" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    in_tools sh -c 'cd /image/work/initrd && find . | sort | cpio --quiet --reproducible -o -H newc -R 0:0 | zstd -q -12 -T1' \
        >"$out/initrd"
}

make_uki() {
    # Copies: the archive would say how many links a file has.
    rm -rf "$work/early"
    cp -r "$work/microcode" "$work/early"
    find "$work/early" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    in_tools sh -c 'cd /image/work/early && find . | sort | cpio --quiet --reproducible -o -H newc -R 0:0' >"$work/microcode.cpio"
    cat >"$out/cmdline" <<EOF
roothash=$(cat "$out/root.hash") ro panic=10 module_blacklist=nouveau,nova_core transparent_hugepage=madvise console=tty0 console=ttyS0,115200 quiet loglevel=4
EOF
    # A second entry of the boot menu (a key held at power-on shows it): the recovery screen, without the network.
    printf 'ID=main\nTITLE=hx170\n' >"$work/main.profile"
    printf 'ID=recovery\nTITLE=Recovery\n' >"$work/recovery.profile"
    in_tools ukify build --cmdline="$(cat "$out/cmdline") systemd.unit=hx-recovery.target" --profile=@/image/work/recovery.profile \
        --stub="$efi/addonx64.efi.stub" --output=/image/work/recovery.efi >"$work/ukify.log" 2>&1 || die "ukify: $(cat "$work/ukify.log")"
    in_tools ukify build --profile=@/image/work/main.profile --join-profile=/image/work/recovery.efi --linux=/image/work/vmlinuz --microcode=/image/work/microcode.cpio \
        --initrd=/image/work/out/initrd --cmdline=@/image/work/out/cmdline \
        --os-release=@/image/work/tree/usr/lib/os-release --uname="$kernel" --stub="$efi/linuxx64.efi.stub" \
        --output=/image/work/out/uki.efi >"$work/ukify.log" 2>&1 || die "ukify: $(cat "$work/ukify.log")"
    in_tools ukify build --cmdline="$installer_line" --stub="$efi/addonx64.efi.stub" \
        --output=/image/work/out/installer.addon.efi >"$work/ukify.log" 2>&1 || die "ukify: $(cat "$work/ukify.log")"
}

make_esp() {
    esp=$work/esp
    rm -rf "$esp"
    mkdir -p "$esp/EFI/BOOT" "$esp/EFI/systemd" "$esp/EFI/Linux" "$esp/loader/addons"
    cp "$tree/usr/lib/systemd/boot/efi/systemd-bootx64.efi" "$esp/EFI/BOOT/BOOTX64.EFI"
    cp "$tree/usr/lib/systemd/boot/efi/systemd-bootx64.efi" "$esp/EFI/systemd/systemd-bootx64.efi"
    cp "$out/uki.efi" "$esp/EFI/Linux/hx170_$version.efi"
    cp "$out/installer.addon.efi" "$esp/loader/addons/"
    printf 'timeout 0\neditor no\nsecure-boot-enroll off\n' >"$esp/loader/loader.conf"
    # What hx-install checks before it trusts the stick: no hash tree covers these files.
    mkdir "$esp/hx170"
    (cd "$esp" && find EFI loader -type f | sort | xargs sha256sum) >"$work/sums"
    mv "$work/sums" "$esp/hx170/sums"
    find "$esp" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
    rm -f "$out/esp.fat"
    truncate -s "${esp_mib}M" "$out/esp.fat"
    in_tools mkfs.vfat -F32 -n ESP --invariant /image/work/out/esp.fat >"$work/mkfs.log"
    # Sorted: a folder's own order differs from machine to machine.
    # shellcheck disable=SC2016  # expanded by the inner shell
    in_tools sh -ec 'cd /image/work/esp
        find . -mindepth 1 -type d | sort | while read -r d; do mmd -i ../out/esp.fat "::/$d"; done
        find . -type f | sort | while read -r f; do mcopy -m -i ../out/esp.fat "$f" "::/$f"; done'
}

# mib FILE: its size in whole MiB, rounded up.
mib() {
    echo $((($(size "$1") + 1048575) / 1048576))
}

# disk NAME: ESP, root, hash tree behind one partition table (appliance.md 2.2, first three partitions).
make_disk() {
    disk=$out/$1
    hash=$(cat "$out/root.hash")
    root_mib=$(mib "$out/root.erofs")
    verity_mib=$(mib "$out/root.verity")
    root_at=$((1 + esp_mib))
    verity_at=$((root_at + root_mib))
    truncate -s "$((verity_at + verity_mib + 1))M" "$disk"
    in_tools sfdisk --quiet "/image/work/out/$1" <<EOF
label: gpt
label-id: $(id disk)
start=1MiB, size=${esp_mib}MiB, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, uuid=$(id esp), name="ESP"
start=${root_at}MiB, size=${root_mib}MiB, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, uuid=$(guid "$(echo "$hash" | cut -c1-32)"), name="root_$version", attrs="GUID:60"
start=${verity_at}MiB, size=${verity_mib}MiB, type=2C7357ED-EBD2-46D9-AEC1-23D437EC2BF5, uuid=$(guid "$(echo "$hash" | cut -c33-64)"), name="rootv_$version", attrs="GUID:60"
EOF
    dd if="$out/esp.fat" of="$disk" bs=1M seek=1 conv=notrunc,sparse status=none
    dd if="$out/root.erofs" of="$disk" bs=1M seek="$root_at" conv=notrunc status=none
    dd if="$out/root.verity" of="$disk" bs=1M seek="$verity_at" conv=notrunc status=none
}

timed "root file system" make_root
timed "hash tree" make_verity
timed "initrd" make_initrd
timed "kernel image" make_uki
timed "ESP" make_esp
timed "disk" make_disk stick.img
echo "image: root $(size "$out/root.erofs"), hash tree $(size "$out/root.verity"), initrd $(size "$out/initrd"), kernel image" \
    "$(size "$out/uki.efi"), disk $(size "$out/stick.img") bytes; root hash $(cat "$out/root.hash")"
