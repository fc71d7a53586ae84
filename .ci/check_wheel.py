"""Check a wheel: its size, its files, and that NumPy is its only requirement."""

import json
import re
import sys
import zipfile
from pathlib import Path

LIMIT = 5_000_000

path = Path(sys.argv[1])
with zipfile.ZipFile(path) as wheel:
    names = wheel.namelist()
    metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
    lines = wheel.read(metadata).decode().splitlines()
    boms = [
        json.loads(wheel.read(name)) for name in names if name.endswith("/sboms/regard.cdx.json")
    ]
needs = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
problems = []
if path.stat().st_size > LIMIT:
    problems.append(f"{path.name} is {path.stat().st_size} bytes, more than {LIMIT}")
problems += [
    f"{name} does not belong in the wheel"
    for name in names
    if not name.startswith(("regard/", "regard-"))
    or name.endswith((".cpp", ".hpp", ".o"))
    or "libgomp" in name
    or "libomp" in name
]
if not any(name.startswith("regard/_openmp.") and name.endswith(".so") for name in names):
    problems.append("the OpenMP layer is missing")
problems += [
    f"{name} is built for GPUs, which wheels leave out: pass -Ccmake.define.REGARD_CUDA=OFF"
    for name in names
    if name.startswith("regard/_cuda") and name.endswith(".so")
]
problems += [
    f"{name} is missing"
    for name in (
        *("regard/py.typed", "regard/__init__.pyi", "regard/_core.pyi", "regard/_cuda.pyi"),
        *("regard/__main__.py", "regard/_arguments/other_names.txt"),
    )
    if name not in names
]
if [need.split()[1].split(">")[0] for need in needs] != ["numpy"]:
    problems.append(f"run-time requirements are {needs}, expected only NumPy")
version = next(line.split()[1] for line in lines if line.startswith("Version:"))
for bom in boms:
    described = bom["metadata"]["component"]
    parts = {part["name"]: part for part in bom["components"]}
    if (described["name"], described["version"]) != ("regard", version):
        problems.append(
            f"the bill of materials describes {described['name']} {described['version']}"
        )
    if parts.keys() != {"pybind11"} or int(parts["pybind11"]["version"].split(".")[0]) < 3:
        problems.append(
            f"the bill of materials lists {parts}, expected pybind11 of version 3 or newer"
        )
    for part in (described, *parts.values()):
        if not re.fullmatch(rf"pkg:[a-z]+/[\w/]+@v?{re.escape(part['version'])}", part["purl"]):
            problems.append(f"{part['name']} {part['version']} has the address {part['purl']}")
if len(boms) != 1:
    problems.append(f"found {len(boms)} bills of materials for regard, expected 1")
print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {len(names)} files")
sys.exit("\n".join(problems) or None)
