"""The page of public names lists all of them, each with its status, and nothing else."""

import importlib
import re
from pathlib import Path

import pytest

import regard

PAGE = Path(__file__).parent.parent.parent / "docs" / "api" / "stability.md"
TEXT = PAGE.read_text(encoding="utf-8")
NEEDS = {
    "regard.dask": "dask",
    "regard.jax": "jax",
    "regard.plot": "matplotlib",
    "regard.torch": "torch",
    "regard.transformers": "transformers",
}


def listed():
    """Return the names of each module on the page, with their status."""
    sections = re.split(r"^### (regard[\w.]*)$", TEXT, flags=re.MULTILINE)[1:]
    return {
        module: dict(re.findall(r"^\| `(\w+)` \| (\w+) \|$", text, re.MULTILINE))
        for module, text in zip(sections[::2], sections[1::2], strict=True)
    }


LISTED = listed()


def public_names(module):
    # `regard.__all__` leaves out modules whose package is not installed.
    return regard._NAMES if module == "regard" else importlib.import_module(module).__all__


@pytest.mark.parametrize("module", LISTED)
def test_every_public_name_has_a_status(module):
    if module in NEEDS:
        pytest.importorskip(NEEDS[module], reason=f"pip install {NEEDS[module]}")
    differing = set(LISTED[module]) ^ set(public_names(module))
    assert not differing, f"docs/api/stability.md must list each name of {module}: {differing}"
    assert set(LISTED[module].values()) <= {"stable", "experimental"}


def test_every_public_module_is_listed():
    folders = (Path(regard.__file__).parent).iterdir()
    public = {
        f"regard.{path.name}"
        for path in folders
        if (path / "__init__.py").exists() and not path.name.startswith("_")
    }
    assert set(LISTED) == {"regard", *public}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (module, name)
        for module, names in LISTED.items()
        for name, status in names.items()
        if status == "experimental"
    ],
)
def test_experimental_docstrings_say_so(module, name):
    found = importlib.import_module(module)
    documented = found if module == "regard.cuda" else getattr(found, name)
    assert "experimental" in documented.__doc__.lower()


@pytest.mark.parametrize("module", LISTED)
def test_every_name_has_a_place_in_the_reference(module):
    """A page of docs/api documents each name, and lists it in the table at its top."""
    pages = [path.read_text(encoding="utf-8") for path in sorted(PAGE.parent.glob("*.md"))]
    for name in set(LISTED[module]) - {
        "__version__",
        "checkpoints",
        "layers",
        "masks",
        "models",
        "plot",
    }:
        if (module, name) == ("regard", "positional"):
            continue
        documented = rf"^\.\. auto\w+:: (?:{re.escape(module)}\.)?{name}$"
        summarized = rf"^   (?:{re.escape(module)}\.)?{name}$"
        found = [page for page in pages if re.search(documented, page, re.MULTILINE)]
        assert found, f"no page of docs/api documents {module}.{name}"
        assert any(re.search(summarized, page, re.MULTILINE) for page in found), name


def test_the_page_names_the_version():
    assert regard.__version__.split(".")[0] == re.search(r"all versions (\d+)\.x", TEXT)[1]
