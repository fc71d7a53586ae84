"""Test the house rules about the source that can be checked automatically."""

import ast
import re
import subprocess
import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parent.parent.parent
CPP = ROOT / "cpp"
PYTHON = ROOT / "python"

# Each part knows only the next one; all know the plain data of problem/.
ROOMS = {
    "platform": {"platform"},
    "simd": {"simd"},
    "kernels": {"kernels", "simd"},
    "dispatch": {"dispatch", "kernels", "platform"},
    "bindings": {"bindings", "dispatch", "platform"},
    "openmp": {"openmp", "dispatch"},
    "cuda": {"cuda"},
}
# The same for Python, where every package may know the shared packages. "regard" is the package
# that users import, with everything in it.
SHARED = {"_arguments", "_runtime"}
PACKAGES = {
    "_arguments": set(),
    "_runtime": set(),
    "_random": set(),
    "_weights": set(),
    "_show": set(),
    "_attention": {"_show", "_weights"},
    "_gradients": {"_attention"},
    "_recording": {"_attention", "checkpoints", "masks"},
    "_statistics": {"_attention", "_gradients", "_recording"},
    "_stream": {"_attention", "_show"},
    "_cache": {"_attention", "_show", "masks"},
    "_explore": {"_attention", "_recording", "_show", "_statistics"},
    "masks": set(),
    "positional": set(),
    "checkpoints": {"_weights"},
    "layers": {
        "_attention",
        "_gradients",
        "_random",
        "_recording",
        "_show",
        "_weights",
        "positional",
    },
    "models": {"_attention", "_cache", "_recording", "_weights", "checkpoints", "layers"},
    "plot": {"_attention", "_recording", "_show", "_statistics", "masks"},
    "cuda": {"_attention"},
    "torch": {"_gradients", "_recording", "masks", "regard"},
    "transformers": {"_recording", "regard", "torch"},
    "jax": {"_attention", "_gradients", "masks"},
    "dask": {"_attention", "_gradients", "regard"},
    "_bench": {"regard"},
    "_cli": {
        "_attention",
        "_bench",
        "_explore",
        "_show",
        "regard",
    },
}
# Imports within functions that point up: of the GPU package, which is loaded only when needed, and
# of the calls that the methods of recordings make.
CALLS_UP = {("_attention", "cuda"), ("_runtime", "cuda"), ("_recording", "regard")}
SOURCES = {".hpp", ".cpp", ".cu", ".inc"}
# What counts as lines of the package: code, stubs and the page of `regard.explore`.
WEIGHED = {".py", ".pyi", ".html", ".css", ".js"}
KERNEL_HEADERS = {"cstddef", "cstdint", "initializer_list", "type_traits", "utility"}
KERNEL_HEADERS |= {"emmintrin.h", "immintrin.h", "arm_neon.h"}


def sources(room):
    files = [path for path in (CPP / room).rglob("*") if path.suffix in SOURCES]
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


FAMILIES = re.findall(
    r"^REGARD_FAMILY\((\w+)", (CPP / "kernels/families.inc").read_text("utf-8"), re.M
)
# Kernel folders that a family may include, in addition to its own and the common code of strips.
FAMILY_KNOWS = {
    "bfloat16": {"attention", "backward"},
    "groups": {"attention"},
    "int8": {"attention"},
}


def test_families_of_kernels_do_not_know_each_other():
    assert FAMILIES
    folders = {path.name for path in (CPP / "kernels").iterdir() if path.is_dir()}
    assert folders == {*FAMILIES, "strips", "targets", "testing"}
    for folder in (*FAMILIES, "strips"):
        known = {folder, *FAMILY_KNOWS.get(folder, ())} | (
            {"strips"} if folder in FAMILIES else set()
        )
        for path in sources(f"kernels/{folder}"):
            for _, name in includes(path):
                included = (path.parent / name).resolve()
                if included.is_relative_to(CPP / "kernels") and included.parent != CPP / "kernels":
                    assert included.parent.name in known, f"{path} includes {name}"


