#!/usr/bin/env python3
"""Looks at the result of `hx-probe --self-test` on a sound GPU: every field that the judge reads is there and plausible.

usage: check_probe.py FILE
"""
import json
import sys

DEVICE = ("index context sm_count compute_capability l2_kib total_mib fp32_fma_tflops bf16_tflops hbm_read_gbps "
          "mma_cycles h2d_gbps d2h_gbps alias pattern").split()
P2P = ("can_access enable staged_gbps copy store load ipc flags allpairs peer_gbps bidir_gbps latency_us "
       "after_abnormal_exit").split()
SMALL = ["10240", "61440", "491520"]
LARGE = "20971520"


def faults(probe):
    for i, device in enumerate(probe["devices"]):
        missing = [key for key in DEVICE if key not in device]
        if missing:
            yield f"device {i} lacks {missing}"
            continue
        if device["context"] != "ok":
            yield f"device {i}: context {device['context']}"
        for key, low, high in (("fp32_fma_tflops", 1, 200), ("bf16_tflops", 20, 3000), ("hbm_read_gbps", 100, 20000),
                               ("mma_cycles", 5, 300), ("h2d_gbps", 0.1, 500), ("d2h_gbps", 0.1, 500)):
            if not low < device[key] < high:
                yield f"device {i}: {key} is {device[key]}"
        for key in ("alias", "pattern"):
            test = device[key]
            if test["outcome"] != "ok" or test["mismatches"] != 0 or test["coverage"] < 0.95:
                yield f"device {i}: {key} is {test}"
    p2p = probe["p2p"]
    missing = [key for key in P2P if key not in p2p]
    if missing:
        yield f"p2p lacks {missing}"
        return
    n = len(p2p["can_access"])
    for key in ("staged_gbps", "peer_gbps", "bidir_gbps", "latency_us"):
        for i in range(n):
            for j in range(n):
                value = p2p[key][i][j]
                if (value is None) != (i == j) or (i != j and not value > 0):
                    yield f"{key}[{i}][{j}] is {value}"
    for key in ("copy", "store", "load", "ipc"):
        test = p2p[key]
        if test["outcome"] != "ok" or test["pairs"] != n * (n - 1) or test["bad_bytes"] != 0:
            yield f"{key} is {test}"
    if p2p["flags"]["outcome"] != "ok" or p2p["flags"]["turns"] != 1000 or not 0 < p2p["flags"]["us"] < 1000:
        yield f"flags is {p2p['flags']}"
    if p2p["allpairs"]["outcome"] != "ok":
        yield f"allpairs is {p2p['allpairs']}"
    for arm in ("p2p", "host"):
        result = probe["collectives"][arm]
        if result["outcome"] != "ok" or not result["exact"]:
            yield f"arm {arm} is {result}"
        elif not all(0 < result["us"][size] < 1e5 for size in SMALL) or not result["busbw_gbps"][LARGE] > 0:
            yield f"arm {arm} is {result}"
    control = probe["memory_control"]
    if control["injected_alias_words"] != control["detected_words"]:
        yield f"memory_control is {control}"


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        probe = json.load(f)
    found = list(faults(probe)) if probe["devices"] and probe["p2p"] and probe["collectives"] else ["nothing measured"]
    print("\n".join(found), end="\n" if found else "")
    print(json.dumps(probe))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
