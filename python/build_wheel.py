"""Makes the wheel that carries the program: `uv tool install` or `pipx install` of it gives `vigil run`.

    python3 python/build_wheel.py --program bin/controller --out DIR [--machine x86_64]

The program must be a static one (`make build`), so that the wheel suits every Linux of its machine. It is
installed as vigil and, by a small command, as controller; the package vigil is in it as well. Nothing but
the standard library is needed. The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import re
import zipfile
from typing import List, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))

# What a static program suits (PEP 600, PEP 656).
PLATFORMS = ("manylinux_2_17_{0}", "manylinux2014_{0}", "musllinux_1_1_{0}")

_BORN = (1980, 1, 1, 0, 0, 0)  # the first time that a zip file can say


def setting(name: str) -> str:
    """Return a text of pyproject.toml. (tomllib came with Python 3.11.)"""
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as file:
        found = re.search(r'^%s = "([^"]*)"$' % re.escape(name), file.read(), re.M)
    if found is None:
        raise SystemExit("build wheel: pyproject.toml has no %s" % name)
    return found.group(1)


def read(*path: str) -> bytes:
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def package() -> List[Tuple[str, bytes]]:
    """Return the files of the package by their names in the wheel, sorted."""
    source = os.path.join(HERE, "src")
    found = []
    for folder, folders, files in os.walk(os.path.join(source, "vigil")):
        folders[:] = [f for f in folders if f != "__pycache__"]
        found += [os.path.join(folder, f) for f in files if f.endswith(".py") or f == "py.typed"]
    return [(os.path.relpath(path, source), read(path)) for path in sorted(found)]


def metadata() -> bytes:
    head = [
        "Metadata-Version: 2.1",
        "Name: " + setting("name"),
        "Version: " + setting("version"),
        "Summary: " + setting("description"),
        "License: Apache-2.0",
        "Requires-Python: " + setting("requires-python"),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(head).encode() + b"\n\n" + read(HERE, "README.md")


def build(program: str, out: str, machine: str) -> str:
    """Write the wheel into the folder out and return its path."""
    binary = read(program)
    if binary[:4] != b"\x7fELF":
        raise SystemExit("build wheel: %s is not a program of Linux" % program)
    name = "%s-%s" % (setting("name").replace("-", "_"), setting("version"))
    tags = [p.format(machine) for p in PLATFORMS]
    wheel = "Wheel-Version: 1.0\nGenerator: vigil\nRoot-Is-Purelib: false\n" + "".join("Tag: py3-none-%s\n" % t for t in tags)
    info = name + ".dist-info/"
    files = package() + [
        (name + ".data/scripts/vigil", binary),
        (info + "METADATA", metadata()),
        (info + "WHEEL", wheel.encode()),
        (info + "entry_points.txt", b"[console_scripts]\ncontroller = vigil._programs:controller\n"),
        (info + "LICENSE", read(os.path.dirname(HERE), "LICENSE")),
    ]
    record = ""
    for path, content in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += "%s,sha256=%s,%d\n" % (path, digest, len(content))
    files.append((info + "RECORD", (record + info + "RECORD,,\n").encode()))

    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "%s-py3-none-%s.whl" % (name, ".".join(tags)))
    half = path + ".half"
    with zipfile.ZipFile(half, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, content in files:
            entry = zipfile.ZipInfo(inside, _BORN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if "/scripts/" in inside else 0o100644) << 16
            archive.writestr(entry, content)
    os.replace(half, path)
    return path


if __name__ == "__main__":
    p = argparse.ArgumentParser(description="Make the wheel that carries the program.")
    p.add_argument("--program", required=True, help="the static controller program")
    p.add_argument("--out", required=True, help="the folder for the wheel")
    p.add_argument("--machine", default=platform.machine(), help="as uname -m says it (default: this one)")
    a = p.parse_args()
    print(build(a.program, a.out, a.machine))