def test_kernels_are_read_in_100_columns():
    for path in sources("kernels"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert len(line) <= 100, f"{path}:{number}"


def test_pybind11_stays_in_the_bindings():
    for room in ("platform", "simd", "kernels", "dispatch", "openmp", "cuda"):
        for path in sources(room):
            if path.parent != CPP / "cuda" / "bindings":
                assert "pybind11" not in path.read_text(encoding="utf-8"), path


def test_kernels_for_gpus_know_nothing_of_their_bindings():
    for path in sources("cuda"):
        if path.parent != CPP / "cuda" / "bindings":
            assert not any("bindings" in name for _, name in includes(path)), path


@pytest.mark.parametrize("room", ["simd", "kernels"])
def test_kernels_use_no_library(room):
    for path in sources(room):
        names = {name for bracket, name in includes(path) if bracket == "<"}
        assert names <= KERNEL_HEADERS, path
        code = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        for word in (r"\bnew ", "malloc", r"\bthrow ", r"\bomp", "std::vector", "std::thread"):
            assert not re.search(word, code), (path, word)


def test_no_streams():
    """Streams share state with every copy of libstdc++ in the process, whatever its version."""
    streams = {"fstream", "iomanip", "iostream", "istream", "locale", "ostream", "sstream"}
    for room in ("problem", *ROOMS):
        for path in sources(room):
            assert not streams & {name for _, name in includes(path)}, path


def test_kernels_count_dimensions_in_64_bits():
    """A head_dim may be 2^40. An int would overflow when it is multiplied by a tile's lanes, at a
    50th of its largest value."""
    for path in sources("kernels"):
        code = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        narrow = re.search(
            r"for \((int|unsigned|std::u?int32_t) (\w+) = [^;]*; \2 <=? [^;&]*(_dim|_len|depth)\b",
            code,
        )
        assert not narrow, f"{path}: {narrow.group()}"


def test_openmp_stays_in_its_module():
    for room in ("problem", *ROOMS):
        for path in sources(room):
            uses = re.search(r"<omp\.h>|#pragma omp", path.read_text(encoding="utf-8"))
            assert bool(uses) == (room == "openmp"), path


def test_no_variable_belongs_to_a_thread():
    """Its memory would be allocated when a thread first reads it, and if there is none left the
    loader ends the process."""
    for room in ("problem", *ROOMS):
        for path in sources(room):
            assert "thread_local" not in path.read_text(encoding="utf-8"), path


def test_every_listed_target_has_its_file_and_no_file_is_unlisted():
    listed = re.findall(
        r"^REGARD_TARGET\((\w+),",
        (CPP / "kernels/targets/targets.inc").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert {path.stem for path in (CPP / "kernels/targets").glob("*.hpp")} == set(listed)
    assert listed[-1] == "baseline"
    assert {row["name"] for row in regard.show_config(mode="dicts")["targets"]} <= set(listed)


def python_modules():
    """Yield the modules of the package by name; a stub represents the extension module."""
    for path in (PYTHON / "regard").rglob("*.py*"):
        is_stub = path.suffix == ".pyi"
        if not (is_stub or path.suffix == ".py") or (is_stub and path.with_suffix(".py").exists()):
            continue
        parts = path.relative_to(PYTHON).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def executed_on_import(statements):
    """Yield the statements that importing a module executes, without those only for type
    checkers."""
    for statement in statements:
        if isinstance(statement, ast.If):
            is_for_checkers = ast.unparse(statement.test).endswith("TYPE_CHECKING")
            taken = [] if is_for_checkers else statement.body
            yield from executed_on_import([*taken, *statement.orelse])
        elif isinstance(statement, ast.Try | ast.With | ast.ClassDef):
            yield from executed_on_import(statement.body)
        else:
            yield statement


def imported_by(name, path, modules, statements=executed_on_import):
    """Yield the modules of the package that a module imports, submodules first."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for statement in statements(tree.body):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names if alias.name in modules)
        elif isinstance(statement, ast.ImportFrom):
            above = package[: len(package) - statement.level + 1] if statement.level else []
            source = ".".join([*above, *filter(None, [statement.module])])
            for alias in statement.names:
                found = [each for each in (f"{source}.{alias.name}", source) if each in modules]
                yield from found[:1]


def import_graph():
    modules = dict(python_modules())
    return {name: {*imported_by(name, path, modules)} for name, path in modules.items()}


def test_modules_import_in_one_direction():
    graph = import_graph()
    assert "regard._arguments.numbers" in graph["regard.masks._positions"]
    list(TopologicalSorter(graph).static_order())  # raises CycleError with the names in a cycle


def package_of(name):
    """Return the package that contains a module: "regard" for the whole, None for a compiled
    module."""
    first, *rest = name.split(".")
    if rest and (PYTHON / first / f"{rest[0]}.pyi").exists():
        return None
    return rest[0] if rest else first


def test_packages_import_only_what_they_may_know():
    graph = import_graph()
    assert {package_of(name) for name in graph} == {None, "regard", "__main__", *PACKAGES}
    for name, imported in graph.items():
        package = package_of(name)
        if package in (None, "regard", "__main__"):
            continue
        known = {None, package, *PACKAGES[package]}
        known |= set() if package == "_arguments" else SHARED
        for each in imported:
            assert package_of(each) in known, f"{name} imports {each}"


def test_functions_import_only_what_their_package_may_know():
    modules = dict(python_modules())

    def in_functions(body):
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.FunctionDef):
                    yield from ast.walk(node)

    found = set()
    for name, path in modules.items():
        package = package_of(name)
        for each in imported_by(name, path, modules, in_functions):
            known = package in (None, "regard", "__main__") or package_of(each) in (
                {None, package, *SHARED, *PACKAGES[package]}
            )
            if not known:
                found.add((package, package_of(each)))
    assert found == CALLS_UP


def test_packages_describe_their_modules():
    described = 0
    for path in (PYTHON / "regard").glob("*/__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        listed = text.partition("The modules::")[2]
        if listed:
            modules = {each.stem for each in path.parent.glob("*.py")} - {"__init__"}
            first = re.findall(r"^    (\w+(?:, \w+)*)  ", listed, re.MULTILINE)
            assert {name for names in first for name in names.split(", ")} <= modules, path
            assert modules <= {*re.findall(r"\w+", listed)}, path
            described += 1
    assert described > 5


def test_the_version_is_that_of_the_project():
    with open(ROOT / "pyproject.toml", "rb") as file:
        assert tomllib.load(file)["project"]["version"] == regard.__version__
    assert f"## {regard.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_test_files_have_names_of_their_own():
    """Pytest imports them by file name only."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) > 200
    assert len(set(names)) == len(names)


def test_no_flag_gives_up_ieee_arithmetic():
    files = [ROOT / "CMakeLists.txt", *CPP.rglob("CMakeLists.txt")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert "-ffp-contract=off" in text
    for flag in ("-ffast-math", "-Ofast", "-funsafe-math", "-ffinite-math", "-march=native"):
        assert flag not in text


def test_the_map_of_the_source_names_files_that_exist():
    """A bare name in a package's row, or after a package's name, is a file of this package."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:python|cpp|tests|benchmarks)/[\w/]+\.\w+)`", text):
        assert (ROOT / path).is_file(), path
    rows = re.findall(r"^\| `(\w+)/`(?:, `(\w+)/`)? \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 15
    for *packages, contents in rows:
        for name in re.findall(r"`(\w+\.py)`", contents):
            found = [
                package for package in packages if (PYTHON / "regard" / package / name).is_file()
            ]
            assert found, f"{packages} have no {name}"
    (way,) = re.findall(r"### A call on a GPU\n(.*?)\n## ", text, re.DOTALL)
    for name in re.findall(r"`(_\w+\.py)`", way):
        assert (PYTHON / "regard" / "cuda" / name).is_file(), name


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")
def test_every_package_has_a_budget():
    """Prints the lines of the packages with -rP; exceeding a budget is not a failure."""
    command = ["git", "ls-files", "-z", "python/regard"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    files = {}
    for name in listed.split("\0"):
        path = ROOT / name
        if path.suffix in WEIGHED and path.is_file():
            folders = path.relative_to(PYTHON / "regard").parts[:-1]
            files.setdefault(folders[0] if folders else "regard", []).append(path)
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| packages \| budget \|\n\|---\|---\|\n((?:\|.*\|\n)+)", text, re.M)
    rows = re.findall(r"^\| (.*) \| (\d+) \|$", table, re.M)
    packages = [re.findall("`([a-z_]+)`", name) for name, _ in rows]
    counts = Counter(chain(*packages))
    assert {*files} <= {*counts}, "each package must be in the table"
    assert {*counts.values()} == {1}, "each package must be in one row"
    assert len(rows) == table.count("\n")
    for (name, budget), members in zip(rows, packages, strict=True):
        counted = [path for each in members or files for path in files.get(each, [])]
        lines = sum(path.read_bytes().count(b"\n") for path in counted)
        over = f", {lines - int(budget)} above its budget" if lines > int(budget) else ""
        print(f"{name}: {lines} lines of {budget}, in {len(counted)} files{over}")
