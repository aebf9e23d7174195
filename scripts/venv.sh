#!/bin/sh
# Makes a folder with pinned Python packages, without more arguments those that the server's suite needs; prints its
# python.
# usage: venv.sh [DIR [PACKAGE==VERSION ...]]
set -eu
dir=${1:-build/venv}
pins="openai==1.109.1 pytest==8.4.2 httpx==0.28.1"
if [ $# -gt 1 ]; then
    shift
    pins="$*"
fi
if [ ! -x "$dir/bin/python" ] || [ "$(cat "$dir/pins" 2>/dev/null)" != "$pins" ]; then
    python3 -m venv "$dir" >&2
    # shellcheck disable=SC2086
    "$dir/bin/pip" install -q --disable-pip-version-check $pins >&2
    echo "$pins" > "$dir/pins"
fi
echo "$dir/bin/python"
