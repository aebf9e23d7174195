#!/bin/sh
# Puts what is ours into the cleaned tree: programs, units, configuration, accounts, version.
# usage: compose.sh BUILD_FOLDER PROGRAM_FOLDER VERSION SIGNING_KEY CUDA
#
# PROGRAM_FOLDER: what `make all` built. CUDA: 0 if the programs have no code for the cards.
# Files of the cleaned tree are hard links here: they are replaced, never written to.
here=$(dirname "$0")
# shellcheck source=image/lib.sh
. "$here/lib.sh"

[ $# -eq 5 ] || die "usage: compose.sh BUILD_FOLDER PROGRAM_FOLDER VERSION SIGNING_KEY CUDA"
IMAGE=$(cd "$1/image" && pwd)
programs=$2
version=$3
signing_key=$4
cuda=$5
etc=$here/../etc
work=$IMAGE/work
tree=$work/tree
need_root

# put MODE FILE... FOLDER: into the tree's folder; names without a file are passed over.
put() {
    mode=$1
    shift
    for last; do :; done
    for file; do
        if [ -f "$file" ] && [ "$file" != "$last" ]; then
            install -D -m "$mode" "$file" "$tree$last/$(basename "$file")"
        fi
    done
}

# replace FILE: its new content from standard input.
replace() {
    rm -f "$tree$1"
    mkdir -p "$tree$(dirname "$1")"
    cat >"$tree$1"
    chmod 644 "$tree$1"
}

put_programs() {
    for program in "$programs"/hx* "$programs"/p2p_check; do
        [ -x "$program" ] || continue
        case "$(basename "$program")" in
            *.d | *.o | *-fake) ;;
            hx-probe | hx-root) install -D -s -m 755 "$program" "$tree/usr/libexec/hx170/$(basename "$program")" ;;
            *) install -D -s -m 755 "$program" "$tree/usr/bin/$(basename "$program")" ;;
        esac
    done
}

