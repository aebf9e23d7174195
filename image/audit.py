#!/usr/bin/env python3
"""Looks at a finished image: nothing of one machine in it, nobody can log in by password, every package has its licence.

usage: audit.py BUILD_FOLDER

Reads the stick's disk image back: partitions by their GUIDs, the root's files out of the erofs partition. One line for each
check, then "N passed, N failed, N skipped"; exit 1 if any failed.
"""
import hashlib
import os
import re
import stat
import struct
import subprocess
import sys

MIB = 1 << 20
LIMITS = {"root.erofs": 256 * MIB, "initrd": 2 * MIB, "stick.img.xz": 120 * 10**6}
SET_UID = set()  # paths of programs that may run as another user: none
ESP_TYPE = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{20}")
NVIDIA = re.compile(r"(^|/)(nvidia(-uvm|-modeset|-drm|-peermem)?\.ko|libcuda\.so|libnvidia[^/]*\.so|gsp_[^/]*\.bin|nvidia-smi$)")


def guid(raw):
    a, b, c = struct.unpack("<IHH", raw[:8])
    return f"{a:08x}-{b:04x}-{c:04x}-{raw[8:10].hex()}-{raw[10:].hex()}"


def partitions(path):
    """(type, guid, label, attributes, first byte, bytes) of each partition."""
    with open(path, "rb") as f:
        f.seek(512)
        head = f.read(92)
        if head[:8] != b"EFI PART":
            raise ValueError("no partition table")
        at, n, each = struct.unpack_from("<QII", head, 72)
        f.seek(at * 512)
        for _ in range(n):
            e = f.read(each)
            if e[:16] == bytes(16):
                continue
            first, last, attributes = struct.unpack_from("<QQQ", e, 32)
            label = e[56:128].decode("utf-16-le").rstrip("\0")
            yield guid(e[:16]), guid(e[16:32]), label, attributes, first * 512, (last - first + 1) * 512


