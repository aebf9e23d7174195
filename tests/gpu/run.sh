#!/bin/sh
# Runs the GPU tests of the folder it lies in (make gpu-kit): unit tests with planted faults, then the probe itself.
# With "sanitize" instead: memcheck, racecheck and initcheck of compute-sanitizer over every kernel, on small shapes,
# some at a time. Closing line "N passed, N failed, N skipped".
# usage: run.sh [sanitize] [folder for results, default a temporary one]
set -u
here=$(cd "$(dirname "$0")" && pwd)
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

# What is checked: program, pattern of its tests' names, and a back end if it is not the fast one. Recorded steps of the
# tiny model (a tool lets a replay return only at its end, so not those whose Engram rows come meanwhile); the operations
# by themselves; products and experts of all formats, widths that differ or are none; the probe.
checks() {
    cat <<'END'
backend|recorded
backend|recorded_exl3
backend|pass_model_cuda_97
backend|pass_model_exl3_cuda_97
ops|test_rows
ops|test_site
ops|test_route
ops|linear, FP8 ?? x *
ops|linear, FP8 160 x 96
ops|linear, BF16 33 x 77
ops|linear, BF16 128 x 512
ops|linear, F32*
ops|linear, FP4*
ops|index, t*
ops|index, wide scales
ops|index, few keys
ops|index, one*
ops|index, t*|cuda-exact
ops|test_route|cuda-exact
ops|linear, FP8 ?? x *|cuda-exact
attend|test_*
attend|attend, first token
attend|attend, tiny*
attend|attend, 17*
attend|attend, one*
attend|attend, denormals
attend|attend, odd*
attend|attend, drafts
attend|attend, a start*
attend|attend, released, six*
attend|attend, tiny*|cuda-exact
gemv|least*
gemv|half a stage
experts|tiny
experts|unequal, tiny
experts|FP4, tiny
parts|test_streams
parts|test_coefficients
parts|test_coefficients|cuda-exact
parts|test_keep_rows
parts|test_linear_*
parts|test_engram*
parts|test_markov
parts|test_best
parts|test_confidence
parts|test_nan
parts|experts, EXL3 3 bits
parts|experts, EXL3 2*
parts|experts, EXL3 padded*
parts|experts, EXL3 some*
parts|experts, EXL3 3inst
parts|experts, FP4
parts|experts, FP4 ?*
parts|experts, FP8
probe|sanitizer_memory
probe|sanitizer_peers
END
}

# One check, in a process of its own: a line, and what the tool found. A tool that did not attach reports nothing, and
# a pattern without a test checks nothing; neither is a pass.
if [ "${1:-}" = check ]; then # folder, tool, line of checks
    log=$2/$(echo "$3-$4" | tr -c 'A-Za-z0-9\n' _).log
    old_ifs=$IFS; IFS='|'; set -f # patterns stay patterns
    # shellcheck disable=SC2086
    set -- "$log" "$3" $4
    set +f; IFS=$old_ifs; tool=$2; program=$3; shift 3
    timeout "${LIMIT:-300}" compute-sanitizer --tool "$tool" --error-exitcode 99 "./test_$program" "$@" >"$log" 2>&1
    rc=$?
    grep -qE "SUMMARY: 0 (errors|hazards)" "$log" || rc=98
    grep -q "\[       OK \]" "$log" || rc=97
    [ $rc -ne 0 ] && tail -40 "$log" | sed 's/^/    | /'
    echo "$rc $tool, $program, $*"
    exit 0
fi

if [ "${1:-}" = sanitize ]; then
    out=${2:-$(mktemp -d)}
    mkdir -p "$out"
    if ! command -v compute-sanitizer >/dev/null 2>&1; then
        echo "compute-sanitizer is not installed"
        exit 69
    fi
    for tool in memcheck racecheck initcheck; do
        checks | while IFS= read -r line; do
            # The probe's memory and peers: out of bounds alone.
            [ "${line%%|*}" = probe ] && [ $tool != memcheck ] && continue
            printf '%s\0%s\0' "$tool" "$line"
        done
    done | xargs -0 -n 2 -P "${JOBS:-8}" ./run.sh check "$out" >"$out/sanitize.log" 2>&1
    grep "^    |" "$out/sanitize.log"
    while read -r rc name; do
        verdict "$name" "$rc"
    done <<END
$(grep -E "^[0-9]+ " "$out/sanitize.log" | sort -k2)
END
    echo "$pass passed, $fail failed, $skip skipped"
    [ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]
    exit
fi

out=${1:-$(mktemp -d)}
mkdir -p "$out"
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
echo "$pass passed, $fail failed, $skip skipped"
[ "$fail" -eq 0 ]
