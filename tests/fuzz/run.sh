#!/bin/sh
# Runs fuzz targets: first the whole corpus, then new inputs for the given time.
# usage: run.sh [--total] BUILD/fuzz SECONDS TARGET...
#   --total   SECONDS are for all targets together
# New inputs are kept in BUILD/fuzz/corpus, crashing ones in BUILD/fuzz/crash. Closing line:
# "N passed, N failed, 0 skipped" (targets); exit 1 if any failed or none ran.
set -u
total=0
if [ "${1:-}" = --total ]; then total=1; shift; fi
if [ $# -lt 3 ]; then
    echo "usage: run.sh [--total] BUILD/fuzz SECONDS TARGET..." >&2
    exit 64
fi
dir=$1; seconds=$2; shift 2
case $seconds in '' | *[!0-9]* | 0)
    echo "run.sh: seconds: found '$seconds', expected a whole number above 0" >&2
    exit 64 ;;
esac
[ "$total" -eq 1 ] && seconds=$((seconds / $#))
[ "$seconds" -lt 1 ] && seconds=1
export ASAN_OPTIONS=abort_on_error=0:detect_leaks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
pass=0; fail=0
for t in "$@"; do
    seeds=tests/fuzz/corpus/$t; grown=$dir/corpus/$t; log=$dir/$t.log
    mkdir -p "$grown" "$dir/crash"
    n_seeds=0
    if [ -d "$seeds" ]; then n_seeds=$(find "$seeds" -type f | wc -l); else seeds=; fi
    # $seeds is empty or one word.
    # shellcheck disable=SC2086
    if timeout $((seconds + 120)) "$dir/bin/fuzz_$t" -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 -artifact_prefix="$dir/crash/$t-" \
        "$grown" $seeds >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        printf '  %-20s %4d seeds, %9s inputs in %s s\n' "$t" "$n_seeds" "${runs:-?}" "$seconds"
        pass=$((pass + 1))
    else
        printf '  %-20s FAILED, input and log in %s\n' "$t" "$dir"
        grep -E 'ERROR|runtime error|SUMMARY|Test unit written' "$log" | head -5 | sed 's/^/    | /'
        fail=$((fail + 1))
    fi
done
echo "$pass passed, $fail failed, 0 skipped"
[ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]
