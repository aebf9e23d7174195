"""Install in the sandbox, slots, arming, starts, roll-back."""
import subprocess

from conftest import Bundle, Machine, prebuilt_bundle

ACCEPT = ("--kit", "/", "--accept", "GPL-2.0")


def test_source_bundle_is_built_installed_and_armed(machine, kernel, tmp_path):
    bundle = Bundle(tmp_path / "bundle", kernel).write()
    status = machine.bundle("install", bundle, *ACCEPT)
    assert (status["state"], status["candidate"], status["active"], status["next_start"]) == ("armed", "a", None, "a")
    assert status["power_off_wanted"] is True
    slot = machine.driver / "slot-a"
    folder = slot / f"lib/modules/{kernel}/updates/owner-bundle"
    assert sorted(p.name for p in folder.iterdir()) == ["driver_version", "nvidia-uvm.ko", "nvidia.ko",
                                                        "safety_revision"]
    for name in ("nvidia", "nvidia-uvm"):
        info = subprocess.run(["modinfo", folder / f"{name}.ko"], capture_output=True, text=True, check=True)
        assert f"vermagic:       {kernel} " in info.stdout
    # The same answer as depmod over the same tree.
    ours = (slot / f"lib/modules/{kernel}/modules.dep").read_text()
    assert "updates/owner-bundle/nvidia-uvm.ko: updates/owner-bundle/nvidia.ko\n" in ours
    theirs = subprocess.run(["depmod", "-n", "-b", slot, kernel], capture_output=True, text=True)
    lines = [line for line in theirs.stdout.splitlines() if line.startswith("updates/") and ".ko:" in line]
    assert sorted(lines) == sorted(ours.splitlines())
    assert (slot / "userspace/lib/libcuda.so.610.43.03").read_text() == "stand-in"
    assert (slot / "firmware/nvidia/610.43.03/gsp_tu10x.bin").read_text() == "stand-in"
    assert not (machine.driver / "scratch").exists()
