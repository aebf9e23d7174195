"""Makes a stick for scenario `driver`: a bundle with source of two stand-in modules, and the build kit.
usage: driver_stick.py STICK KERNEL KIT VERSION"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
for name in ("HX_CARDS", "HX_P2P_CHECK", "HX_NVML_SHIM"):
    os.environ.setdefault(name, "/nonexistent")  # that folder's own tests run programs, this does not
os.chdir(here.parent.parent)
sys.path.insert(0, str(here.parent / "bundles"))
from conftest import Bundle  # noqa: E402


def main():
    stick, kernel, kit, version = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        top = pathlib.Path(folder)
        bundle = Bundle(top / "standin", kernel)
        bundle.manifest["build"]["timeout_s"] = 3600  # in software emulation
        bundle.write()
        need = os.stat(kit).st_size + (32 << 20)
        pathlib.Path(stick).unlink(missing_ok=True)
        with open(stick, "wb") as f:
            f.truncate((need + (1 << 20) - 1) >> 20 << 20)
        subprocess.run(["mkfs.vfat", "-F32", "-n", "OWNER", stick], check=True, stdout=subprocess.DEVNULL)
        for ending in ("", ".manifest", ".manifest.sig"):
            shutil.copy(kit + ending, top / f"hx170-{version}.kit{ending}")
        subprocess.run(["mcopy", "-s", "-i", stick, *map(str, sorted(top.iterdir())), "::/"], check=True)


if __name__ == "__main__":
    main()
