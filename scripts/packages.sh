# shellcheck shell=sh
# install_packages TITLE PACKAGE...: those that are missing, as root; read with ". scripts/packages.sh".
install_packages() {
    title=$1
    shift
    missing=
    for p; do
        dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing="$missing $p"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        echo "$title: as root, please: apt-get install$missing" >&2
        exit 77
    fi
    echo "$title: installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
