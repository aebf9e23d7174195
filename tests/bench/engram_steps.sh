#!/bin/sh
# Stalls of decode steps, 8 sequences of 6 tokens, 2,000 steps each: with the released model's layer time, and with one that leaves a
# virtual disk time for the rows. Where the drive's own figures say that no step has to wait, the median step may not. Exit 1 if one does.
# usage: engram_steps.sh [-f FILE] [-s SIZE] [-n STEPS] HX_BENCH
#   FILE is made with SIZE bytes (8G) if it is missing, and kept if it was there before.
set -eu
file=/var/tmp/hx-bench-engram.table; size=8G; steps=2000
while getopts f:s:n: o; do
    case $o in
        f) file=$OPTARG ;; s) size=$OPTARG ;; n) steps=$OPTARG ;;
        *) echo "usage: engram_steps.sh [-f FILE] [-s SIZE] [-n STEPS] HX_BENCH" >&2; exit 64 ;;
    esac
done
shift $((OPTIND - 1))
bench=${1:?hx-bench is missing}
out=$(mktemp)
made=
trap 'rm -f "$out"; [ -z "$made" ] || rm -f "$file"' EXIT
if [ ! -e "$file" ]; then
    made=yes
    "$bench" engram --make "$size" --file "$file"
fi
# us of a layer, layers of a step
for step in "1370 43" "15000 16"; do
    us=${step% *}
    layers=${step#* }
    # A step with stalls takes longer: a fifth more, and at least a second.
    "$bench" engram --file "$file" --kinds decode --seconds $((steps * layers * us * 6 / 5000000 + 1)) \
        --layer-us "$us" --layers "$layers" --json | grep '"decode"' | tee -a "$out"
done
python3 - "$out" <<'END'
import json, sys
bad = 0
for line in open(sys.argv[1]):
    s = json.loads(line)
    n = s["users"] * s["tokens"] * 24
    allowed = s["expected_a_ms"] == 0 and s["expected_b_ms"] == 0
    waits = s["stall_a_p50_ms"] > 0 or s["stall_b_p50_ms"] > 0
    bad += allowed and waits
    ms = s["alone_us"] / 1e3 + n / s["rows_per_s"] * 1e3
    print(f'{s["steps"]} steps, layers of {s["layer_us"] / 1e3:.2f} ms: {n} rows take {s["alone_us"] / 1e3:.3f} + {n} / '
          f'{s["rows_per_s"]:.0f} per s = {ms:.2f} ms; expected stalls {s["expected_a_ms"]:.2f} and {s["expected_b_ms"]:.2f} ms, '
          f'measured {s["stall_a_p50_ms"]:.3f} and {s["stall_b_p50_ms"]:.3f} (p99 {s["stall_a_p99_ms"]:.3f} and '
          f'{s["stall_b_p99_ms"]:.3f}); {s["steps_without_stall"]} steps did not wait')
sys.exit(1 if bad else 0)
END
