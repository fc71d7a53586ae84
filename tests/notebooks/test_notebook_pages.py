"""The site's notebooks compute the numbers that their source notebooks print, to the digits
printed."""

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from printed import assert_prints

PAGES = Path(__file__).parent.parent.parent / "docs" / "notebooks"
sys.path.insert(0, str(PAGES.parent))
import write_results  # noqa: E402

# The last numbers of each page, which need all others.
PRINTED = {
    "context-vector": {
        "context_2": "[0.2413, 0.2311]",
        "context_16": """
            [[0.2383, 0.2178], [0.2384, 0.2181], [0.2384, 0.2181],
             [0.2384, 0.2183], [0.2384, 0.2184], [0.2385, 0.2185]]""",
        "layer_context": """
            [[-0.5282, -0.0051], [-0.5288, -0.0036], [-0.5276, -0.0066],
             [-0.5289, -0.0040], [-0.5289, -0.0032], [-0.5287, -0.0033]]""",
    },
    "causal-mask": {
        "attention": """
            [[1.        , 0.        , 0.        , 0.        ],
             [0.7649962 , 0.2350038 , 0.        , 0.        ],
             [0.52177556, 0.17977168, 0.29845276, 0.        ],
             [0.08844457, 0.4203686 , 0.04903541, 0.44215143]]""",
    },
    "positional-encoding": {
        "output": """
            [[3.034  3.6074 5.1513 3.2015 3.5217 3.7557 5.0402 3.6896]
             [3.4628 3.8556 5.9131 3.1644 4.0227 3.95   4.6532 5.1311]
             [3.4618 3.8548 5.9114 3.1642 4.0219 3.9492 4.6535 5.1286]]""",
    },
    "trainable-weights": {
        "context_2": "[0.3061, 0.8210]",
        "context_1": """
            [[1.4035, 1.0391], [1.4410, 1.0669], [1.4391, 1.0655],
             [1.3786, 1.0178], [1.3653, 1.0086], [1.4025, 1.0361]]""",
        "context_v2": """
            [[-0.0739, 0.0713], [-0.0748, 0.0703], [-0.0749, 0.0702],
             [-0.0760, 0.0685], [-0.0763, 0.0679], [-0.0754, 0.0693]]""",
    },
}
# This notebook does not print all digits of its inputs, so the last digit of a result may differ.
ROUNDING = {"causal-mask": 5e-8}


def cells(page):
    """Return the source and the printed output of each code cell."""
    notebook = json.loads((PAGES / f"{page}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            streams = [out for out in cell["outputs"] if out["output_type"] == "stream"]
            yield "".join(cell["source"]), "".join("".join(out["text"]) for out in streams)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page == "context-vector")) for page in PRINTED],
)
def test_a_page_computes_the_numbers_of_its_notebook(page):
    namespace = {}
    for source, printed in cells(page):
        if "plot" in source and "assert" not in source:
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(without_pictures(source), page, "exec"), namespace)
        assert write_results.is_same(printed, output.getvalue()), output.getvalue()
    for name, text in PRINTED[page].items():
        assert_prints(np.asarray(namespace[name]), text, rounding=ROUNDING.get(page, 0.0))


def without_pictures(cell):
    """The lines of a cell that need no matplotlib."""
    return "\n".join(line for line in cell.splitlines() if "plot" not in line)


@pytest.mark.parametrize("page", PRINTED)
def test_notebooks_are_executed(page):
    """jupyter execute --inplace docs/notebooks/*.ipynb"""
    notebook = json.loads((PAGES / f"{page}.ipynb").read_text(encoding="utf-8"))
    outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", ())]
    assert not [out for out in outputs if out["output_type"] == "error"]
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]
    wanted = sum("plot" in source for source, _ in cells(page))
    assert 0 < len(pictures) <= wanted


def test_the_index_names_every_notebook():
    named = set(re.findall(r"\(([\w-]+)\.ipynb\)", (PAGES / "index.md").read_text("utf-8")))
    assert named == set(PRINTED) == {path.stem for path in PAGES.glob("*.ipynb")}
