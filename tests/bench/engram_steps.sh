#!/bin/sh
# Stalls of simulated steps beside what the drive's own figures allow, which are measured just before each load:
#   model    decode, 8 sequences of 6 tokens, the released model's layer time (2,000 steps: two minutes)
#   wide     decode, layers of 25 ms, that leave a virtual disk time for the rows (fourteen minutes)
#   prefill  chunks of 2,048 tokens of 848 ms each, a minute of them (limit: the next chunk's rows while one computes)
# Where the figures say that nothing has to wait, the median step may not, and of the chunks none. Exit 1 if one does.
# usage: engram_steps.sh [-f FILE] [-s SIZE] [-l "LOAD ..."] [-n STEPS] [-p PARTS] [-o RESULTS] HX_BENCH
#   FILE is made with SIZE bytes (8G) if it is missing, and kept if it was there before. PARTS (1): the steps of a load are
#   measured in so many parts, each with the drive's figures before it. RESULTS keeps the parts and is added to, so
#   that a load can be measured in several calls, at quiet moments; all of it is judged.
set -eu
file=/var/tmp/hx-bench-engram.table; size=8G; steps=2000; loads="model wide prefill"; parts=1; results=
while getopts f:s:n:l:p:o: o; do
    case $o in
        f) file=$OPTARG ;; s) size=$OPTARG ;; n) steps=$OPTARG ;; l) loads=$OPTARG ;; p) parts=$OPTARG ;; o) results=$OPTARG ;;
        *) echo "usage: engram_steps.sh [-f FILE] [-s SIZE] [-l \"LOAD ...\"] [-n STEPS] [-p PARTS] [-o RESULTS] HX_BENCH" >&2
           exit 64 ;;
    esac
done
shift $((OPTIND - 1))
bench=${1:?hx-bench is missing}
out=${results:-$(mktemp)}
made=
trap '[ -n "$results" ] || rm -f "$out"; [ -z "$made" ] || rm -f "$file"' EXIT
if [ ! -e "$file" ]; then
    made=yes
    "$bench" engram --make "$size" --file "$file"
fi

# us of a layer, layers of a step
decode() {
    i=0
    while [ "$i" -lt "$parts" ]; do
        # A step with stalls takes longer: a tenth more, and at least two seconds.
        "$bench" engram --file "$file" --kinds decode --layer-us "$1" --layers "$2" --json \
            --seconds $((steps * $2 * $1 * 11 / parts / 10000000 + 2)) | grep '"decode"' >>"$out"
        i=$((i + 1))
    done
}

for load in $loads; do
    case $load in
        model) decode 1370 43 ;;
        wide) decode 25000 16 ;;
        prefill)
            # The drive's figures of the same minute: the queue as full as the streamer keeps it.
            "$bench" engram --file "$file" --kinds rows --depths 512 --seconds 2 --json | grep '"rows"' >>"$out"
            "$bench" engram --file "$file" --kinds prefill --seconds 60 --json | grep '"prefill"' >>"$out"
            ;;
        *) echo "engram_steps: $load: there are model, wide and prefill" >&2; exit 64 ;;
    esac
done
python3 - "$out" <<'END'
import json, sys
bad, rate, total = 0, 0, {}
for line in open(sys.argv[1]):
    s = json.loads(line)
    if s["kind"] == "rows":
        rate = s["rows_per_s"]
    elif s["kind"] == "prefill":
        ms = s["rows"] / rate * 1e3
        allowed = ms < s["chunk_ms"]
        bad += allowed and s["late"] > 0
        print(f'{s["chunks"]} chunks of {s["chunk_ms"]} ms: {s["rows"]} rows / {rate:.0f} per s = {ms:.0f} ms, '
              f'{"fits" if allowed else "does not fit"}; complete after {s["read_p50_ms"]:.0f} ms (p99 {s["read_p99_ms"]:.0f}); '
              f'{s["late"]} chunks waited, at most {s["worst_stall_ms"]:.1f} ms')
    else:
        n = s["users"] * s["tokens"] * 24
        allowed = s["expected_a_ms"] == 0 and s["expected_b_ms"] == 0
        waits = s["stall_a_p50_ms"] > 0 or s["stall_b_p50_ms"] > 0
        bad += allowed and waits
        ms = (s["alone_us"] + s["tail_us"]) / 1e3 + n / s["rows_per_s"] * 1e3
        print(f'{s["steps"]} steps, layers of {s["layer_us"] / 1e3:.2f} ms: {n} rows take {s["alone_us"] / 1e3:.3f} + {n} / '
              f'{s["rows_per_s"]:.0f} per s + {s["tail_us"] / 1e3:.3f} = {ms:.2f} ms; expected stalls {s["expected_a_ms"]:.2f} and {s["expected_b_ms"]:.2f} ms, '
              f'measured {s["stall_a_p50_ms"]:.3f} and {s["stall_b_p50_ms"]:.3f} (p99 {s["stall_a_p99_ms"]:.3f} and '
              f'{s["stall_b_p99_ms"]:.3f}); {s["steps_without_stall"]} steps did not wait')
        all_steps = total.setdefault(s["layer_us"], [0, 0])
        all_steps[0] += s["steps"]
        all_steps[1] += s["steps_without_stall"]
for us, (n, free) in total.items():
    print(f"layers of {us / 1e3:.2f} ms: {n} steps in all, {free} did not wait")
sys.exit(1 if bad else 0)
END