class Image:
    def __init__(self, build):
        self.image = os.path.join(build, "image")
        self.out = os.path.join(self.image, "work", "out")
        self.root = os.path.join(self.image, "work", "audit")
        self.disk = os.path.join(self.out, "stick.img")
        self.parts = list(partitions(self.disk))
        self.read_back()

    def read_back(self):
        """The files of the root partition as they are on the disk."""
        subprocess.run(["rm", "-rf", self.root], check=True)
        _, _, _, _, first, n = self.parts[1]
        with open(self.disk, "rb") as f, open(self.root + ".erofs", "wb") as to:
            f.seek(first)
            to.write(f.read(n))
        tools = os.path.join(self.image, "tools")
        subprocess.run(["unshare", "--mount", "sh", "-c", 'mount --rbind "$0" "$1/image" && exec chroot "$1" '
                        "fsck.erofs --extract=/image/work/audit /image/work/audit.erofs", self.image, tools],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        os.remove(self.root + ".erofs")

    def path(self, name):
        return os.path.join(self.root, name.lstrip("/"))

    def exists(self, name):
        return os.path.lexists(self.path(name))

    def text(self, name):
        with open(self.path(name), encoding="utf-8") as f:
            return f.read()

    def files(self):
        for folder, folders, names in os.walk(self.root):
            for name in folders + names:
                full = os.path.join(folder, name)
                yield full[len(self.root):], os.lstat(full)


def check_partitions(image):
    """ESP, root and hash tree; both GUIDs are halves of the root hash."""
    with open(os.path.join(image.out, "root.hash"), encoding="ascii") as f:
        digits = f.read().strip()
    if len(image.parts) != 3:
        yield f"{len(image.parts)} partitions instead of 3"
        return
    halves = [digits[:32], digits[32:]]
    if image.parts[0][0] != ESP_TYPE:
        yield "the first partition is not an ESP"
    for part, half in zip(image.parts[1:], halves):
        if part[1].replace("-", "") != half:
            yield f"{part[2]}: GUID is not a half of the root hash"
        if part[3] != 1 << 60:
            yield f"{part[2]}: not marked read-only"


def check_machine(image):
    """Nothing that belongs to one machine: keys, ids, names."""
    for name, info in image.files():
        if re.search(r"ssh_host_.*key|/etc/nvme/host(id|nqn)|/random-seed$|\.pyc$|/etc/\.pwd\.lock", name):
            yield f"{name}: belongs to one machine"
        if stat.S_ISREG(info.st_mode) and info.st_size < 1 << 20:
            with open(image.path(name), "rb") as f:
                if PRIVATE.search(f.read()):
                    yield f"{name}: holds a private key"
    if image.text("/etc/machine-id"):
        yield "/etc/machine-id is not empty"
    for folder in ("var", "run", "tmp", "root", "boot", "home"):
        left = [name for name, info in image.files() if name.startswith(f"/{folder}/") and stat.S_ISREG(info.st_mode)]
        if left:
            yield f"/{folder} has files: {left[:3]}"


def check_passwords(image):
    """Every account is locked; nothing runs as another user than who started it."""
    for line in image.text("/etc/shadow").splitlines():
        account, secret = line.split(":")[:2]
        if not secret.startswith(("!", "*")):
            yield f"/etc/shadow: {account} has a password field '{secret}'"
    shadowed = {line.split(":")[0] for line in image.text("/etc/shadow").splitlines()}
    for line in image.text("/etc/passwd").splitlines():
        account, secret, number = line.split(":")[:3]
        if secret != "x" or account not in shadowed:
            yield f"/etc/passwd: {account} is not locked by /etc/shadow"
        if number == "0" and account != "root":
            yield f"/etc/passwd: {account} is a second root"
    for name, info in image.files():
        if stat.S_ISREG(info.st_mode) and info.st_mode & 0o6000 and name not in SET_UID:
            yield f"{name}: set-uid or set-gid"
        if not stat.S_ISLNK(info.st_mode) and info.st_mode & 0o002 and not info.st_mode & stat.S_ISVTX:
            yield f"{name}: everyone may write"
        if "security.capability" in (os.listxattr(image.path(name), follow_symlinks=False) if
                                     stat.S_ISREG(info.st_mode) else []):
            yield f"{name}: has file capabilities"


def check_ssh(image):
    """Keys only, two accounts."""
    text = image.text("/etc/ssh/sshd_config.d/50-hx170.conf").lower()
    for line in ("passwordauthentication no", "kbdinteractiveauthentication no", "permitrootlogin no", "permitemptypasswords no",
                 "allowusers admin tunnel"):
        if line not in text:
            yield f"sshd: '{line}' is missing"
    if "include /etc/ssh/sshd_config.d/*.conf" not in image.text("/etc/ssh/sshd_config").lower():
        yield "sshd does not read its folder of settings"


def check_mirror(image):
    """No host of the build machine's package mirror."""
    with open(os.path.join(image.image, "sources.list"), encoding="utf-8") as f:
        hosts = set(re.findall(r"https?://([^/\s]+)", f.read()))
    for name, info in image.files():
        # Licence texts and the like may name where a package came from.
        if not stat.S_ISREG(info.st_mode) or info.st_size > 1 << 20 or name.startswith("/usr/share/doc/"):
            continue
        with open(image.path(name), "rb") as f:
            data = f.read()
        for host in hosts:
            if host.encode() in data:
                yield f"{name}: names {host}"
    for folder in ("/etc/apt", "/var/lib/dpkg", "/usr/bin/dpkg", "/usr/bin/apt", "/usr/bin/perl"):
        if image.exists(folder):
            yield f"{folder} is there: the image has no package manager"


def check_licences(image):
    """Every package has its copyright file; nothing of NVIDIA's driver."""
    for line in image.text("/usr/share/hx170/packages").splitlines():
        name = line.split()[0]
        if not os.path.exists(image.path(f"/usr/share/doc/{name}/copyright")):
            yield f"{name}: no copyright file"
    if not image.exists("/usr/share/doc/hx170/LICENSE"):
        yield "hx170: no licence file"
    for name, _ in image.files():
        if NVIDIA.search(name):
            yield f"{name}: belongs to NVIDIA's driver"


def check_sizes(image):
    """Sizes below their limits."""
    for name, limit in LIMITS.items():
        path = os.path.join(image.out, name)
        if not os.path.exists(path):
            if name != "stick.img.xz":
                yield f"{name} is missing"
            continue
        size = os.path.getsize(path)
        if size > limit:
            yield f"{name}: {size} bytes, at most {limit}"


def check_manifest(image):
    """The bundle's manifest names the files beside it."""
    path = os.path.join(image.out, "manifest")
    if not os.path.exists(path):
        yield "no manifest: make image-bundle makes it"
        return
    with open(path, encoding="utf-8") as f:
        rows = dict(line.strip().split(" = ", 1) for line in f)
    for part in ("root.erofs", "root.verity", "uki.efi"):
        with open(os.path.join(image.out, part), "rb") as f:
            data = f.read()
        if rows[f"{part}.size"] != str(len(data)) or rows[f"{part}.sha256"] != hashlib.sha256(data).hexdigest():
            yield f"{part} differs from the manifest"


CHECKS = [check_partitions, check_machine, check_passwords, check_ssh, check_mirror, check_licences, check_sizes, check_manifest]


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 64
    image = Image(sys.argv[1])
    failed = 0
    for check in CHECKS:
        faults = list(check(image))
        print(f"  {check.__name__[6:]:<12} {'FAILED' if faults else 'passed'}  {check.__doc__}")
        for fault in faults[:20]:
            print(f"    | {fault}")
        failed += bool(faults)
    print(f"{len(CHECKS) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
