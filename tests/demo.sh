#!/bin/sh
# The demo must answer with text and leave no server behind. Closing line "N passed, N failed, 0 skipped".
# usage: demo.sh BUILD_FOLDER
set -u
build=${1:?usage: demo.sh BUILD_FOLDER}
pass=0; fail=0
check() {
    if [ "$2" -eq 0 ]; then echo "  $1"; pass=$((pass + 1)); else echo "  $1: FAILED"; fail=$((fail + 1)); fi
}
make --no-print-directory BUILD="$build" demo >"$build/demo.out" 2>&1
check "make demo succeeds" $?
grep -Eq '[1-9][0-9]* pieces of text, finish_reason (stop|length)' "$build/demo.out"
check "text streams in and ends with a reason" $?
url=$(grep -oE 'http://127\.0\.0\.1:[0-9]+' "$build/demo.out" | head -1)
[ -n "$url" ] && ! curl -fs --max-time 2 "$url/health" >/dev/null
check "the server is gone" $?
[ "$fail" -eq 0 ] || sed 's/^/    | /' "$build/demo.out"
echo "$pass passed, $fail failed, 0 skipped"
[ "$fail" -eq 0 ]
