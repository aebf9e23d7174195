#!/usr/bin/python3
"""Stands in for hx-probe: what it does comes from plan.json beside it (how: ok, hang, crash, partial, none, garbage,
unavailable). It writes its command line into argv.json."""
import json
import os
import signal
import sys
import time

here = os.path.dirname(os.path.abspath(sys.argv[0]))
with open(os.path.join(here, "plan.json"), encoding="utf-8") as f:
    plan = json.load(f)
with open(os.path.join(here, "argv.json"), "w", encoding="utf-8") as f:
    json.dump(sys.argv[1:], f)
output = sys.argv[sys.argv.index("--output") + 1]
quiet = "--quiet" in sys.argv


def write(text):
    with open(output + ".new", "w", encoding="utf-8") as out:
        out.write(text)
    os.rename(output + ".new", output)


if not quiet:
    print("hx-probe: alias test: 3 s, 40 %", file=sys.stderr, flush=True)
how = plan["how"]
if how == "unavailable":
    print("hx-probe: CUDA finds no card", file=sys.stderr)
    sys.exit(69)
if how == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if how == "garbage":
    write('{"schema": 1, "devices": [{"sm_count": "many"}]}')
    sys.exit(0)
if how in ("ok", "partial", "hang"):
    write(json.dumps(plan["result"]))
time.sleep(plan.get("seconds", 0.3))
if how == "hang":
    time.sleep(600)
if how == "partial":
    print("hx-probe: flags between cards: no end within 45 s", file=sys.stderr)
    sys.exit(75)
