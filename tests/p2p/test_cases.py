"""Every recorded machine state gives exactly its expected verdict, and every one-field change exactly its own."""
import os

import pytest

import machine

EXIT = {"ready": 0, "degraded": 1, "not_ready": 2, "unsupported": 3}
# The checks whose value the recordings note when they fail or warn.
VALUED = ["INV-01", "INV-02", "INV-03", "MEM-01", "ERR-01", "COL-02", "COL-03"]
LISTS = {"fail": "fail", "warn": "warn", "note": "note", "skip": "skip", "passed": "pass"}
CONTROL = "other-gpu-h200x2"  # captured, with its own form of expectations
MUTATIONS = machine.load(os.path.join(machine.VECTORS, "mutations.json"))
BASE = machine.read_case(MUTATIONS["base"])


def by_status(result, status):
    return sorted(c["id"] for c in result["checks"] if c["status"] == status)


@pytest.mark.parametrize("name", [n for n in machine.case_names() if n != CONTROL])
def test_case(name, tmp_path):
    files = machine.read_case(name)
    expected = files["expected.json"]
    result, done = machine.Machine(files, tmp_path).result()
    for key, status in LISTS.items():
        assert by_status(result, status) == sorted(expected[key]), key
    assert result["overall"] == expected["overall"]
    assert done.returncode == EXIT[expected["overall"]]
    assert result["axes"] == expected["axes"]
    assert result["layout"] == expected["layout"]
    assert result["remedies"] == expected["remedies"]
    assert result["hints"] == expected["hints"]
    noted = {c["id"]: c["value"] for c in result["checks"] if c["id"] in VALUED and c["status"] in ("fail", "warn")}
    assert noted == expected["detail"]


def test_control_without_our_cards(tmp_path):
    files = machine.read_case(CONTROL)
    expected = files["expected.json"]
    result, done = machine.Machine(files, tmp_path).result()
    view = expected["evaluator_view"]
    assert {s: by_status(result, s) for s in ("fail", "warn", "note")} == {s: sorted(view[s]) for s in view}
    assert result["overall"] == expected["overall"] and done.returncode == 3
    assert {k: result["layout"][k] for k in expected["layout"]} == expected["layout"]
    assert result["remedies"] == expected["remedies"]
    assert result["cards"] == []


def test_lists_name_every_check_once(tmp_path):
    result, _ = machine.Machine(BASE, tmp_path).result()
    ids = [c["id"] for c in machine.load(os.path.join(machine.VECTORS, "checks.json"))["checks"]]
    assert [c["id"] for c in result["checks"]] == ids


@pytest.fixture(scope="module", name="base")
def base_statuses(tmp_path_factory):
    result, _ = machine.Machine(BASE, tmp_path_factory.mktemp("base")).result()
    return machine.statuses(result)


@pytest.mark.parametrize("mutation", MUTATIONS["mutations"], ids=lambda m: m["name"])
def test_mutation(mutation, base, tmp_path):
    files = machine.apply_mutation(BASE, mutation["ops"])
    result, _ = machine.Machine(files, tmp_path).result()
    now = machine.statuses(result)
    assert {i: s for i, s in now.items() if s != base[i]} == mutation["changes"]
    assert result["overall"] == mutation["overall"]
    assert result["layout"]["recommend"] == mutation["layout"]
