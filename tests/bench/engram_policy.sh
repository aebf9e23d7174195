#!/bin/sh
# Corpora from what Debian installs, for bench_engram_policy: manual pages, HTML documentation, Python sources, a mix of
# all three as several users would ask. Files are taken in name order, up to a size.
# usage: engram_policy.sh BENCH_ENGRAM_POLICY TOKENIZER MAP FOLDER
set -eu
[ $# -eq 4 ] || { echo "usage: engram_policy.sh BENCH_ENGRAM_POLICY TOKENIZER MAP FOLDER" >&2; exit 64; }
program=$1; tokenizer=$2; map=$3; out=$4
most=12000000
mkdir -p "$out"
# corpus NAME: files from standard input, one after the other.
corpus() {
    while read -r f; do
        case $f in
            *.gz) zcat "$f" ;;
            *) cat "$f" ;;
        esac
    done 2>/dev/null | head -c "$most" >"$out/$1"
}
find /usr/share/man/man[1-8] -name '*.gz' | sort | awk 'NR % 2' | corpus manuals
find /usr/share/doc /root/.rustup -name '*.html' 2>/dev/null | sort | awk 'NR % 5 == 0' | while read -r f; do
    sed -e 's/<[^>]*>//g' "$f"
done 2>/dev/null | head -c "$most" >"$out/documentation" || true
find /usr/lib/python3* -name '*.py' | sort | corpus python
# Chunks of about 2048 tokens by turns.
python3 - "$out" <<'END'
import os, sys
out = sys.argv[1]
parts = [open(os.path.join(out, n), "rb").read() for n in ("manuals", "documentation", "python")]
step = 8000
with open(os.path.join(out, "mixed"), "wb") as f:
    for at in range(0, min(map(len, parts)), step):
        for p in parts:
            f.write(p[at:at + step])
END
"$program" "$tokenizer" "$map" "$out/manuals" "$out/documentation" "$out/python" "$out/mixed"
