"""What the house rules say about the source, where a test can see it."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parent.parent.parent
CPP = ROOT / "cpp"
PYTHON = ROOT / "python" / "regard"

# Each room knows only the next; all know the plain data of problem/.
ROOMS = {
    "simd": {"simd"},
    "kernels": {"kernels", "simd"},
    "dispatch": {"dispatch", "kernels"},
    "bindings": {"bindings", "dispatch"},
}
# Likewise in Python, where every package may know the modules beside it (regard/_*.py), and these
# know no package. "regard" is what users import, with everything in it.
PACKAGES = {
    "masks": set(),
    "positional": set(),
    "checkpoints": set(),
    "_cache": {"masks"},
    "layers": {"masks", "positional"},
    "bench": {"regard"},
    "cli": {"bench", "regard"},
}
KERNEL_HEADERS = {"cstddef", "cstdint", "utility", "immintrin.h", "arm_neon.h"}


def sources(room):
    files = [path for path in (CPP / room).rglob("*") if path.suffix in (".hpp", ".cpp", ".inc")]
    assert files
    return files


def includes(path):
    return re.findall(r'^#include ([<"])([^>"]+)[>"]', path.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_include_only_what_they_may_know(room):
    for path in sources(room):
        for bracket, name in includes(path):
            if bracket == "<":
                continue
            included = (path.parent / name).resolve()
            if included.parent == CPP / "problem" and room != "simd":
                continue
            assert included.relative_to(CPP).parts[0] in ROOMS[room], f"{path} includes {name}"


def imported_packages(path):
    """The packages of regard that a module of it imports, and "regard" for the whole."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "regard":
            names = [f"regard.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        for name in names:
            first, _, rest = name.partition(".")
            package = rest.partition(".")[0] or first
            if first == "regard" and (package == "regard" or (PYTHON / package).is_dir()):
                yield package


def test_packages_import_only_what_they_may_know():
    found = {path.name for path in PYTHON.iterdir() if (path / "__init__.py").is_file()}
    assert found <= PACKAGES.keys()
    for package in found:
        for path in (PYTHON / package).rglob("*.py"):
            unknown = set(imported_packages(path)) - {package, *PACKAGES[package]}
            assert not unknown, f"{path} imports {unknown}"
    for path in PYTHON.glob("_[a-z]*.py"):
        assert not set(imported_packages(path)), path


def test_pybind11_stays_in_the_bindings():
    for room in ("simd", "kernels", "dispatch"):
        for path in sources(room):
            assert "pybind11" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("room", ["simd", "kernels"])
def test_kernels_use_no_library(room):
    for path in sources(room):
        names = {name for bracket, name in includes(path) if bracket == "<"}
        assert names <= KERNEL_HEADERS, path
        code = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        for word in (r"\bnew ", "malloc", r"\bthrow ", "omp", "std::vector", "std::thread"):
            assert not re.search(word, code), (path, word)


def test_no_variable_belongs_to_a_thread():
    """Its memory would be taken when a thread first reads it, and where there is none left the
    loader ends the process."""
    for room in ("problem", *ROOMS):
        for path in sources(room):
            assert "thread_local" not in path.read_text(encoding="utf-8"), path


def test_every_listed_target_has_its_file_and_no_file_is_unlisted():
    listed = re.findall(
        r"^REGARD_TARGET\((\w+),",
        (CPP / "dispatch/targets.inc").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert {path.stem for path in (CPP / "kernels/targets").glob("*.cpp")} == set(listed)
    assert listed[-1] == "baseline"
    assert {row["name"] for row in regard.show_config(mode="dicts")["targets"]} <= set(listed)


def test_the_version_is_that_of_the_project():
    with open(ROOT / "pyproject.toml", "rb") as file:
        assert tomllib.load(file)["project"]["version"] == regard.__version__
    assert f"## {regard.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_no_flag_gives_up_ieee_arithmetic():
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    for flag in ("-ffast-math", "-Ofast", "-funsafe-math", "-ffinite-math", "-march=native"):
        assert flag not in text
