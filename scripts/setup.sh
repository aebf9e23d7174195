#!/bin/sh
# Installs what building and testing need on Debian 12 or 13. Does nothing when all is there.
# Reasons for each package: docs/dependencies.md.
set -eu
# shellcheck source=scripts/packages.sh
. "$(dirname "$0")/packages.sh"

packages="gcc g++ make binutils libmicrohttpd-dev libsystemd-dev libinih-dev libssl-dev libcmocka-dev libnewt-dev
    libcurl4-openssl-dev xz-utils curl ca-certificates git bc python3 python3-venv
    clang clang-format clang-tidy cppcheck shellcheck scdoc
    liburing-dev libfuse3-dev fuse3 fio dosfstools e2fsprogs openssl linux-headers-amd64 kmod zlib1g-dev liblzma-dev
    mmdebstrap debian-archive-keyring mtools fdisk cryptsetup-bin nftables systemd"
# Sanitizer and fuzzer runtimes come with clang's own version.
case "$(. /etc/os-release 2>/dev/null; echo "${ID:-} ${VERSION_ID:-}")" in
    "debian 12") packages="$packages libclang-rt-14-dev" ;;
    "debian 13") packages="$packages libclang-rt-19-dev" ;;
    *)
        echo "setup: this script knows Debian 12 and 13. Install these or their like by hand:" >&2
        echo "$packages" | tr -s ' \n' ' ' >&2
        exit 69 ;;
esac

# shellcheck disable=SC2086
install_packages setup $packages