# A program of ours that the tree cannot start would be found out at the owner's place.
check_libraries() {
    for program in "$tree"/usr/bin/hx* "$tree"/usr/bin/p2p_check "$tree"/usr/libexec/hx170/*; do
        head -c 4 "$program" 2>/dev/null | grep -q ELF || continue
        inside=${program#"$tree"}
        chroot "$tree" /lib64/ld-linux-x86-64.so.2 --list "$inside" >"$work/ldd.log" 2>&1 ||
            die "$inside: $(head -3 "$work/ldd.log")"
        if grep -qE 'not found|undefined' "$work/ldd.log"; then
            die "$inside needs what the image has not: $(grep -E 'not found|undefined' "$work/ldd.log" | head -3)"
        fi
    done
}

# etc/ of the repository; docs/image.md has this table.
put_etc() {
    for folder in "$etc"/systemd/*; do
        [ -d "$folder" ] || continue
        case "$(basename "$folder")" in
            *.d) put 644 "$folder"/* "/usr/lib/systemd/system/$(basename "$folder")" ;;
            *-preset) put 644 "$folder"/* "/usr/lib/systemd/$(basename "$folder")" ;;
        esac
    done
    put 644 "$etc"/systemd/*.* /usr/lib/systemd/system
    put 644 "$etc"/sysusers.d/*.conf /usr/lib/sysusers.d
    put 644 "$etc"/tmpfiles.d/*.conf /usr/lib/tmpfiles.d
    put 644 "$etc"/sysctl.d/*.conf /usr/lib/sysctl.d
    put 644 "$etc"/repart.d/*.conf /usr/lib/repart.d
    put 644 "$etc"/network/* /usr/lib/systemd/network
    put 644 "$etc"/udev/*.rules /usr/lib/udev/rules.d
    put 644 "$etc"/ssh/*.conf /etc/ssh/sshd_config.d
    put 644 "$etc"/pam.d/* /etc/pam.d
    put 644 "$etc"/locks/* /usr/share/hx170/locks
    put 644 "$IMAGE"/../data/tokenizer.json "$IMAGE"/../data/engram_map.i32 /usr/share/hx170/demo
    for folder in resolved journald system timesyncd networkd logind; do
        put 644 "$etc/$folder.conf.d"/*.conf "/usr/lib/systemd/$folder.conf.d"
    done
    put 644 "$etc"/*.conf /etc/hx170
    if [ -f "$tree/etc/hx170/nftables.conf" ]; then
        rm -f "$tree/etc/nftables.conf"
        mv "$tree/etc/hx170/nftables.conf" "$tree/etc/nftables.conf"
    fi
}

put_version() {
    mkdir -p "$tree/usr/share/hx170"
    rm -f "$tree/usr/lib/os-release" "$tree/etc/issue" "$tree/etc/issue.net" "$tree/etc/motd"
    replace /usr/lib/os-release <<EOF
NAME="hx170"
ID=hx170
ID_LIKE=debian
PRETTY_NAME="hx170 $version"
IMAGE_ID=hx170
IMAGE_VERSION=$version
VERSION_ID=$version
DEFAULT_HOSTNAME=hx170
EOF
    echo "$version" | replace /usr/share/hx170/version
    replace /usr/share/hx170/packages <"$work/packages"
    printf 'cuda = %s\nkernel = %s\n' "$([ "$cuda" = 0 ] && echo no || echo yes)" "$(cat "$work/kernel")" |
        replace /usr/share/hx170/build
    openssl pkey -in "$signing_key" -pubout | replace /usr/share/hx170/release.pem
    # For agetty: device name, terminal.
    printf '%s\n\n' 'hx170 \n \l' | replace /etc/issue
    put 644 "$here/../LICENSE" "$here/../NOTICE" /usr/share/doc/hx170
}

put_folders() {
    # A folder that is not there cannot be mounted on: the root is read-only.
    for folder in var/lib var/log var/cache var/spool srv/models efi run proc sys dev tmp root usr/share/hx170; do
        install -d -m 755 "$tree/$folder"
    done
    chmod 700 "$tree/root"
    install -d -m 1777 "$tree/var/tmp" "$tree/tmp"
    ln -sfn /run "$tree/var/run"
    ln -sfn ../run/systemd/resolve/stub-resolv.conf "$tree/etc/resolv.conf"
    : | replace /etc/machine-id
    chmod 444 "$tree/etc/machine-id"
    : | replace /etc/hostname
    echo "# Mounts are units of their own." | replace /etc/fstab
}

make_accounts() {
    for file in passwd group shadow gshadow; do
        cp "$tree/etc/$file" "$work/$file"
        rm "$tree/etc/$file"
        mv "$work/$file" "$tree/etc/$file"
    done
    in_tools systemd-sysusers --root=/image/work/tree >"$work/sysusers.log" 2>&1 || die "sysusers: $(cat "$work/sysusers.log")"
    # No day of the last change: it would differ from build to build.
    sed -i 's/^\([^:]*\):[^:]*:.*/\1:!*:1::::::/' "$tree/etc/shadow"
    rm -f "$tree"/etc/*- "$tree/etc/.pwd.lock"
}

enable_units() {
    in_tools systemctl --root=/image/work/tree preset-all >"$work/preset.log" 2>&1 || die "preset: $(cat "$work/preset.log")"
    [ -L "$tree/etc/systemd/system/multi-user.target.wants/ssh.service" ] || die "ssh.service is not enabled; see $work/preset.log"
    # A login starts no service manager of its own: nobody here has user services.
    ln -sfn /dev/null "$tree/etc/systemd/system/user@.service"
    ln -sfn /usr/lib/systemd/system/multi-user.target "$tree/etc/systemd/system/default.target"
}

# What repro.sh compares: a file that somebody changed between two builds is no fault of the build.
list_inputs() {
    (cd "$here/.." && find etc image LICENSE NOTICE -type f ! -name '*.pyc' | sort | xargs sha256sum)
    (cd "$programs" && find . -type f | sort | xargs sha256sum)
    echo "$version $cuda"
}

compose() {
    list_inputs >"$work/inputs"
    rm -rf "$tree"
    cp -al "$work/clean" "$tree"
    put_folders
    put_programs
    put_etc
    (cd "$here/overlay" && find . -type f) | while read -r file; do
        install -D -m "$([ -x "$here/overlay/$file" ] && echo 755 || echo 644)" "$here/overlay/$file" "$tree/$file"
    done
    ln -s hx "$tree/usr/bin/sudo"
    put_version
    make_accounts
    enable_units
    check_libraries
}
timed "our files" compose
[ "$cuda" != 0 ] || echo "image: built without CUDA: the engine of this image computes on the processor only, it is no release"
