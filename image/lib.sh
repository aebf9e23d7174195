# shellcheck shell=sh
# Common parts of the image scripts; read with ". image/lib.sh". Every script gets the build folder as its first argument.
#
#   build/image/tools    Debian 13's versions of the tools that make the image
#   build/image/base     installed packages of the image, untouched
#   build/image/work     everything made from them
#   build/image/cache    packages as they came from the mirror

set -eu
umask 022
export LC_ALL=C TZ=UTC

die() {
    echo "image: $*" >&2
    exit 1
}

need_root() {
    [ "$(id -u)" -eq 0 ] || die "as root, please: files of the image belong to root and other users"
}

# in_tools COMMAND...: in the tools tree, where the image folder is /image.
in_tools() {
    mkdir -p "$IMAGE/tools/image"
    # shellcheck disable=SC2016  # expanded by the inner shell
    unshare --mount sh -c 'mount --rbind "$0" "$0/tools/image" && exec chroot "$0/tools" "$@"' "$IMAGE" "$@"
}

# timed TITLE COMMAND...: one line with the seconds that it took.
timed() {
    title=$1
    shift
    start=$(date +%s.%N)
    "$@"
    LC_ALL=C printf 'image: %-34s %6.1f s\n' "$title" "$(echo "$(date +%s.%N) - $start" | bc)"
}

# size FILE: bytes, without what a sparse file leaves out of account.
size() {
    stat -c %s "$1"
}

# list FILE: the words of a list, without comments.
list() {
    sed 's/#.*//' "$1" | xargs -n1
}
