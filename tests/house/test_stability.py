"""The reference documents every public name, and experimental names say so."""

import importlib
import re
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parent.parent.parent
PAGES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "api").glob("*.md"))]
NEEDS = {
    "regard.dask": "dask",
    "regard.jax": "jax",
    "regard.plot": "matplotlib",
    "regard.torch": "torch",
    "regard.transformers": "transformers",
}
MODULES = sorted(
    f"regard.{path.name}"
    for path in Path(regard.__file__).parent.iterdir()
    if (path / "__init__.py").exists() and not path.name.startswith("_")
)
SUBMODULES = {"checkpoints", "layers", "masks", "models", "plot", "positional"}


@pytest.mark.parametrize("module", ["regard", *MODULES])
def test_every_public_name_is_in_the_reference(module):
    """A page of docs/api documents each name, and lists it in the table at its top."""
    if module in NEEDS:
        pytest.importorskip(NEEDS[module], reason=f"pip install {NEEDS[module]}")
    # `regard.__all__` leaves out modules whose package is not installed.
    names = (
        set(regard._NAMES) - SUBMODULES - {"__version__"}
        if module == "regard"
        else importlib.import_module(module).__all__
    )
    for name in names:
        documented = (
            rf"^\.\. auto(?:module:: {re.escape(module)}\n   :members:$"
            rf"|\w+:: (?:{re.escape(module)}\.)?{name}$)"
        )
        summarized = rf"^   (?:{re.escape(module)}\.)?{name}$"
        found = [page for page in PAGES if re.search(documented, page, re.MULTILINE)]
        assert found, f"no page of docs/api documents {module}.{name}"
        assert any(re.search(summarized, page, re.MULTILINE) for page in found), name


def test_experimental_docstrings_say_so():
    models = importlib.import_module("regard.models")
    for documented in [
        importlib.import_module("regard.cuda"),
        *(getattr(models, name) for name in models.__all__),
    ]:
        assert "experimental" in documented.__doc__.lower()
