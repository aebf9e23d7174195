#!/bin/sh
# hx-bench engram beside fio: the same file, block size, depth and direct reads, by turns within the same minutes,
# and a bare io_uring loop (kind bare) that shows what the kernel takes. Prints the medians and whether they meet the bounds (rows/s at least 0.95 of fio's reads/s, p99 at most 1.2 of
# fio's, both at depth 64; CPU below 1.5 core-seconds a million rows, where the kernel alone takes less). Exit 1 if not.
# usage: engram_fio.sh [-f FILE] [-s SIZE] [-t SECONDS] [-n REPEATS] [-d DEPTH] [-b 4096|512] HX_BENCH
#   FILE is made with SIZE bytes (16G) if it is missing, and kept if it was there before.
set -eu
file=/var/tmp/hx-bench-engram.table; size=16G; seconds=10; repeats=5; depth=64; block=4096
while getopts f:s:t:n:d:b: o; do
    case $o in
        f) file=$OPTARG ;; s) size=$OPTARG ;; t) seconds=$OPTARG ;; n) repeats=$OPTARG ;; d) depth=$OPTARG ;; b) block=$OPTARG ;;
        *) echo "usage: engram_fio.sh [-f FILE] [-s SIZE] [-t SECONDS] [-n REPEATS] [-d DEPTH] [-b 4096|512] HX_BENCH" >&2; exit 64 ;;
    esac
done
shift $((OPTIND - 1))
bench=${1:?hx-bench is missing}
command -v fio >/dev/null || { echo "engram_fio: fio is not installed (make setup)" >&2; exit 69; }
work=$(mktemp -d)
made=
trap 'rm -rf "$work"; [ -z "$made" ] || rm -f "$file"' EXIT
if [ ! -e "$file" ]; then
    made=yes
    "$bench" engram --make "$size" --file "$file"
fi
i=0
while [ "$i" -lt "$repeats" ]; do
    fio --name=rows --filename="$file" --readonly --rw=randread --bs="$block" --direct=1 --ioengine=io_uring \
        --registerfiles --fixedbufs --iodepth="$depth" --numjobs=1 --norandommap --randrepeat=0 \
        --ramp_time=$(((seconds + 9) / 10)) --runtime="$seconds" --time_based --output-format=json >"$work/fio.$i"
    "$bench" engram --file "$file" --kinds rows,bare --depths "$depth" --seconds "$seconds" --align "$block" --json \
        >"$work/hx.$i"
    i=$((i + 1))
done
lsblk -dno NAME,MODEL,SIZE 2>/dev/null | head -4 || true
uname -sr
python3 - "$work" "$repeats" "$depth" "$block" <<'END'
import json, statistics, sys
work, repeats, depth, block = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
fio, hx, bare = [], [], []
for i in range(repeats):
    text = open(f"{work}/fio.{i}").read()
    job = json.loads(text[text.index("{"):])["jobs"][0]
    read = job["read"]
    seconds = read["runtime"] / 1000
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / (read["total_ios"] / 1e6)
    fio.append((read["iops"], read["clat_ns"]["percentile"]["50.000000"] / 1e3,
                read["clat_ns"]["percentile"]["99.000000"] / 1e3, cpu, cpu * job["usr_cpu"] / (job["usr_cpu"] + job["sys_cpu"])))
    for line in open(f"{work}/hx.{i}"):
        row = json.loads(line)
        if row["kind"] in ("rows", "bare"):
            (hx if row["kind"] == "rows" else bare).append(
                (row["rows_per_s"], row["p50_us"], row["p99_us"], row["core_s_per_mrow"], row["user_core_s_per_mrow"]))
for name, runs in (("fio", fio), ("bare loop", bare), ("hx-bench", hx)):
    for r in runs:
        print(f"{name:9} {r[0]:10.0f} /s  p50 {r[1]:8.1f} us  p99 {r[2]:8.1f} us  {r[3]:6.3f} core-s/M"
              f" of which user space {r[4]:.3f}")
f = [statistics.median(c) for c in zip(*fio)]
h = [statistics.median(c) for c in zip(*hx)]
b = [statistics.median(c) for c in zip(*bare)]
kernel = b[3] - b[4]
ratio, late = h[0] / f[0], h[2] / f[2]
print(f"median of {repeats}, depth {depth}, {block} bytes, direct:")
for name, m in (("fio", f), ("bare loop", b), ("hx-bench", h)):
    print(f"{name:9} {m[0]:10.0f} /s  p50 {m[1]:8.1f} us  p99 {m[2]:8.1f} us  {m[3]:6.2f} core-s/M"
          f" = {m[4]:.2f} user + {m[3] - m[4]:.2f} kernel")
print(f"rows/s {ratio:.3f} of fio (at least 0.95), p99 {late:.3f} of fio's (at most 1.2)")
print(f"CPU {h[3]:.2f} core-s/M, of which user space {h[4]:.2f} (below 1.5); the kernel takes {kernel:.2f} of the bare loop")
sys.exit(0 if ratio >= 0.95 and late <= 1.2 and h[3] < 1.5 else 1)
END
