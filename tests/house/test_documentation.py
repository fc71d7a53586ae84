"""Every example in a docstring, in the README or in docs/ runs and prints the output shown, on
every target and with any number of threads."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
import sys
import zlib
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parent.parent.parent
# Modules that import a package that may be missing, or need it for their examples.
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
    "docs/guide/pictures.md": ["matplotlib"],
    "docs/guide/recording.md": ["torch", "transformers"],
    "docs/guide/score-functions.md": ["numba"],
    "docs/guide/torch.md": ["torch"],
    "docs/guide/transformers.md": ["torch", "transformers"],
    "docs/guide/variants.md": ["numba"],
}
sys.path += [str(ROOT / "docs"), str(ROOT / "docs" / "figures")]
import write as drawings  # noqa: E402
import write_results  # noqa: E402


def is_installed(package):
    """Return whether a package can be imported. A folder of tests with its name does not count."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


class Finder(doctest.DocTestFinder):
    """Find what a module defines, even if it claims to be from the module that users import."""

    def _from_module(self, module, thing):
        owner = getattr(thing, "__module__", None)
        name = getattr(thing, "__qualname__", ".")  # a cached_property has none
        if f"{module.__name__}.".startswith(f"{owner}.") and "." not in name:
            source = Path(module.__file__).read_text(encoding="utf-8")
            return bool(re.search(rf"^(class|def) {thing.__name__}\b", source, re.MULTILINE))
        return super()._from_module(module, thing)


def doctests(package):
    """Yield the examples of every module that has some, by its name."""
    for path in package.__path__:
        for found in pkgutil.iter_modules([path], f"{package.__name__}."):
            needed = OPTIONAL.get(found.name)
            if found.name.endswith((".__main__", "._core", "._openmp", "._cuda")) or (
                needed and not is_installed(needed)
            ):
                continue
            module = importlib.import_module(found.name)
            if shown := [test for test in Finder().find(module) if test.examples]:
                yield found.name, shown
            if found.ispkg:
                yield from doctests(module)


def pages():
    """Yield the pages that show Python code, with each example and the output shown after it."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if path.parent.name == "learn":  # tests/learn runs the programs that these pages show
            continue
        if examples := list(write_results.examples(path.read_text(encoding="utf-8"))):
            yield path.relative_to(ROOT).as_posix(), examples


DOCTESTS = {"regard": Finder().find(regard)} | dict(doctests(regard))
PAGES = dict(pages())


@pytest.fixture
def default_threads(request):
    """Use one thread or three, depending on the test."""
    regard.set_num_threads((1, 3)[zlib.crc32(request.node.nodeid.encode()) % 2])
    yield
    regard.set_num_threads(None)


@pytest.mark.usefixtures("target", "default_threads")
@pytest.mark.parametrize("module", DOCTESTS)
def test_docstrings(module):
    for test in DOCTESTS[module]:
        assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0, test.name


@pytest.fixture
def figures():
    """Close all figures: matplotlib warns when many are open."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.mark.usefixtures("target", "default_threads", "figures")
@pytest.mark.parametrize("page", PAGES)
def test_pages(page):
    """Examples run, and print what the page shows: nothing else, and nothing if it shows none."""
    for package in PAGES_THAT_NEED.get(page, ()):
        if not is_installed(package):
            pytest.skip(f"pip install {package}")
    namespace = {}
    for code, shown in PAGES[page]:
        output = write_results.printed(code, page, namespace)
        if shown is not None:
            assert write_results.is_same(shown, output), output


@pytest.mark.parametrize("name", drawings.drawings())
def test_a_drawing_is_up_to_date(name):
    """python docs/figures/write.py"""
    drawing = (ROOT / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    assert drawing.partition("\n")[0] == drawings.source_of(name)
