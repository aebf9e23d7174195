"""Two names of one kernel image on the ESP, as a power cut in a change of names leaves them."""
import struct
import subprocess

import pytest

from conftest import MIB, noise, tool

KERNEL = noise(300_001, 7)
OTHER = noise(200_000, 8)


class Esp:
    def __init__(self, machine, sectors=1):
        self.path = machine.put("dev/hx170/esp", b"")
        with open(self.path, "r+b") as f:
            f.truncate(40 * sectors * MIB)   # mtools wants as many clusters as FAT32 has
        tool("/usr/sbin/mkfs.vfat", "-F", "32", "-s", sectors, self.path)
        tool("mmd", "-i", self.path, "::/EFI", "::/EFI/Linux")

    def put(self, name, content):
        subprocess.run(["mcopy", "-i", str(self.path), "-", f"::/EFI/Linux/{name}"], input=content, check=True, timeout=60)

    def names(self):
        out = tool("mdir", "-b", "-i", self.path, "::/EFI/Linux")
        return sorted(line.strip().rpartition("/")[2] for line in out.splitlines() if line.strip())

    def read(self, name):
        return subprocess.run(["mtype", "-i", str(self.path), f"::/EFI/Linux/{name}"], capture_output=True, timeout=60, check=True).stdout

    def rows(self):
        """(place, row) of every entry of EFI/Linux, in order."""
        image = self.path.read_bytes()
        sector, per_cluster, reserved, tables = struct.unpack_from("<HBHB", image, 11)
        table_size, root = struct.unpack_from("<I4xI", image, 36)
        data = (reserved + tables * table_size) * sector

        def folder(cluster):
            while cluster < 0x0FFFFFF8:
                at = data + (cluster - 2) * per_cluster * sector
                for place in range(at, at + per_cluster * sector, 32):
                    yield place, image[place:place + 32]
                cluster = struct.unpack_from("<I", image, reserved * sector + 4 * cluster)[0] & 0x0FFFFFFF

        def find(cluster, short):
            return next(first(row) for _, row in folder(cluster) if row[:11] == short)
        return list(folder(find(find(root, b"EFI        "), b"LINUX      ")))

    def twin(self, name, of):
        """A second name of a file: its short entry leads to the other's clusters."""
        self.put(name, b"")
        names = [row for row in self.rows() if row[1][0] not in (0, 0xE5, ord(".")) and row[1][11] != 0x0F]
        target = next(row for _, row in names if row[28:32] == struct.pack("<I", len(of)))
        place, row = names[-1]
        row = row[:20] + target[20:22] + row[22:26] + target[26:32]
        with open(self.path, "r+b") as f:
            f.seek(place)
            f.write(row)

    def is_sound(self):
        """No common clusters. Lost ones of the empty file's are none."""
        r = subprocess.run(["/usr/sbin/fsck.vfat", "-n", str(self.path)], capture_output=True, text=True, timeout=60, check=False)
        return "share" not in r.stdout and r.returncode == 0


def first(row):
    return struct.unpack_from("<H", row, 20)[0] << 16 | struct.unpack_from("<H", row, 26)[0]


@pytest.mark.parametrize("name,twin,stays", [
    ("hx170.new", "hx170_1.3+3.efi", "hx170_1.3+3.efi"),
    ("hx170.new3", "hx170_1.3+3.efi", "hx170_1.3+3.efi"),
    ("hx170_1.3+3.efi", "hx170_1.3+2-1.efi", "hx170_1.3+2-1.efi"),
    ("hx170_1.3+2-1.efi", "hx170_1.3.efi", "hx170_1.3.efi"),
    ("hx170_1.3.efi", "hx170_1.3+0-3.efi", "hx170_1.3.efi"),
])
@pytest.mark.parametrize("clusters", [1, 4])
def test_one_name_goes(machine, name, twin, stays, clusters):
    esp = Esp(machine, clusters)
    esp.put("hx170_1.2.efi", OTHER)
    esp.put(name, KERNEL)
    for i in range(20):     # the folder has several clusters
        esp.put(f"some-longer-name-of-another-file-{i}.txt", b"x")
    esp.twin(twin, KERNEL)
    assert not esp.is_sound()
    status, out, err = machine.install("esp")
    assert status == 0, err
    gone = name if stays == twin else twin
    assert f"'{gone}' is gone, '{stays}' stays" in out
    assert esp.is_sound()
    assert [n for n in esp.names() if n.startswith("hx170")] == sorted(["hx170_1.2.efi", stays])
    assert esp.read(stays) == KERNEL and esp.read("hx170_1.2.efi") == OTHER
    before = esp.path.read_bytes()
    status, out, err = machine.install("esp")
    assert status == 0 and out == "" and esp.path.read_bytes() == before


def test_others_are_left_alone(machine):
    """Files of the owner's, files that only have the same size, empty ones."""
    esp = Esp(machine)
    esp.put("hx170_1.2.efi", KERNEL)
    esp.put("hx170_1.3+3.efi", noise(len(KERNEL), 9))
    esp.put("hx170.new", b"")
    esp.put("hx170_1.4+3.efi", b"")
    esp.put("mine.efi", OTHER)
    esp.twin("mine-too.efi", OTHER)
    before = esp.path.read_bytes()
    status, out, err = machine.install("esp")
    assert status == 0 and out == "" and esp.path.read_bytes() == before


@pytest.mark.parametrize("damage,status,words", [
    (lambda b: b.__setitem__(slice(510, 512), b"  "), 65, "no FAT32 file system"),
    (lambda b: b.__setitem__(slice(11, 13), b"\x00\x03"), 65, "no FAT32 file system"),
    (lambda b: b.__setitem__(13, 0), 65, "no FAT32 file system"),
    (lambda b: b.__setitem__(slice(32, 36), b"\xff\xff\xff\x7f"), 65, "no FAT32 file system"),
    (lambda b: b.__setitem__(slice(44, 48), b"\xff\xff\xff\x0e"), 65, "a folder's clusters are damaged"),
    (lambda b: b.__setitem__(slice(44, 48), b"\x00\x00\x00\x00"), 65, "a folder's clusters are damaged"),
], ids=["mark", "sector", "cluster", "size", "root", "no-root"])
def test_damaged(machine, damage, status, words):
    esp = Esp(machine)
    image = bytearray(esp.path.read_bytes())
    damage(image)
    esp.path.write_bytes(image)
    found, _, err = machine.install("esp")
    assert found == status and words in err and esp.path.read_bytes() == image


def test_folder_in_a_circle(machine):
    esp = Esp(machine)
    image = bytearray(esp.path.read_bytes())
    sector, _, reserved = struct.unpack_from("<HBH", image, 11)
    root = struct.unpack_from("<I", image, 44)[0]
    struct.pack_into("<I", image, reserved * sector + 4 * root, root)
    struct.pack_into("<I", image, reserved * sector + 4 * root, root)
    esp.path.write_bytes(image)
    found, _, err = machine.install("esp")
    assert found == 65 and "a folder's clusters are damaged" in err


def test_no_folder(machine):
    machine.put("dev/hx170/esp", b"")
    with open(machine.root / "dev/hx170/esp", "r+b") as f:
        f.truncate(64 * MIB)
    tool("/usr/sbin/mkfs.vfat", "-F", "32", machine.root / "dev/hx170/esp")
    status, _, err = machine.install("esp")
    assert status == 66 and "no folder EFI" in err
