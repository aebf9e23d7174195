"""A machine in a folder, bundles, and hx-cards to run on them."""
import glob
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

# The recorded machines of p2p_check and the stand-in for the management library.
sys.path.insert(0, "tests/p2p")
import machine as hardware  # noqa: E402

HX_CARDS = os.environ["HX_CARDS"]
VECTORS = pathlib.Path("tests/vectors/bundles")
DRIVER = "var/lib/hx170/driver"

# Two modules; the second needs the first. The names are those of the real driver, since the manifest allows no others.
NVIDIA_C = """
#include <linux/module.h>
int hx_standin_value = STANDIN;
EXPORT_SYMBOL_GPL(hx_standin_value);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("stand-in, drives nothing");
MODULE_VERSION("610.43.03");
"""
UVM_C = """
#include <linux/module.h>
extern int hx_standin_value;
static int __init start(void) { return hx_standin_value ? 0 : -EINVAL; }
static void __exit stop(void) { }
module_init(start);
module_exit(stop);
MODULE_LICENSE("GPL");
"""
MAKEFILE = "obj-m := nvidia.o nvidia-uvm.o\nccflags-y := -DSTANDIN=42\n"
BUILD_SH = """#!/bin/sh
set -e
mkdir "$OUT/obj"
cp /bundle/src/* "$OUT/obj/"
make -C "$HEADERS" M="$OUT/obj" modules
mv "$OUT/obj/nvidia.ko" "$OUT/obj/nvidia-uvm.ko" "$OUT/"
echo 610.43.03 >"$OUT/driver_version"
echo wpr-safe-r3 >"$OUT/safety_revision"
"""


def newest_headers():
    found = []
    for path in glob.glob("/usr/src/linux-headers-*"):
        release = os.path.basename(path)[len("linux-headers-"):]
        if os.path.exists(path + "/Module.symvers"):
            found.append(release)
    return max(found, key=lambda r: [int(x) if x.isdigit() else 0 for x in r.replace("-", ".").split(".")],
               default=None)


