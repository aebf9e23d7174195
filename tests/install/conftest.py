"""A machine in a folder: the stick that the system runs from, disks as sparse files, update bundles."""
import hashlib
import os
import random
import subprocess

import pytest

HX_INSTALL = os.environ["HX_INSTALL"]
HX_UPDATE = os.environ["HX_UPDATE"]
MIB = 1 << 20
GIB = 1 << 30
TYPES = {"esp": "C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "root": "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",
         "verity": "2C7357ED-EBD2-46D9-AEC1-23D437EC2BF5"}


def guid(hexadecimal):
    h = hexadecimal
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:32]}"


def noise(n, seed):
    return random.Random(seed).randbytes(n)


def tool(*argv, **more):
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == 0, (argv, done.stdout, done.stderr)
    return done.stdout


def make_tree(data, folder):
    """The hash tree of a file, by veritysetup. Returns the path and the root hash."""
    tree = folder / (data.name + ".verity")
    out = tool("/usr/sbin/veritysetup", "format", data, tree)
    return tree, next(line.split()[-1] for line in out.splitlines() if line.startswith("Root hash"))


class Machine:
    def __init__(self, folder):
        self.folder = folder
        self.work = folder / "work"
        self.root = folder / "root"
        self.esp = self.root / "efi"
        self.work.mkdir()
        self.numbers = {}

    def put(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            target.write_bytes(text)
        else:
            target.write_text(text)
        return target

    def add_disk(self, name, number, serial, size, sector=512, model="Test disk"):
        block = f"sys/block/{name}"
        for file, text in {"device/model": model, "device/serial": serial, "ro": "0", "removable": "0", "dev": number,
                           "size": str(size // 512), "queue/logical_block_size": str(sector)}.items():
            self.put(f"{block}/{file}", text + "\n")
        link = self.root / "sys/dev/block" / number
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../block/{name}")
        device = self.put(f"dev/{name}", b"")
        os.truncate(device, size)
        self.numbers[name] = number
        return device

    def make_stick(self, version="1.2", seed=1):
        data = self.work / "root.erofs"
        data.write_bytes(noise(3 * MIB, seed))
        tree, self.hash = make_tree(data, self.work)
        stick = self.add_disk("sda", "8:0", "STICK-0001", 64 * MIB)
        rows = [("ESP", TYPES["esp"], 1, 10, ""), (f"root_{version}", TYPES["root"], 11, 4, guid(self.hash[:32])),
                (f"rootv_{version}", TYPES["verity"], 15, 1, guid(self.hash[32:]))]
        script = "label: gpt\n" + "".join(
            f"start={at}MiB, size={size}MiB, type={kind}, name=\"{name}\"" + (f", uuid={uuid}" if uuid else "") + "\n"
            for name, kind, at, size, uuid in rows)
        tool("/usr/sbin/sfdisk", "--quiet", stick, input=script)
        with open(stick, "r+b") as f:
            f.seek(11 * MIB)
            f.write(data.read_bytes())
            f.seek(15 * MIB)
            f.write(tree.read_bytes())
        self.run_from("sda", version, self.hash, installer=True)
        self.kernel = noise(300_001, 2)
        self.put(f"efi/EFI/Linux/hx170_{version}.efi", self.kernel)
        self.put("efi/EFI/BOOT/BOOTX64.EFI", "boot loader")
        self.put("efi/EFI/systemd/systemd-bootx64.efi", "boot loader")
        self.put("efi/loader/loader.conf", "timeout 0\n")
        self.put("efi/loader/addons/installer.addon.efi", "mode")
        files = sorted(p for p in self.esp.rglob("*") if p.is_file())
        self.put("efi/hx170/sums", "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(self.esp)}\n" for p in files))
        self.put("proc/self/mountinfo", "")
        (self.root / "sys/firmware/efi/efivars").mkdir(parents=True)

    def run_from(self, disk, version, root_hash, installer=False):
        self.put("proc/cmdline", f"quiet roothash={root_hash}" + (" hx170.mode=installer" if installer else "") + "\n")
        self.put("usr/lib/os-release", f"NAME=\"hx170\"\nIMAGE_VERSION={version}\n")
        boot = self.root / "run/hx170/boot"
        boot.mkdir(parents=True, exist_ok=True)
        for old in boot.iterdir():
            old.unlink()
        (boot / self.numbers[disk]).touch()
        (boot / "models_0123456789abcdef012345").touch()  # left by the initrd beside the number

    def run(self, program, *argv):
        """(exit status, standard output, standard error)"""
        done = subprocess.run([program, *map(str, argv), "--root", str(self.root)], capture_output=True, text=True, timeout=120)
        for line in done.stderr.splitlines():
            assert not line.startswith("==") and "runtime error" not in line, done.stderr
        return done.returncode, done.stdout, done.stderr

    def install(self, *argv):
        return self.run(HX_INSTALL, *argv)

    def update(self, *argv):
        return self.run(HX_UPDATE, *argv)

    def device(self, name):
        return self.root / "dev" / name

    def make_bundle(self, version="1.10", minimum="1.0", seed=5, change=None, tar=True):
        """An update as image/bundle.sh makes it. change: a function on the dictionary of the manifest."""
        folder = self.work / f"bundle-{version}-{seed}"
        folder.mkdir(exist_ok=True)
        (folder / "root.erofs").write_bytes(noise(2 * MIB, seed))
        tree, root_hash = make_tree(folder / "root.erofs", self.work)
        (folder / "root.verity").write_bytes(tree.read_bytes())
        (folder / "uki.efi").write_bytes(noise(250_000, seed + 1))
        rows = {"schema": "1", "product": "hx170", "version": version, "minimum_version": minimum, "kernel": "6.12", "root_hash": root_hash}
        for part in ("root.erofs", "root.verity", "uki.efi"):
            content = (folder / part).read_bytes()
            rows[part + ".size"] = str(len(content))
            rows[part + ".sha256"] = hashlib.sha256(content).hexdigest()
        if change:
            change(rows)
        (folder / "manifest").write_text("".join(f"{k} = {v}\n" for k, v in rows.items()))
        key = self.work / "key.pem"
        if not key.exists():
            tool("openssl", "genpkey", "-quiet", "-algorithm", "ed25519", "-out", key)
            self.put("usr/share/hx170/release.pem", tool("openssl", "pkey", "-in", key, "-pubout"))
        tool("openssl", "pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", folder / "manifest", "-out", folder / "manifest.sig")
        if not tar:
            return folder, root_hash
        bundle = self.work / f"hx170-{version}.bundle"
        tool("tar", "-C", folder, "--format=ustar", "-cf", bundle, "manifest", "manifest.sig", "root.erofs", "root.verity", "uki.efi")
        return bundle, root_hash


@pytest.fixture
def machine(tmp_path):
    m = Machine(tmp_path)
    m.make_stick()
    m.add_disk("nvme0n1", "259:0", "NVME-AAAA1111", 24 * GIB)
    return m


@pytest.fixture
def installed(machine):
    status, _, err = machine.install("run", "--disk", "NVME-AAAA1111", "--confirm", "1111")
    assert status == 0, err
    machine.run_from("nvme0n1", "1.2", machine.hash)
    return machine


def digest(path):
    """Of a sparse file, without reading its holes."""
    h = hashlib.sha256()
    with open(path, "rb") as f:
        at, end = 0, os.stat(path).st_size
        while at < end:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            hole = os.lseek(f.fileno(), at, os.SEEK_HOLE)
            f.seek(at)
            while at < hole:
                data = f.read(min(hole - at, MIB))
                if data.strip(b"\0"):
                    h.update(b"%d:" % at + data)
                at += len(data)
    return h.hexdigest()


def esp_of(image):
    return f"{image}@@{MIB}"


def read_esp(image, path):
    return subprocess.run(["mcopy", "-n", "-i", esp_of(image), f"::/{path}", "-"], capture_output=True, timeout=60).stdout


def list_esp(image):
    out = tool("mdir", "-/", "-b", "-i", esp_of(image), "::/")
    return sorted(line.strip().removeprefix("::/") for line in out.splitlines() if line.strip() and not line.rstrip().endswith("/"))


