#!/bin/sh
# Installs what the tests in virtual machines need beyond scripts/setup.sh. Does nothing when all is there.
set -eu
# shellcheck source=scripts/packages.sh
. "$(dirname "$0")/../../scripts/packages.sh"
install_packages image-test qemu-system-x86 ovmf openssh-client curl e2fsprogs python3-venv zstd
