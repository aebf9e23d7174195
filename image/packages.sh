#!/bin/sh
# Installs a list of Debian 13 packages into a folder, from the mirror of this machine's own apt configuration.
# usage: packages.sh BUILD_FOLDER tools|image|kit [locked|newest|lock]
#
# image/packages/NAME.lock says which versions: one line a package with name, version and SHA-256. "locked", the default: a
# package that differs from it stops the build. "newest": takes what the mirror has and says what differs, for tests when
# the mirror has gone on. "lock": writes the file anew from what the mirror has.
# Does nothing when the tree was made from the same list and lock.
here=$(dirname "$0")
# shellcheck source=image/lib.sh
. "$here/lib.sh"

[ $# -ge 2 ] || die "usage: packages.sh BUILD_FOLDER tools|image|kit [locked|newest|lock]"
mkdir -p "$1/image"
IMAGE=$(cd "$1/image" && pwd)
name=$2
mode=${3:-locked}
wanted=$here/packages/$name.txt
lock=$here/packages/$name.lock
case "$name" in
    tools) tree=$IMAGE/tools variant=apt ;;
    image) tree=$IMAGE/base variant=essential ;;
    kit) tree=$IMAGE/kit variant=essential ;;
    *) die "$name: the lists are 'tools', 'image' and 'kit'" ;;
esac
stamp=$IMAGE/$name.stamp
kernel=$(sed -n 's/^linux-image-\([^ ]*\) .*/\1/p' "$here/packages/image.lock" 2>/dev/null || true)
key=$({ cat "$wanted" "$lock" "$here/packages.sh" 2>/dev/null; echo "$kernel"; } | sha256sum | cut -d' ' -f1)
[ "$mode" = newest ] && key=newest-$key
if [ "$mode" != lock ]; then
    [ -f "$lock" ] || die "$lock is missing: make image-lock writes it"
    [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && [ -d "$tree" ] && exit 0
fi
need_root
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: make setup installs it"

# Processor microcode and network firmware, in the image alone, are in a component of their own.
components=
[ "$name" != image ] || components=" non-free-firmware"

# The Debian repositories this machine uses, with Debian 13's suites.
sources() {
    # shellcheck disable=SC2016  # apt's own variables
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(SUITE)|$(REPO_URI)|$(CREATED_BY)' |
        awk -F'|' -v more="$components" '$1 == "Debian" && $5 == "Packages" {
            kind = $2 ~ /Security/ ? "-security" : $3 ~ /-updates$/ ? "-updates" : ""
            if ($3 ~ /-(backports|proposed)/ || seen[kind]++) next
            print "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " $4 " trixie" kind " main" more
        }'
}
sources >"$IMAGE/sources.list"
grep -q ' trixie main' "$IMAGE/sources.list" || die "this machine's apt configuration has no Debian repository with component main"

# Pins of the lock file: apt takes these versions even if the mirror has newer ones.
if [ "$mode" = locked ]; then
    awk '{ printf "Package: %s\nPin: version %s\nPin-Priority: 1001\n\n", $1, $2 }' "$lock" >"$IMAGE/pins"
else
    : >"$IMAGE/pins"
fi

# Runs in mmdebstrap at the end of the installation. The kernel is only unpacked: its installation would bring an initrd
# generator, and its trigger would run it. Then: what is there, as lines of a lock file.
cat >"$IMAGE/hook.sh" <<'EOF'
#!/bin/sh
set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
chroot "$1" dpkg-query -W -f '${Package}=${Version}\n' >"$1/installed"
if [ "$2" = image ]; then
    cd "$1/var/cache/apt/archives"
    kernel=$(sed -n 's/^Package: \(linux-image-.*\)/\1/p' "$1/etc/apt/preferences.d/lock")
    [ -n "$kernel" ] || kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p')
    version=$(apt-cache policy "$kernel" | sed -n 's/ *Candidate: //p')
    apt-get -qq download "$kernel"
    dpkg-deb -x "${kernel}_${version}_amd64.deb" "$1"
    echo "$kernel=$version" >>"$1/installed"
fi
xargs apt-cache show <"$1/installed" | awk '
    /^Package: / { package = $2 }
    /^Version: / { version = $2 }
    /^SHA256: / { print package, version, $2 }' | sort -u >"$1/packages.lock"
[ "$(wc -l <"$1/installed")" -eq "$(wc -l <"$1/packages.lock")" ]
rm "$1/installed"
EOF
chmod 755 "$IMAGE/hook.sh"

install_packages() {
    mkdir -p "$IMAGE/cache"
    rm -rf "$tree.new"
    # shellcheck disable=SC2016  # expanded by mmdebstrap's shell
    mmdebstrap --mode=root --variant="$variant" --format=directory --quiet --dpkgopt=force-unsafe-io '--aptopt=APT::Install-Recommends "false"' \
        '--aptopt=Acquire::Languages "none"' --skip=cleanup/apt \
        --setup-hook='mkdir -p "$1"/var/cache/apt/archives "$1"/etc/apt/preferences.d' \
        --setup-hook="upload '$IMAGE/pins' /etc/apt/preferences.d/lock" \
        --setup-hook="sync-in '$IMAGE/cache' /var/cache/apt/archives" \
        --extract-hook="sync-out /var/cache/apt/archives '$IMAGE/cache'" \
        --customize-hook="'$IMAGE/hook.sh' \"\$1\" $name" \
        --customize-hook="sync-out /var/cache/apt/archives '$IMAGE/cache'" \
        --include="$(list "$wanted" | sed "s/KERNEL/$kernel/" | paste -sd,)" trixie "$tree.new" "$IMAGE/sources.list"
    rm -rf "$tree.new/var/cache/apt" "$tree.new/var/lib/apt/lists"
}
timed "packages of $name" install_packages

if [ "$mode" = lock ]; then
    cp "$tree.new/packages.lock" "$lock"
    key=$({ cat "$wanted" "$lock" "$here/packages.sh"; echo "$kernel"; } | sha256sum | cut -d' ' -f1)
elif ! diff "$lock" "$tree.new/packages.lock" >"$IMAGE/$name.diff" && [ "$mode" = newest ]; then
    echo "image: $(grep -c '^>' "$IMAGE/$name.diff") packages of $name differ from $lock: this is no release"
elif [ -s "$IMAGE/$name.diff" ]; then
    head -20 "$IMAGE/$name.diff" >&2
    die "the mirror gives other packages than $lock ('<' locked, '>' found); make image-lock takes the new ones"
fi
rm -rf "$tree"
mv "$tree.new" "$tree"
echo "$key" >"$stamp"
