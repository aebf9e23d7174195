#!/bin/sh
# Installs what the tests in virtual machines need beyond scripts/setup.sh. Does nothing when all is there.
set -eu
missing=
for p in qemu-system-x86 ovmf openssh-client curl e2fsprogs python3-venv zstd; do
    dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "image-test: as root, please: apt-get install$missing" >&2
    exit 77
fi
echo "image-test: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null
