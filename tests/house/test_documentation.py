"""Every example in a docstring, in the README or in docs/ runs, and prints what it says, whichever
target computes it and with any number of threads."""

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import zlib
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parent.parent.parent
# What imports a package that may be missing, or needs it for its examples.
OPTIONAL = {
    "regard.checkpoints._gguf": "gguf",
    "regard.checkpoints._safetensors": "safetensors",
    "regard.dask": "dask",
    "regard.jax": "jax",
    "regard.plot": "matplotlib",
    "regard.torch": "torch",
    "regard.transformers": "transformers",
}
PAGES_THAT_NEED = {
    "docs/guide/arrays.md": ["jax"],
    "docs/guide/beyond-one-machine.md": ["dask"],
    "docs/guide/patterns.md": ["numba", "scipy"],
    "docs/guide/pictures.md": ["matplotlib"],
    "docs/guide/recording.md": ["torch", "transformers"],
    "docs/guide/torch.md": ["torch"],
    "docs/guide/transformers.md": ["torch", "transformers"],
}
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A cell of a page that the site executes, after its options.
CELL = re.compile(
    r"^```\{code-cell\} python\n(?:---\n.*?^---\n)?(.*?)^```", re.MULTILINE | re.DOTALL
)


def is_installed(package):
    """Tell whether a package can be imported. A folder of tests that has its name cannot."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def modules_of(package):
    """The name of a package and of all modules in it, without those that cannot be imported."""
    yield package.__name__
    for path in package.__path__:
        for module in pkgutil.iter_modules([path], f"{package.__name__}."):
            needed = OPTIONAL.get(module.name)
            if needed and not is_installed(needed):
                continue
            if module.ispkg:
                yield from modules_of(importlib.import_module(module.name))
            else:
                yield module.name


class Finder(doctest.DocTestFinder):
    """Finds what a module defines, also if it says that it is from the module that users import."""

    def _from_module(self, module, thing):
        owner = getattr(thing, "__module__", None)
        name = getattr(thing, "__qualname__", ".")  # a cached_property has none
        if f"{module.__name__}.".startswith(f"{owner}.") and "." not in name:
            source = Path(module.__file__).read_text(encoding="utf-8")
            return bool(re.search(rf"^(class|def) {thing.__name__}\b", source, re.MULTILINE))
        return super()._from_module(module, thing)


def doctests():
    """The examples of every module that has some, by its name."""
    for name in modules_of(regard):
        if name.endswith((".__main__", "._core", "._openmp", "._cuda")):
            continue
        tests = Finder().find(importlib.import_module(name))
        if shown := [test for test in tests if test.examples]:
            yield name, shown


def pages(pattern):
    """What shows Python code, and that code."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if path.parent.name == "learn":  # tests/learn runs the programs that these pages show
            continue
        if blocks := pattern.findall(path.read_text(encoding="utf-8")):
            yield path.relative_to(ROOT).as_posix(), blocks


DOCTESTS = dict(doctests())
PAGES, EXECUTED = dict(pages(PYTHON_BLOCK)), dict(pages(CELL))


@pytest.fixture
def default_threads(request):
    """One thread or three, in turn."""
    regard.set_num_threads((1, 3)[zlib.crc32(request.node.nodeid.encode()) % 2])
    yield
    regard.set_num_threads(None)


@pytest.mark.usefixtures("target", "default_threads")
@pytest.mark.parametrize("module", DOCTESTS)
def test_docstrings(module):
    for test in DOCTESTS[module]:
        assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0, test.name


def test_every_public_function_is_called_in_an_example():
    examples = (
        example for tests in DOCTESTS.values() for test in tests for example in test.examples
    )
    shown = {
        name for example in examples for name in re.findall(r"\bregard\.(\w+)", example.source)
    }
    functions = {name for name in regard.__all__ if inspect.isfunction(getattr(regard, name))}
    assert functions <= shown


@pytest.fixture
def figures():
    """None are left open, of which matplotlib warns when they are many."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.mark.usefixtures("target", "default_threads", "figures")
@pytest.mark.parametrize("page", PAGES)
def test_pages(page):
    for package in PAGES_THAT_NEED.get(page, ()):
        if not is_installed(package):
            pytest.skip(f"pip install {package}")
    namespace = {}
    for block in PAGES[page]:
        exec(compile(block, page, "exec"), namespace)
    if page == "README.md":
        assert namespace["output"].shape == (1, 8, 100, 64)
        assert namespace["weights"].shape == (8, 100, 100)
        assert namespace["lse"].shape == (1, 8, 100)
        assert namespace["context"].shape == (6, 2)


@pytest.mark.parametrize("page", EXECUTED)
def test_executed_pages(page):
    """What they print is on the site; here they must run, where there is no Sphinx either."""
    cells = EXECUTED[page]
    if any("regard.plot" in cell or "matplotlib" in cell for cell in cells):
        pytest.importorskip("matplotlib", reason="pip install matplotlib").use("agg")
    namespace = {}
    for cell in cells:
        exec(compile(cell, page, "exec"), namespace)
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
