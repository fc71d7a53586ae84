"""The layers of the source: what each part may include or import, and its budget of lines."""

import ast
import functools
import re
import subprocess
from collections import Counter
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CPP, PYTHON = ROOT / "cpp", ROOT / "python" / "regard"

# Each part of the C++ code knows only the next one; all know the plain data of problem/.
CPP_PARTS = {
    "platform": {"platform"},
    "simd": {"simd"},
    "kernels": {"kernels", "simd"},
    "dispatch": {"dispatch", "kernels", "platform"},
    "bindings": {"bindings", "dispatch", "platform"},
    "openmp": {"openmp", "dispatch"},
    "cuda": {"cuda"},
}
FAMILIES = re.findall(
    r"^REGARD_FAMILY\((\w+)", (CPP / "kernels/families.inc").read_text("utf-8"), re.M
)
# Kernel folders that a family may include, in addition to its own and the common code of strips.
FAMILY_KNOWS = {
    "bfloat16": {"attention", "backward"},
    "groups": {"attention"},
    "int8": {"attention"},
}
KERNEL_HEADERS = {
    *("cstddef", "cstdint", "initializer_list", "type_traits", "utility"),
    *("emmintrin.h", "immintrin.h", "arm_neon.h", "wasm_simd128.h"),
}
EVERYWHERE = {"problem", *CPP_PARTS}
# What no code may contain, and where.
FORBIDDEN = {
    # Streams share state with every copy of libstdc++ in the process, whatever its version.
    r"#include <([io]?f?stream|iomanip|iostream|locale|sstream)>": EVERYWHERE,
    # The memory of such a variable is allocated when a thread first reads it. If there is none
    # left, the loader ends the process.
    r"\bthread_local\b": EVERYWHERE,
    r"<omp\.h>|#pragma omp": EVERYWHERE - {"openmp"},
    r"\bnew |malloc|\bthrow |\bomp|std::vector|std::thread": {"simd", "kernels"},
    # A head_dim may be 2^40.
    r"for \((int|unsigned|std::u?int32_t) (\w+) = [^;]*; \2 <=? [^;&]*(_dim|_len|depth)\b": {
        "kernels"
    },
    r"pybind11": EVERYWHERE - {"bindings", "problem"},
}

# Python packages, and what they may know in addition to the shared ones. "regard" is the package
# that users import, with everything in it.
SHARED = {"_arguments", "_runtime"}
OF_LAYERS = {"_attention", "_gradients", "_random", "_recording", "_show", "_weights"}
PACKAGES = {
    **{name: set() for name in ("_arguments", "_runtime", "_random", "_weights", "_show")},
    "_attention": {"_show", "_weights"},
    "_gradients": {"_attention"},
    "_recording": {"_attention", "checkpoints", "masks"},
    "_statistics": {"_attention", "_gradients", "_recording"},
    "_stream": {"_attention", "_show"},
    "_cache": {"_attention", "_show", "masks", "positional"},
    "_explore": {"_attention", "_recording", "_show", "_statistics"},
    "masks": set(),
    "positional": set(),
    "checkpoints": {"_weights"},
    "layers": {*OF_LAYERS, "positional"},
    "models": {"_attention", "_cache", "_recording", "_weights", "checkpoints", "layers"},
    "plot": {"_attention", "_recording", "_show", "_statistics", "masks"},
    "cuda": {"_attention"},
    "torch": {"_gradients", "_recording", "masks", "regard"},
    "transformers": {"_recording", "masks", "regard", "torch"},
    "jax": {"_attention", "_gradients", "masks"},
    "dask": {"_attention", "_gradients", "regard"},
    "_bench": {"regard"},
    "_cli": {"_attention", "_bench", "_explore", "_show", "regard"},
}
# Imports within functions that point up: of the GPU package, which is loaded only when needed, and
# of the calls that the methods of recordings make.
CALLS_UP = {("_attention", "cuda"), ("_runtime", "cuda"), ("_recording", "regard")}


def sources(part):
    suffixes = {".hpp", ".cpp", ".cu", ".inc"}
    files = [path for path in (CPP / part).rglob("*") if path.suffix in suffixes]
    assert files
    return [(path, path.read_text(encoding="utf-8")) for path in files]


def included(path, text):
    for name in re.findall(r'^#include "([^"]+)"', text, re.M):
        yield (path.parent / name).resolve().relative_to(CPP)


@pytest.mark.parametrize("part", CPP_PARTS)
def test_cpp_parts_include_only_what_they_may_know(part):
    known = CPP_PARTS[part] | ({"problem"} if part != "simd" else set())
    for path, text in sources(part):
        for each in included(path, text):
            assert each.parts[0] in known, f"{path} includes {each}"
        if part in ("simd", "kernels"):
            headers = {*re.findall(r"^#include <([^>]+)>", text, re.M)}
            assert headers <= KERNEL_HEADERS, path


