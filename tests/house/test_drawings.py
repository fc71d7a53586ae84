"""Drawings that documents show are those of their modules."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
SPEC = spec_from_file_location("write_drawings", DOCS / "figures" / "write.py")
WRITE = module_from_spec(SPEC)
SPEC.loader.exec_module(WRITE)
# The measured steps, and the map of the source, are made by hand or by measuring.
SHOWN = {
    name
    for page in DOCS.rglob("*.md")
    for name in re.findall(r"\]\([./]*figures/(\w+)\.svg\)", page.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("name", WRITE.drawings())
def test_a_drawing_is_up_to_date(name):
    """python docs/figures/write.py"""
    first = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8").partition("\n")[0]
    assert first == WRITE.source_of(name)


def test_every_drawing_is_shown_and_exists():
    assert {*WRITE.drawings(), "learn_all_steps"} == SHOWN, "python docs/figures/write.py"
    steps = DOCS / "figures" / "learn_all_steps.svg"
    assert steps.exists(), "python docs/write_results.py --programs all_steps.py"
