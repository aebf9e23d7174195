"""Lays a case of tests/vectors/hardware out as a folder: a made-up root, the management library's stand-in beside its
answers, recorded answers of tools, kernel log, measurements."""
import base64
import copy
import json
import os
import shutil
import subprocess

VECTORS = os.path.join("tests", "vectors", "hardware")
CASES = os.path.join(VECTORS, "cases")
PROGRAM = os.environ["HX_P2P_CHECK"]
SHIM = os.environ["HX_NVML_SHIM"]
JSON_FILES = ["config.json", "fs.json", "commands.json", "nvml.json", "probe.json"]


def case_names():
    return sorted(os.listdir(CASES))


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def read_case(name):
    """All files of a case in memory: documents for JSON, text for the rest."""
    folder, files = os.path.join(CASES, name), {}
    for file in sorted(os.listdir(folder)):
        path = os.path.join(folder, file)
        if file.endswith(".json"):
            files[file] = load(path)
        else:
            with open(path, encoding="utf-8") as f:
                files[file] = f.read()
    return files


def config_bytes(rows):
    if "fill" in rows:
        return bytes([int(rows["fill"], 16)]) * 4096
    data = bytearray(4096)
    for offset, row in rows.items():
        at = int(offset, 16)
        data[at:at + 16] = bytes.fromhex(row)
    return bytes(data)


def lay_out(entries, root):
    for path, entry in entries.items():
        where = root + path
        os.makedirs(os.path.dirname(where), exist_ok=True)
        if "link" in entry:
            os.symlink(entry["link"], where)
        elif "dir" in entry:
            os.makedirs(where, exist_ok=True)
        else:
            data = (entry["text"].encode() if "text" in entry else
                    base64.b64decode(entry["b64"]) if "b64" in entry else config_bytes(entry["config"]))
            with open(where, "wb") as f:
                f.write(data)


class Machine:
    def __init__(self, files, folder):
        self.folder = str(folder)
        self.root = os.path.join(self.folder, "root")
        os.makedirs(self.root)
        lay_out(files["fs.json"]["entries"], self.root)
        for file, content in files.items():
            if file in ("fs.json", "expected.json", "provenance.json"):
                continue
            with open(self.path(file), "w", encoding="utf-8") as f:
                f.write(content if isinstance(content, str) else json.dumps(content))
        self.has_library = files["nvml.json"]["system"]["init"] != "LIBRARY_NOT_FOUND"
        if self.has_library:
            shutil.copy(SHIM, self.path("nvml.so"))
            shutil.copy(SHIM, self.path("nvml-load.so"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def options(self, probe=True):
        words = ["--root", self.root, "--config", self.path("config.json"), "--nvml", self.path("nvml.so"),
                 "--nvml-load", self.path("nvml-load.so"), "--commands", self.path("commands.json"),
                 "--kernel-log", self.path("dmesg.txt"), "--tool-timeout", "0.5"]
        return words + (["--probe", self.path("probe.json")] if probe else [])

    def check(self, *more, probe=True, timeout=60):
        return run(*self.options(probe), *more, timeout=timeout)

    def result(self, *more, probe=True):
        done = self.check("--json", *more, probe=probe)
        assert done.stdout, done.stderr
        return json.loads(done.stdout), done


def run(*words, timeout=60):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=timeout, check=False)


def statuses(result):
    return {check["id"]: check["status"] for check in result["checks"]}


def apply_mutation(files, ops):
    """A changed copy of a case; the forms of change are described in mutations.json itself."""
    files = copy.deepcopy(files)
    for op in ops:
        if op["file"] == "fs.json":
            entries = files["fs.json"]["entries"]
            if "config_row" in op:
                entries[op["path"]]["config"][op["config_row"]] = op["value"]
            elif op.get("remove"):
                del entries[op["path"]]
            elif op.get("dir"):
                entries[op["path"]] = {"dir": True}
            else:
                entries[op["path"]] = {"text": op["text"]}
        elif "append" in op:
            files[op["file"]] += op["append"]
        else:
            *steps, last = op["pointer"].strip("/").split("/")
            at = files[op["file"]]
            for step in steps:
                at = at[int(step)] if isinstance(at, list) else at[step]
            at[int(last) if isinstance(at, list) else last] = op["value"]
    return files
