"""The recorded bundles through the program: each gives its recorded verdict word for word, and nothing changes."""
import json

import pytest

from conftest import VECTORS, Machine, copy_case

CASES = sorted(p.parent.name for p in VECTORS.glob("*/expected.json"))


def machine_of(host, top):
    m = Machine(top / "machine", kernel=host["kernel"], driver=host["userspace_driver"], devices=host["device_ids"],
                secure_boot=host["secure_boot"])
    for tool in host["tools"]:
        m.put(f"usr/bin/{tool}", "")
    if host["headers_present"]:
        m.put(f"usr/src/linux-headers-{host['kernel']}/Makefile", "")
        m.put(f"usr/src/linux-headers-{host['kernel']}/Module.symvers", "")
    return m


@pytest.mark.parametrize("name", CASES)
def test_recorded_verdict(name, tmp_path):
    host = json.loads((VECTORS / name / "host.json").read_text())
    expected = json.loads((VECTORS / name / "expected.json").read_text())
    m = machine_of(host, tmp_path)
    bundle = copy_case(name, tmp_path / "bundle")
    accept = [word for licence in host["accepted"] for word in ("--accept", licence)]
    rc = 0 if expected["accept"] else 2
    assert m.bundle("verify", bundle, *accept, rc=rc) == expected
    if not expected["accept"]:
        assert m.bundle("install", bundle, *accept, rc=2) == expected
        text = m.run("bundle", "install", bundle, *accept)
        assert text.returncode == 2
        assert expected["first_error"] in text.stdout and expected["why"] in text.stdout
    assert not m.driver.exists()


def test_all_cases_are_there():
    assert len(CASES) == 17
