"""The site's notebooks compute the numbers that their source notebooks print, to the digits
printed."""

import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np
import printed
import pytest

PAGES = Path(__file__).parent.parent.parent / "docs" / "notebooks"
sys.path.insert(0, str(PAGES.parent))
import write_results  # noqa: E402

PRINTED = {
    "context-vector": {
        "context_2": "[0.2413, 0.2311]",
        "context_16": printed.WITH_16,
        "layer_context": printed.LAYER,
    },
    "causal-mask": {"attention": printed.MASKED_WEIGHTS},
    "positional-encoding": {"output": printed.AMAZING_OUTPUT},
    "trainable-weights": {
        "context_2": "[0.3061, 0.8210]",
        "context_1": printed.UNIFORM,
        "context_v2": printed.VERSION_2,
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
    for source, shown in cells(page):
        if "plot" in source and "assert" not in source:
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(without_pictures(source), page, "exec"), namespace)
        assert write_results.is_same(shown, output.getvalue()), output.getvalue()
    for name, text in PRINTED[page].items():
        printed.assert_prints(np.asarray(namespace[name]), text, rounding=ROUNDING.get(page, 0.0))


def without_pictures(cell):
    """The lines of a cell that need no matplotlib."""
    return "\n".join(line for line in cell.splitlines() if "plot" not in line)
