"""Recorded boxes (H1 to H7 of the test plan): what p2p_check finds, as the wizard and `hx status` say it to the owner."""
import os
import subprocess
import sys

import pytest

from conftest import HERE, VECTORS, Machine

os.environ.setdefault("HX_P2P_CHECK", str(os.path.join(os.environ["HX_BIN"], "p2p_check")))
os.environ.setdefault("HX_NVML_SHIM", os.path.join(os.path.dirname(os.environ["HX_BIN"]), "tests", "libnvml-shim.so"))
sys.path.insert(0, str(HERE.parent / "p2p"))
import machine as recorded  # noqa: E402  (needs the variables above)

# What the box is, the recording, a change of it, the verdict, words that the owner has to read.
CASES = [
    ("H1-good", "good-gen2-x16-mailbox", None, "ready", ["4 cards were found, and everything is in order.", "(TP4)"]),
    ("H2-three-cards", "xid79-three-of-four", None, "not_ready", ["Something has to be fixed before the model can run"]),
    ("H3-bar1-small", "bar1-missing-behind-switch", None, "degraded", ["BAR1", "copying through memory (TP4)"]),
    ("H4-link-x1", "good-gen2-x16-mailbox", "one-card-x1", "degraded", ["x1"]),
    ("H5-acs", "p2p-acs-redirect-x4", None, "degraded", ["ACS"]),
    ("H6-iommu", "p2p-iommu-translated-047", None, "degraded", ["IOMMU", "copying through memory (TP4)"]),
    ("H7-driver-missing", "kernel-changed", None, "not_ready", ["Something has to be fixed before the model can run"]),
    ("H7-no-cards", "no-cards-no-driver", None, "unsupported", ["No CMP 170HX card was found.", "demo model"]),
]


def lay_out(name, mutation, folder):
    files = recorded.read_case(name)
    if mutation:
        table = recorded.load(os.path.join(recorded.VECTORS, "mutations.json"))
        assert table["base"] == name
        files = recorded.apply_mutation(files, next(m for m in table["mutations"] if m["name"] == mutation)["ops"])
    return recorded.Machine(files, folder)


@pytest.mark.parametrize("name,case,mutation,verdict,words", CASES, ids=[c[0] for c in CASES])
def test_what_the_owner_reads(name, case, mutation, verdict, words, tmp_path, screen):
    box = lay_out(case, mutation, tmp_path)
    out = os.path.join(box.root, "var/lib/hx170/check/p2p.json")
    os.makedirs(os.path.dirname(out))
    done = box.check("--output", out, "--quiet")
    assert done.returncode == {"ready": 0, "degraded": 1, "not_ready": 2, "unsupported": 3}[verdict], done.stderr
    m = Machine(tmp_path / "root")
    assert m.run("hx-setup", "--answers", str(VECTORS / "answers.conf")).returncode == 0
    report = m.run("hx-setup", "--plain", "hardware", stdin="q\n")
    assert report.returncode == 75, report.stderr
    for part in words:
        assert part in " ".join(report.stdout.split()), part
    status = m.run("hx", "status")
    cards = [line for line in status.stdout.split("\n") if line.startswith("Cards:")]
    short = {"ready": "ready", "degraded": "could do better", "not_ready": "not ready", "unsupported": "no CMP 170HX"}
    assert len(cards) == 1 and short[verdict] in cards[0]
    assert ("The cards are not ready." in status.stdout) == (verdict == "not_ready")
    screen(f"hardware-{name}", "Step 6" + report.stdout.partition("Step 6")[2] + "\n---- hx status\n" + status.stdout)
