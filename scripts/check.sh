#!/bin/sh
# All tests that need no GPU, one stage after the other; a failed stage does not stop the next ones. Adds up what the
# stages report; closing line "N passed, N failed, N skipped". A stage that fails without a count counts as one failure.
# usage: check.sh BUILD_FOLDER
set -u
if [ $# -ne 1 ]; then
    echo "usage: check.sh BUILD_FOLDER" >&2
    exit 64
fi
build=$1
mkdir -p "$build"
log=$build/check.log
pass=0; fail=0; skip=0

# count WORD: the number before it in the stage's last line that has counts.
count() {
    n=$(grep -E '[0-9]+ (passed|failed|skipped)' "$log" | tail -1 | grep -oE "[0-9]+ $1" | head -1 | cut -d' ' -f1)
    echo "${n:-0}"
}

# stage TITLE COUNTS COMMAND...: COUNTS is yes for a stage that reports counts, no for one that only succeeds or fails.
stage() {
    title=$1; counts=$2; shift 2
    start=$(date +%s)
    echo "== $title"
    { "$@" 2>&1; echo $? >"$build/check.rc"; } | tee "$log"
    rc=$(cat "$build/check.rc")
    p=0; f=0; s=0
    if [ "$counts" = yes ]; then
        p=$(count passed); f=$(count failed); s=$(count skipped)
        [ "$((p + f + s))" -eq 0 ] && f=1
    elif [ "$rc" -eq 0 ]; then
        p=1
    fi
    [ "$rc" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    pass=$((pass + p)); fail=$((fail + f)); skip=$((skip + s))
    echo "== $title: $p passed, $f failed, $s skipped, $(($(date +%s) - start)) s"
}

run_make() {
    make --no-print-directory BUILD="$build" "$@"
}

stage "build" no run_make -j2 all
stage "lint" yes run_make lint
stage "unit tests" yes run_make -j2 test
stage "unit tests, AddressSanitizer and UBSan" yes run_make -j2 SAN=address,undefined test
stage "broken model folders" yes run_make test-hostile
stage "tools" yes run_make test-tools
stage "fuzzing" yes run_make fuzz-smoke
stage "Engram against failing drives" yes run_make test-engram-faults
[ -x tests/server/run.sh ] && stage "server" yes env BUILD="$build" tests/server/run.sh
[ -x tests/fetch/run.sh ] && stage "hx-fetch" yes env BUILD="$build" tests/fetch/run.sh
[ -x tests/p2p/run.sh ] && stage "p2p_check" yes env BUILD="$build" tests/p2p/run.sh
[ -x tests/bundles/run.sh ] && stage "hx-cards" yes env BUILD="$build" tests/bundles/run.sh
[ -x tests/install/run.sh ] && stage "hx-install, hx-update" yes env BUILD="$build" tests/install/run.sh
[ -x tests/units/run.sh ] && stage "units" yes tests/units/run.sh
[ -x tests/setup/run.sh ] && stage "hx-setup" yes env BUILD="$build" tests/setup/run.sh
[ -x tests/demo.sh ] && stage "demo" yes tests/demo.sh "$build"
# The image from nothing and the default scenarios in virtual machines. A mirror that has gone on since the lock files were
# written is no fault of the tree.
image() {
    if [ "$(id -u)" -ne 0 ]; then
        echo "skipped: the image is built as root"
        echo "0 passed, 0 failed, 1 skipped"
        return 0
    fi
    run_make -j2 image || run_make -j2 image PACKAGES=newest || return 1
    run_make image-test
}
[ -x image/packages.sh ] && stage "image" yes image
echo "$pass passed, $fail failed, $skip skipped"
[ "$fail" -eq 0 ]