def test_families_of_kernels_do_not_know_each_other():
    assert FAMILIES
    for folder in (*FAMILIES, "strips"):
        known = {folder, *FAMILY_KNOWS.get(folder, ())}
        known |= {"strips"} if folder in FAMILIES else set()
        for path, text in sources(f"kernels/{folder}"):
            for each in included(path, text):
                if each.parts[0] == "kernels" and len(each.parts) > 2:
                    assert each.parts[1] in known, f"{path} includes {each}"


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_cpp_parts_do_not_contain(pattern):
    for part in FORBIDDEN[pattern]:
        for path, text in sources(part):
            if pattern != "pybind11" or path.parent != CPP / "cuda" / "bindings":
                found = re.search(pattern, re.sub(r"//.*", "", text))
                assert not found, f"{path}: {found[0]}"


def test_no_flag_gives_up_ieee_arithmetic():
    files = [ROOT / "CMakeLists.txt", *CPP.rglob("CMakeLists.txt")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert "-ffp-contract=off" in text
    assert not re.search("-ffast-math|-Ofast|-funsafe-math|-ffinite-math|-march=native", text)


def modules():
    """Return the files of the modules by name; a stub represents a compiled module."""
    found = {}
    for path in PYTHON.rglob("*.py*"):
        is_stub = path.suffix == ".pyi" and not path.with_suffix(".py").exists()
        if path.suffix == ".py" or is_stub:
            parts = path.relative_to(PYTHON.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
IS_COMPILED = {name for name, path in MODULES.items() if path.suffix == ".pyi"}


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(tree, in_functions=False):
    """Yield the statements outside of functions, except those only for type checkers, or the
    statements within functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.FunctionDef):
            yield from ast.walk(node) if in_functions else ()
        else:
            yield from () if in_functions else [node]
            yield from statements(node, in_functions)


def imported(name, in_functions=False):
    """Return the modules of the package that a module imports, submodules first."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in statements(parsed(path), in_functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & MODULES.keys()
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{source}.{alias.name}"
                found |= {full} if full in MODULES else {source} & MODULES.keys()
    return found


def package_of(name):
    return name.split(".")[1] if "." in name else name


def unknown(name, imports):
    """Return the packages that a module imports, but may not know."""
    package = package_of(name)
    if name in IS_COMPILED or package in ("regard", "__main__"):
        return set()
    shared = set() if package == "_arguments" else SHARED
    others = {package_of(each) for each in imports - IS_COMPILED}
    return {(package, other) for other in others - {package, *shared, *PACKAGES[package]}}


def test_modules_import_in_one_direction():
    graph = {name: imported(name) for name in MODULES}
    assert "regard._arguments.numbers" in graph["regard.masks._positions"]
    list(TopologicalSorter(graph).static_order())  # raises CycleError with the names in a cycle


def test_packages_import_only_what_they_may_know():
    assert {package_of(name) for name in MODULES.keys() - IS_COMPILED} == {
        *("regard", "__main__"),
        *PACKAGES,
    }
    assert set().union(*(unknown(name, imported(name)) for name in MODULES)) == set()
    in_functions = (unknown(name, imported(name, in_functions=True)) for name in MODULES)
    assert set().union(*in_functions) - {("_arguments", "_runtime")} == CALLS_UP


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")
def test_every_package_has_a_budget():
    """Prints the lines of the packages with -rP; exceeding a budget is not a failure."""
    listed = subprocess.check_output(["git", "ls-files", "-z", PYTHON], cwd=ROOT, text=True)
    lines = Counter()
    for path in map(ROOT.joinpath, listed.rstrip("\0").split("\0")):
        if path.suffix in {".py", ".pyi", ".html", ".css", ".js"} and path.is_file():
            folders = path.relative_to(PYTHON).parts[:-1]
            lines[folders[0] if folders else "regard"] += path.read_bytes().count(b"\n")
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| packages \| budget \|\n\|---\|---\|\n((?:\|.*\|\n)+)", text, re.M)
    budgets = re.findall(r"^\| (.*) \| (\d+) \|$", table, re.M)
    packages = [re.findall("`([a-z_]+)`", name) for name, _ in budgets]
    assert sorted(chain(*packages)) == sorted(lines), "each package must be in one row"
    for (name, budget), members in zip(budgets, packages, strict=True):
        print(f"{name}: {sum(lines[each] for each in members or lines)} lines of {budget}")
