#!/usr/bin/env python3
"""hx-inspect memory, hx-bench step and hx-bench extrapolate as a user calls them: figures, exit codes, bad input.

usage: test_tools.py BIN_FOLDER"""
import json
import os
import subprocess
import sys
import tempfile

MODEL = "tests/vectors/model"
RECORDED = "tests/vectors/bench/kernels-h200.jsonl"
LABEL = "extrapolated, not run on CMP 170HX"
BIN = ""


def call(program, *arguments, text=None):
    return subprocess.run([os.path.join(BIN, program), *arguments], input=text, capture_output=True, text=True,
                          timeout=240, check=False)


def lines(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def refused(result, code, *words):
    """One line on standard error that says what is wrong; standard output may hold what was found out."""
    assert result.returncode == code, f"status {result.returncode}: {result.stderr}"
    first = result.stderr.splitlines()[0]
    for word in words:
        assert word in first, f"no '{word}' in: {first}"


# ---- hx-inspect memory ----

def test_memory_of_the_released_shape():
    plan = lines(call("hx-inspect", "memory", "--json"))[0]
    assert plan["fits"] and len(plan["ranks"]) == 4
    for rank in plan["ranks"]:
        assert rank["total"] == sum(v for k, v in rank.items() if k != "total")
        assert rank["total"] <= plan["device_bytes"] == 64 << 30
        assert 50.9e9 < rank["experts"] < 51.7e9
    assert plan["kv_tokens"] == 64 * plan["kv_blocks"] > 6e6
    assert plan["ranks"][0]["KV_pool"] == plan["kv_blocks"] * plan["kv_block_bytes"]


def test_memory_pool_that_was_asked_for():
    plan = lines(call("hx-inspect", "memory", "--json", "--kv-tokens", "1000000"))[0]
    assert plan["kv_tokens"] == 1000000
    whole = lines(call("hx-inspect", "memory", "--json"))[0]
    refused(call("hx-inspect", "memory", "--kv-tokens", str(whole["kv_tokens"] + 64)), 69, "its device has 65536")


def test_memory_that_does_not_fit():
    for arguments in (["--experts", "fp4"], ["--layout", "tp2"], ["--card", "40G"]):
        result = call("hx-inspect", "memory", "--json", *arguments)
        refused(result, 69, "does not fit", "rank 0 needs", "weights")
        plan = json.loads(result.stdout)
        assert not plan["fits"] and plan["reason"] in result.stderr
    refused(call("hx-inspect", "memory", "--host", "4G"), 69, "the host needs")
    refused(call("hx-inspect", "memory", "--card", "55.9G"), 69, "fewer than one context of 262144")


def test_memory_of_a_folder():
    whole = lines(call("hx-inspect", "memory", MODEL, "--json", "--layout", "cpu", "--context", "4096"))[0]
    parts = lines(call("hx-inspect", "memory", MODEL, "--json", "--layout", "tp4", "--kv-tokens", "4096"))[0]
    assert sum(r["experts"] for r in parts["ranks"]) == whole["ranks"][0]["experts"]
    assert whole["kv_tokens"] == 8 * 4096


def test_memory_bad_arguments():
    for arguments, word in ((["--card", "x"], "a size such as"), (["--card", "-1"], "a size such as"),
                            (["--card", "1e99T"], "a size such as"), (["--chunk", "0"], "1 to 65536"),
                            (["--sequences", "65"], "1 to 64"), (["--experts", "9"], "fp4 or 1 to 8"),
                            (["--layout", "tp3"], "unknown layout"), (["--layout", "pp4"], "pp4"),
                            ([MODEL, "--experts", "3"], "has its own"), ([MODEL, MODEL], "one model folder")):
        refused(call("hx-inspect", "memory", *arguments), 64, word)
    refused(call("hx-inspect", "memory", "/nowhere/at/all"), 66, "/nowhere/at/all")


# ---- hx-bench step ----

def test_step_of_one_rank():
    rows = lines(call("hx-bench", "step", "--synthetic", "--shape", MODEL, "--rank", "1/4", "--rows", "1,6", "--repeat",
                      "2", "--json"))
    steps = [r for r in rows if r["kind"] == "step"]
    assert [(r["rows"], r["delay"]) for r in steps] == [(n, d) for n in (1, 6) for d in (0, 1, 2)]
    for r in steps:
        # Two sums a layer in bf16 rows of 128, and each rank's best logit with its token.
        assert r["joins"] == 21 and r["rank"] == "1/4" and r["synthetic"]
        assert r["join_bytes"] == r["rows"] * (20 * 128 * 2 + 8)
        want = r["delay"] * (21 * 2 * 2.9 + 1.5 * r["join_bytes"] / 6.5e3)
        assert abs(r["join_us"] - want) < 0.2, (r, want)
        assert r["us"] >= r["join_us"] and r["weight_bytes"] > 0


def test_step_fixed_join():
    rows = lines(call("hx-bench", "step", "--synthetic", "--shape", MODEL, "--rows", "1", "--repeat", "2", "--join",
                      "500", "--no-drafts", "--json"))
    assert [r["join_us"] for r in rows] == [0, 10500, 21000]
    assert rows[2]["us"] - rows[0]["us"] > 10000


def test_step_whole():
    rows = lines(call("hx-bench", "step", "--synthetic", "--shape", MODEL, "--rank", "0/1", "--rows", "2", "--repeat",
                      "1", "--experts", "fp4", "--json"))
    assert [(r["kind"], r["joins"]) for r in rows] == [("step", 0), ("draft", 0)]


def test_layers():
    rows = lines(call("hx-bench", "step", "--synthetic", "--layers", "--shape", MODEL, "--rank", "2/4", "--rows", "1,3",
                      "--repeat", "3", "--json"))
    names = ["owner, ratio 1, candidates", "owner, ratio 2", "window", "window, Engram", "reader, ratio 2",
             "reader, ratio 1", "index in candidates"]
    assert [(r["name"], r["rows"]) for r in rows] == [(name, n) for name in names for n in (1, 3)]
    assert all(r["kind"] == "layer" and r["rank"] == "2/4" and abs(r["us"]) < 1e8 for r in rows)


def test_step_of_unequal_shares():
    """Seven blocks on four ranks: weights of all ranks together are those of the whole and the copies."""
    def weights(rank):
        return lines(call("hx-bench", "step", "--synthetic", "--shape", MODEL, "--rank", rank, "--ff", "896", "--rows",
                          "1", "--repeat", "1", "--no-drafts", "--local", "0", "--json"))[0]["weight_bytes"]
    parts = [weights(f"{r}/4") for r in range(4)]
    assert sum(parts) > weights("0/1") > max(parts)


def test_step_bad_arguments():
    for arguments, word in (([], "--synthetic"), (["--synthetic", "--rank", "4/4"], "--rank is '4/4'"),
                            (["--synthetic", "--rank", "0/3"], "N 1, 2 or 4"),
                            (["--synthetic", "--rank", "0"], "expected R/N"),
                            (["--synthetic", "--rows", "1,,2"], "--rows"),
                            (["--synthetic", "--rows", "49"], "1 to 48"),
                            (["--synthetic", "--experts", "0"], "1 to 8"),
                            (["--synthetic", "--link", "nan"], "--link"),
                            (["--synthetic", "--join", "-1"], "--join"),
                            (["--synthetic", MODEL], "options only")):
        refused(call("hx-bench", "step", *arguments), 64, word)
    refused(call("hx-bench", "step", "--synthetic", "--shape", "/nowhere"), 66, "/nowhere/config.json")
    refused(call("hx-bench", "step", "--synthetic", "--shape", MODEL, "--ff", "48"), 65, "multiple of 32")
    refused(call("hx-bench", "step", "--synthetic", "--shape", MODEL, "--ff", "160"), 65, "inner width of 160")
    refused(call("hx-bench", "step", "--synthetic", "--shape", MODEL, "--local", "1"), 65, "routes from 1 experts")


# ---- hx-bench extrapolate ----

def test_extrapolate_recorded_lines():
    rows = {(r["name"], r["rows"]): r for r in lines(call("hx-bench", "extrapolate", "--json", RECORDED))}
    assert len(rows) == 20 and all(r["label"] == LABEL for r in rows.values())
    # 34.8 experts of 35,389,440 weights, 20.4 a clock on each of 74 multiprocessors.
    r = rows["experts, 3 bits", 6]
    clocks = 34.8 * 35389440 / (20.4 * 74)
    assert abs(r["low_us"] - clocks / 1410) < 0.1 and abs(r["high_us"] - clocks / 1320) < 0.1
    assert r["rule"] == "EXL3, decoding"
    # 0.86 of the read bandwidth, 330,956,800 bytes.
    r = rows["head 1/4", 1]
    assert abs(r["low_us"] - 330956800 / 0.86 / 1.67e6) < 0.1 and abs(r["high_us"] - 330956800 / 0.86 / 1.42e6) < 0.1
    assert r["rule"] == "memory"
    # 6.6 MB: it waits, and waits 1.4 times as long at most.
    r = rows["wq_a", 1]
    assert (r["low_us"], r["high_us"], r["rule"]) == (5.8, 8.1, "latency")
    # Not small, and far from the bandwidth: so it is here.
    r = rows["wo_b", 1]
    assert abs(r["low_us"] - 41984000 / 0.44 / 1.67e6) < 0.1 and r["rule"] == "memory"
    assert all(0 < r["low_us"] < r["high_us"] for r in rows.values())


def test_extrapolate_table_says_what_it_is():
    with open(RECORDED, encoding="utf-8") as f:
        result = call("hx-bench", "extrapolate", "-", text=f.read())
    assert result.returncode == 0
    assert result.stdout.startswith(LABEL) and "reads 4499 GB/s" in result.stdout
    assert "joins are not extrapolated" in result.stdout


def test_extrapolate_bad_input():
    read = '{"op":"read","gb_s":4499}\n'
    good = '{"op":"linear","name":"x","rows":1,"us":5,"bytes":1000,"of_read":0.7}\n'
    cases = ((b"", "no line"), (read, "no line"), (good, "before the line of the card's read bandwidth"),
             (read + "{", "line 2"), (read + "[]\n", "'op'"), (read + '{"op":"read"}\n', "'gb_s' is missing"),
             (read + good.replace("0.7", "0"), "'of_read'"), (read + good.replace("0.7", "-1"), "'of_read'"),
             (read + good.replace('"us":5', '"us":1e999'), "line 2"), (read + good.replace('"x"', '""'), "'name'"),
             (read + good.replace('"x"', '"' + "y" * 200 + '"'), "'name'"),
             (read + '{"op":"experts","rows":1,"us":5,"of_read":0.5,"bits":3}\n', "'distinct'"),
             (read + good + "x" * 70000, "one longer than"), (read + "\n" * 10001 + good, "more than 10000 lines"),
             ("\x00\x01\x02", "line 1"))
    for text, word in cases:
        with tempfile.NamedTemporaryFile("wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
            f.flush()
            refused(call("hx-bench", "extrapolate", f.name), 65, word)
    refused(call("hx-bench", "extrapolate", "/nowhere"), 66, "/nowhere")
    refused(call("hx-bench", "extrapolate"), 64, "one file")
    # Lines of other operations are none of its business.
    assert len(lines(call("hx-bench", "extrapolate", "--json", "-", text=read + '{"op":"new"}\n' + good))) == 1


def main():
    global BIN
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    BIN = sys.argv[1]
    passed = failed = 0
    for name, test in sorted(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
            passed += 1
        except Exception as problem:  # noqa: BLE001, any failure of one test is its result
            failed += 1
            print(f"  {name}: {type(problem).__name__}: {problem}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
