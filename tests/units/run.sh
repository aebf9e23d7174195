#!/bin/sh
# Units of etc/systemd: they parse, name programs that exist, and are confined. Exposure is at most 4.0 by
# systemd-analyze's count, or the reason is in docs/units.md. Closing line "N passed, N failed, N skipped".
# usage: tests/units/run.sh
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pass=0; fail=0; skip=0
limit=40

ok() { pass=$((pass + 1)); }
bad() { echo "FAILED: $*"; fail=$((fail + 1)); }
skipped() { echo "skipped: $*"; skip=$((skip + 1)); }

version=$(systemd-analyze --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9]*\).*/\1/p')
if [ -z "$version" ]; then
    echo "skipped: no systemd-analyze"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

# A root with our units, the system's own ones, and an empty file for every program that is started.
root=$work/root
mkdir -p "$root/usr/lib/systemd/system" "$root/etc/systemd/system" "$root/usr/bin" "$root/usr/libexec/hx170" "$root/usr/sbin"
for folder in /usr/lib/systemd/system /lib/systemd/system; do
    [ -d "$folder" ] && cp -a "$folder/." "$root/usr/lib/systemd/system/" && break
done
cp -r etc/systemd/. "$root/usr/lib/systemd/system/"
ln -s usr/lib "$root/lib"

programs=$(sed -n 's/^Exec[A-Za-z]*=[-+!@:]*\([^ ]*\).*/\1/p' etc/systemd/*.service | sort -u)
for program in $programs; do
    mkdir -p "$root$(dirname "$program")"
    [ -e "$root$program" ] || { : >"$root$program" && chmod 755 "$root$program"; }
    case $program in
        /usr/bin/hx* | /usr/bin/p2p_check)
            name=$(basename "$program")
            if git grep -qF "hx_program,$name," -- '*/module.mk'; then ok
            else bad "$program is started by a unit, and no module.mk makes it"; fi ;;
    esac
done

# Words of newer versions than the host's are no fault: the image has 257.
newer='ImportCredential|RestartSteps|RestartMaxDelaySec'
for unit in etc/systemd/*.service etc/systemd/*.socket etc/systemd/*.timer etc/systemd/*.path etc/systemd/*.target etc/systemd/*.mount; do
    name=$(basename "$unit")
    case $name in *@.service) name="${name%@.service}@tty1.service" ;; esac
    systemd-analyze verify --root="$root" --man=no --generators=no --recursive-errors=no "$name" >"$work/log" 2>&1
    if grep -F "$(basename "$unit")" "$work/log" | grep -vE "Unknown key (name )?'($newer)'" >"$work/faults"; then
        bad "$name: $(head -3 "$work/faults")"
    else
        ok
    fi
done

for unit in etc/systemd/*.service; do
    name=$(basename "$unit")
    score=$(systemd-analyze security --offline=yes --threshold=100 "$unit" 2>/dev/null |
        sed -n 's/.*Overall exposure level for [^:]*: \([0-9]*\)\.\([0-9]\).*/\1\2/p')
    if [ -z "$score" ]; then
        bad "$name: systemd-analyze security gave no score"
    elif [ "${score#0}" -le "$limit" ]; then
        ok
    elif grep -q "^| \`$name\` |" docs/units.md; then
        ok
    else
        bad "$name: exposure ${score%?}.${score#"${score%?}"}, more than 4.0, and no reason in docs/units.md"
    fi
done

# A unit's conditions are not looked at when a service restarts by itself: what ends such a service has to be an
# ExecCondition or an exit status.
for unit in etc/systemd/*.service; do
    if grep -q '^Restart=always' "$unit" && grep -q '^Condition[A-Za-z]*=!' "$unit" && ! grep -q '^ExecCondition=' "$unit"; then
        bad "$(basename "$unit"): Restart=always never looks at its $(grep -m1 '^Condition[A-Za-z]*=!' "$unit") again"
    else
        ok
    fi
done

# Nobody's service may listen to the outside but sshd; the engine's socket is on the loopback address.
if grep -hE '^Listen(Stream|Datagram)=' etc/systemd/*.socket | grep -vE '=(127\.0\.0\.1:|\[::1\]:|/)'; then
    bad "a socket listens on more than the loopback address"
else
    ok
fi
if command -v nft >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
    if unshare --net nft --check --file etc/nftables.conf >"$work/log" 2>&1; then ok; else bad "etc/nftables.conf: $(cat "$work/log")"; fi
else
    skipped "etc/nftables.conf: nft and root are needed"
fi

echo "$pass passed, $fail failed, $skip skipped"
[ "$fail" -eq 0 ]
