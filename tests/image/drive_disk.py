#!/usr/bin/env python3
"""What the scenario `drive` starts with: a drive with Engram tables, QEMU's rules for its bad sector, an initrd.

usage: drive_disk.py IMAGE_FOLDER GUEST_PROGRAM OUT ROWS ROW_OFFSET BAD_ROW

IMAGE_FOLDER is BUILD/image of a finished image. Writes OUT.ext4, OUT.errors and OUT.initrd; the initrd is the image's
own, with the guest program in place of its first one and the file system's modules added.
"""

import itertools
import pathlib
import subprocess
import sys
import tempfile

ROW = 256
SCALES = 8


def row_bytes(row):
    """As drive_byte of drive.h."""
    return bytes(16 + (((row >> 4 * (i % 8)) + i // 8) & 15) for i in range(ROW))


def make_drive(out, n_rows, offset, bad_row):
    rows = b"".join(row_bytes(row) for row in range(n_rows))
    with tempfile.TemporaryDirectory() as folder:
        for table in range(2):
            # Table 0 begins with another byte: its rows are found apart from those of table 1.
            head = bytes([ord("0") + table]) * offset
            (pathlib.Path(folder) / f"table{table}").write_bytes(head + rows + b"\x7f" * (n_rows * SCALES))
        drive = pathlib.Path(f"{out}.ext4")
        drive.unlink(missing_ok=True)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-b", "4096", "-d", folder, str(drive), "64M"], check=True)
    # One extent: the file's first page is where the head is, and the rows follow.
    data = drive.read_bytes()
    start = data.index(b"0" * offset + rows[:ROW])
    at = start + offset + bad_row * ROW
    if data[at : at + ROW] != row_bytes(bad_row):
        raise SystemExit("drive_disk: the table lies in pieces on the drive")
    pathlib.Path(f"{out}.errors").write_text(
        f'[inject-error]\nevent = "read_aio"\nerrno = "5"\nsector = "{at // 512}"\nonce = "off"\n'
    )


numbers = itertools.count(1)


def entry(name, mode, data=b""):
    """One file of a cpio archive (newc)."""
    fields = [next(numbers), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def make_initrd(image, guest, out):
    kernel = (image / "work/kernel").read_text().strip()
    modules = image / "work/tree/usr/lib/modules" / kernel
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        name, _, rest = line.partition(":")
        needs[name] = rest.split()
    ext4 = next(name for name in needs if pathlib.Path(name).name.startswith("ext4.ko"))
    files = [*reversed(needs[ext4]), ext4]
    names = [pathlib.Path(name).name for name in files]
    archive = entry("init", 0o100755, guest.read_bytes()) + entry("drive", 0o040755)
    for path, name in zip(files, names):
        archive += entry(f"drive/{name}", 0o100644, (modules / path).read_bytes())
    archive += entry("drive/order", 0o100644, "".join(name + "\n" for name in names).encode())
    archive += entry("TRAILER!!!", 0)
    own = (image / "work/out/initrd").read_bytes()
    pathlib.Path(f"{out}.initrd").write_bytes(own + b"\0" * (-len(own) % 4) + archive)


def main():
    image, guest, out, n_rows, offset, bad_row = sys.argv[1:]
    make_drive(out, int(n_rows), int(offset), int(bad_row))
    make_initrd(pathlib.Path(image), pathlib.Path(guest), out)


if __name__ == "__main__":
    main()
