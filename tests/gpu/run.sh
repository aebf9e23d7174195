#!/bin/sh
# Runs the GPU tests of the folder it lies in (make gpu-kit): unit tests with planted faults, then the probe itself, then
# memcheck, racecheck and initcheck where compute-sanitizer is installed. Closing line "N passed, N failed, N skipped".
# usage: run.sh [folder for results, default a temporary one]
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$(mktemp -d)}
mkdir -p "$out"
cd "$here" || exit 70
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
pass=0; fail=0; skip=0

# verdict NAME STATUS: one counted line.
verdict() {
    if [ "$2" -eq 0 ]; then
        pass=$((pass + 1)); echo "  $1: passed"
    else
        fail=$((fail + 1)); echo "  $1: FAILED ($2)"
    fi
}

./run-unit.sh ./test_* 2>&1 | tee "$out/unit.log"
last=$(tail -1 "$out/unit.log")
for word in passed failed skipped; do
    n=$(echo "$last" | grep -oE "[0-9]+ $word" | cut -d' ' -f1)
    case $word in
    passed) pass=$((pass + ${n:-0})) ;;
    failed) fail=$((fail + ${n:-1})) ;;
    skipped) skip=$((skip + ${n:-0})) ;;
    esac
done

start=$(date +%s)
./hx-probe --self-test --no-nccl --output "$out/probe.json"
verdict "hx-probe --self-test" $?
echo "  took $(($(date +%s) - start)) s"
python3 check_probe.py "$out/probe.json"
verdict "its result" $?

# Memcheck: the same steps without children, with little memory.
if command -v compute-sanitizer >/dev/null 2>&1; then
    for part in memory peers; do
        compute-sanitizer --tool memcheck --error-exitcode 99 ./test_probe "sanitizer_$part" >"$out/memcheck-$part.log" 2>&1
        rc=$?
        # A tool that did not attach reports nothing; that is no pass.
        grep -q "ERROR SUMMARY: 0 errors" "$out/memcheck-$part.log" || rc=1
        [ $rc -ne 0 ] && tail -40 "$out/memcheck-$part.log"
        verdict "memcheck, $part" $rc
    done
    # Operations whose blocks meet each other or share memory.
    for tool in memcheck racecheck initcheck; do
        for only in test_site test_route 'index, t*'; do
            compute-sanitizer --tool $tool --error-exitcode 99 ./test_ops "$only" >"$out/$tool-ops.log" 2>&1
            rc=$?
            grep -qE "SUMMARY: 0 (errors|hazards)" "$out/$tool-ops.log" || rc=1
            [ $rc -ne 0 ] && tail -40 "$out/$tool-ops.log"
            verdict "$tool, $only" $rc
        done
    done
else
    echo "  compute-sanitizer is not installed: 11 skipped"; skip=$((skip + 11))
fi
echo "$pass passed, $fail failed, $skip skipped"
[ "$fail" -eq 0 ]
