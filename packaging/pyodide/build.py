"""Build the wheel for Pyodide 0.27: ``python3.12 packaging/pyodide/build.py WORK WHEELS``.

Pyodide's own tools download a compiler and its libraries. This script builds the same module with
what distributions package: Clang and LLD 19, the headers of Debian's packages ``emscripten`` and
``libc++-19-dev``, which need not be installed, and the headers of the Python that runs it, which
must be the version of Pyodide's. npm's package ``pyodide`` says how that Python was configured.
Everything that the module does not define comes from Pyodide's main module: the C and C++
libraries and Python itself.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYODIDE = "0.27.7"
PYTHON = (3, 12)
PLATFORM = "pyodide-2024.0-wasm32"
EXTENSION = ".cpython-312-wasm32-emscripten.so"
# libc++ in the ABI that Emscripten chooses.
CONFIG_SITE = """#pragma once
#define _LIBCPP_ABI_VERSION 2
#define _LIBCPP_ABI_NAMESPACE __2
#define _LIBCPP_HAS_MUSL_LIBC
#define _LIBCPP_HAS_THREAD_API_PTHREAD
#define _LIBCPP_HAS_NO_VENDOR_AVAILABILITY_ANNOTATIONS
#define _LIBCPP_HAS_NO_TIME_ZONE_DATABASE
#define _LIBCPP_PSTL_BACKEND_SERIAL
#define _LIBCPP_HARDENING_MODE_DEFAULT 2
"""


def run(*command: str, **options: Any) -> None:
    """Run a command, or stop with its output."""
    ran = subprocess.run(command, capture_output=True, text=True, **options)
    if ran.returncode:
        sys.exit(f"{' '.join(command)} failed\n{ran.stdout}{ran.stderr}")


def unpack_headers(work: Path) -> None:
    """Make the folder of headers from two Debian packages."""
    run("apt-get", "-q", "download", "emscripten", "libc++-19-dev", cwd=work)
    for package in work.glob("*.deb"):
        run("dpkg-deb", "-x", str(package), str(work / "debian"))
    sysroot = work / "sysroot"
    shutil.copytree(
        work / "debian/usr/share/emscripten/cache/sysroot/include",
        sysroot / "include",
        ignore=shutil.ignore_patterns("c++"),
    )
    shutil.copytree(work / "debian/usr/lib/llvm-19/include/c++/v1", sysroot / "c++")
    (sysroot / "c++/__config_site").write_text(CONFIG_SITE, encoding="utf-8")


def configure_python(work: Path) -> None:
    """Copy Python's headers, with a pyconfig.h for Pyodide."""
    run("npm", "install", "--no-save", "--prefix", str(work), f"pyodide@{PYODIDE}")
    with zipfile.ZipFile(work / "node_modules/pyodide/python_stdlib.zip") as library:
        name = next(name for name in library.namelist() if name.startswith("_sysconfigdata"))
        configured: dict[str, dict[str, Any]] = {}
        exec(library.read(name), configured)
    include = work / "python"
    shutil.copytree(sysconfig.get_path("include"), include)
    own = (include / "pyconfig.h").read_text(encoding="utf-8")
    lines = []
    for name in re.findall(r"^(?:#define|/\* #undef) (\w+)", own, re.MULTILINE):
        value = configured["build_time_vars"].get(name)
        if isinstance(value, int) and value:
            lines.append(f"#define {name} {value}\n")
    (include / "pyconfig.h").write_text("".join(lines), encoding="utf-8")


def build(work: Path, wheels: Path) -> None:
    """Build the wheel as for any other platform, but for the compiler."""
    defines = {
        "CMAKE_TOOLCHAIN_FILE": Path(__file__).with_name("toolchain.cmake"),
        "Python_INCLUDE_DIR": work / "python",
        "REGARD_TARGETS": "wasm",
        "REGARD_CUDA": "OFF",
        "REGARD_OPENMP": "OFF",
    }
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(wheels)),
        *(f"-Ccmake.define.{name}={value}" for name, value in defines.items()),
        f"-Cbuild-dir={work / 'build'}",
        str(ROOT),
        env=os.environ
        | {
            "REGARD_PYODIDE": str(work),
            "_PYTHON_HOST_PLATFORM": PLATFORM,
            "SETUPTOOLS_EXT_SUFFIX": EXTENSION,
        },
    )


def main() -> None:
    """Build the wheel in folders that the command line names."""
    if sys.version_info[:2] != PYTHON:
        sys.exit(f"Pyodide {PYODIDE} has Python 3.12: run this script with Python 3.12")
    work, wheels = (Path(argument).resolve() for argument in sys.argv[1:])
    work.mkdir(parents=True)
    unpack_headers(work)
    configure_python(work)
    build(work, wheels)


if __name__ == "__main__":
    main()
