#!/bin/sh
# Runs unit test programs one after the other and adds up their cmocka verdicts.
# Closing line: "N passed, N failed, N skipped". Exit 1 if anything failed or nothing ran.
set -u
pass=0; fail=0; skip=0
out=$(mktemp); trap 'rm -f "$out"' EXIT
for t in "$@"; do
    start=$(date +%s.%N)
    CMOCKA_MESSAGE_OUTPUT=TAP "$t" >"$out" 2>&1; rc=$?
    # cmocka 1.1 writes a skipped test as "not ok N # SKIP name".
    s=$(grep -c '^\(not \)\{0,1\}ok .*# SKIP' "$out")
    p=$(grep '^ok ' "$out" | grep -vc '# SKIP'); f=$(grep '^not ok ' "$out" | grep -vc '# SKIP')
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    if [ "$p" -eq 0 ] && [ "$s" -eq 0 ] && [ "$f" -eq 0 ]; then echo "  no test ran in $t"; f=1; fi
    printf '  %-52s %4d passed %s %ss\n' "${t##*/tests/}" "$p" \
        "$([ "$f" -gt 0 ] && echo "$f FAILED" || echo "")" \
        "$(echo "$(date +%s.%N) - $start" | bc 2>/dev/null | cut -c1-5)"
    [ "$f" -gt 0 ] && sed 's/^/    | /' "$out"
    grep '# SKIP' "$out" | sed 's/^/    skipped: /'
    pass=$((pass + p)); fail=$((fail + f)); skip=$((skip + s))
done
echo "$pass passed, $fail failed, $skip skipped"
[ "$fail" -eq 0 ] && [ $((pass + skip)) -gt 0 ]