class Machine:
    """Files of a machine below a folder, and the power button."""

    def __init__(self, top, kernel="6.8.0-136-generic", driver="610.43.03", devices=("20c2",), secure_boot=False):
        self.top = pathlib.Path(top)
        self.boots = 0
        self.clock = 1_800_000_000
        self.put("proc/sys/kernel/osrelease", kernel + "\n")
        self.put("proc/cmdline", "root=/dev/vda quiet\n")
        self.kernel = kernel
        for i, device in enumerate(devices):
            self.card(i + 1, device)
        if driver:
            self.put(f"usr/lib/x86_64-linux-gnu/libcuda.so.{driver}", "")
        flag = b"\x06\0\0\0" + (b"\x01" if secure_boot else b"\0")
        self.put("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", flag)
        self.start(off=None)

    def put(self, path, content):
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def card(self, bus, device):
        base = f"sys/devices/pci0000:00/0000:{bus:02x}:00.0"
        for name, value in (("vendor", "0x10de"), ("device", "0x" + device), ("class", "0x030200"),
                            ("subsystem_vendor", "0x10de"), ("subsystem_device", "0x1585"), ("revision", "0xa1")):
            self.put(f"{base}/{name}", value + "\n")
        link = self.top / f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../devices/pci0000:00/0000:{bus:02x}:00.0")

    def start(self, off):
        """A new start after `off` seconds without power; None: the clock tells nothing."""
        self.boots += 1
        self.clock += 100 + (off or 0)
        self.put("proc/sys/kernel/random/boot_id", f"00000000-0000-0000-0000-{self.boots:012d}\n")
        self.put("proc/stat", f"cpu 0\nbtime {self.clock if off is not None else 0}\n")
        self.clock += 50

    def run(self, *args, cut=None, count=None, timeout=120):
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
        if cut or count:
            env["LD_PRELOAD"] = os.environ["HX_CUT"]
            env["CUT_AT"] = str(cut or 0)
            if count:
                env["CUT_COUNT"] = str(count)
        return subprocess.run([HX_CARDS, *map(str, args), "--root", self.top, "--now", str(self.clock)],
                              capture_output=True, text=True, timeout=timeout, env=env)

    def bundle(self, *args, rc=0, **more):
        done = self.run("bundle", *args, "--json", **more)
        assert done.returncode == rc, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    @property
    def driver(self):
        return self.top / DRIVER

    def tree(self):
        """Every file below the driver folder with its hash."""
        files = {}
        for path in sorted(self.driver.rglob("*")) if self.driver.exists() else []:
            if path.is_file():
                files[str(path.relative_to(self.driver))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return files


def copy_case(name, to):
    shutil.copytree(VECTORS / name, to, ignore=shutil.ignore_patterns("expected.json", "host.json"))
    return to


def entry(path, content, role, mode="0644"):
    return {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "mode": mode,
            "role": role, "licence": "GPL-2.0"}


class Bundle:
    """A source bundle of the stand-in modules; change fields of `manifest` or `files`, then write()."""

    def __init__(self, top, kernel, name="standin", version="1", value=42):
        self.top = pathlib.Path(top)
        self.files = {
            "src/nvidia.c": ("source", "0644", NVIDIA_C),
            "src/nvidia-uvm.c": ("source", "0644", UVM_C),
            "src/Makefile": ("source", "0644", MAKEFILE.replace("42", str(value))),
            "build.sh": ("script", "0755", BUILD_SH),
            "userspace/lib/libcuda.so.610.43.03": ("userspace", "0644", "stand-in"),
            "firmware/gsp_tu10x.bin": ("gpu-firmware", "0644", "stand-in"),
            "LICENSES/GPL-2.0.txt": ("licence-text", "0644", "text"),
        }
        self.manifest = json.loads((VECTORS / "good-source/cmp-bundle.json").read_text())
        self.manifest.update(name=name, version=version)
        self.manifest["targets"]["kernels"] = {"exact": [kernel]}
        self.manifest["build"] = {
            "needs": ["linux-headers", "gcc", "make"], "argv": ["./build.sh"],
            "env": {"KERNEL_RELEASE": "@kernel@", "HEADERS": "@headers@", "OUT": "@out@"},
            "outputs": ["nvidia.ko", "nvidia-uvm.ko", "safety_revision", "driver_version"],
            "timeout_s": 120, "network": False, "min_free_mib": 16}
        self.manifest["install"]["modules"] = {"dir": "updates/owner-bundle", "names": ["nvidia", "nvidia-uvm"],
                                               "metadata": ["driver_version", "safety_revision", "card_profile"]}
        self.manifest["install"]["userspace_root"] = "userspace"
        self.manifest["licences"] = [{"id": "GPL-2.0", "covers": "all", "text_file": "LICENSES/GPL-2.0.txt",
                                      "must_accept": True}]

    def write(self):
        listed = []
        for path, (role, mode, text) in self.files.items():
            content = text if isinstance(text, bytes) else text.encode()
            file = self.top / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            listed.append(entry(path, content, role, mode))
        self.manifest["files"] = listed
        (self.top / "cmp-bundle.json").write_text(json.dumps(self.manifest))
        return self.top


@pytest.fixture(scope="session")
def kernel():
    release = newest_headers()
    if release is None:
        pytest.skip("no kernel headers below /usr/src (package linux-headers-amd64)")
    return release


@pytest.fixture
def machine(tmp_path, kernel):
    return Machine(tmp_path / "machine", kernel=kernel)


@pytest.fixture(scope="session")
def prebuilt(tmp_path_factory, kernel):
    """Modules as the sandbox built them: name to bytes. Built once; later tests install them prebuilt."""
    top = tmp_path_factory.mktemp("prebuilt")
    m = Machine(top / "machine", kernel=kernel)
    bundle = Bundle(top / "bundle", kernel).write()
    m.bundle("install", bundle, "--kit", "/", "--accept", "GPL-2.0")
    folder = m.driver / f"slot-a/lib/modules/{kernel}/updates/owner-bundle"
    return {name: (folder / f"{name}.ko").read_bytes() for name in ("nvidia", "nvidia-uvm")}


def prebuilt_bundle(top, kernel, prebuilt, name="standin", version="1"):
    """A bundle of ready modules: installs in a moment."""
    b = Bundle(top, kernel, name, version)
    del b.manifest["build"]
    b.files = {p: f for p, f in b.files.items() if p.startswith(("userspace", "firmware", "LICENSES"))}
    for module, content in prebuilt.items():
        b.files[f"modules/{kernel}/{module}.ko"] = ("module", "0644", content)
    b.files[f"modules/{kernel}/safety_revision"] = ("other", "0644", "wpr-safe-r3\n")
    b.files[f"modules/{kernel}/driver_version"] = ("other", "0644", "610.43.03\n")
    return b
