"""The site's notebooks compute what four notebooks of others print, step by step, from the numbers
that these start from: PyTorch's random stream, NumPy's random stream, or printed inputs."""

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

PAGES = Path(__file__).parent.parent.parent / "docs" / "notebooks"
sys.path.insert(0, str(PAGES.parent))
import write_results  # noqa: E402

# The last numbers that the notebooks print, which need all others.
WITH_16 = """
    [[0.2383, 0.2178], [0.2384, 0.2181], [0.2384, 0.2181],
     [0.2384, 0.2183], [0.2384, 0.2184], [0.2385, 0.2185]]"""
LAYER = """
    [[-0.5282, -0.0051], [-0.5288, -0.0036], [-0.5276, -0.0066],
     [-0.5289, -0.0040], [-0.5289, -0.0032], [-0.5287, -0.0033]]"""
MASKED_WEIGHTS = """
    [[1.        , 0.        , 0.        , 0.        ],
     [0.7649962 , 0.2350038 , 0.        , 0.        ],
     [0.52177556, 0.17977168, 0.29845276, 0.        ],
     [0.08844457, 0.4203686 , 0.04903541, 0.44215143]]"""
MASKED_SCORES = """
    [[ 0.07119975,        -inf,        -inf,        -inf],
     [ 0.83535658, -0.34491258,        -inf,        -inf],
     [ 0.62808162, -0.4374683 ,  0.06945573,        -inf],
     [-0.72516726,  0.8335887 , -1.31500058,  0.88410919]]"""
NEW_VALUE = """
     0.89056773 -0.87976587 -0.44480487  0.96568199
     1.63254008   1.2195493  0.71989661  0.77845321
      0.4683936 -0.69177741 -0.57966342  1.17234985
     1.27978076  0.62084232  0.45667637  0.84881258
     0.41588814 -1.27355992 -0.10225977   1.0447626
     0.50216696  0.42574844 -0.31473101  0.23590865
     0.24209591  0.22858748 -0.94258661  1.65344097
     0.02765179 -0.01720608   0.1636889 -0.10017723
"""
AMAZING_WEIGHTS = """
    [1.     0.     0.    ]
    [0.0003 0.9997 0.    ]
    [0.0018 0.9978 0.0004]"""
AMAZING_OUTPUT = """
    [[3.034  3.6074 5.1513 3.2015 3.5217 3.7557 5.0402 3.6896]
     [3.4628 3.8556 5.9131 3.1644 4.0227 3.95   4.6532 5.1311]
     [3.4618 3.8548 5.9114 3.1642 4.0219 3.9492 4.6535 5.1286]]"""
UNIFORM = """
    [[1.4035, 1.0391], [1.4410, 1.0669], [1.4391, 1.0655],
     [1.3786, 1.0178], [1.3653, 1.0086], [1.4025, 1.0361]]"""
VERSION_2 = """
    [[-0.0739, 0.0713], [-0.0748, 0.0703], [-0.0749, 0.0702],
     [-0.0760, 0.0685], [-0.0763, 0.0679], [-0.0754, 0.0693]]"""

NUMBER = re.compile(r"[-+]?(?:inf|\d+\.?\d*(?:e[-+]\d+)?)")


def parse(text, shape):
    """Return the numbers of a printed array, and half a unit of their last digits.

    Without exponents, all numbers of an array are printed to the same number of decimals, and
    trailing zeros are left out.
    """
    tokens = NUMBER.findall(text)
    decimals = max(len(token.partition("e")[0].partition(".")[2]) for token in tokens)
    units = [10.0 ** (int(token.partition("e")[2] or 0) - decimals) for token in tokens]
    return np.array(tokens, float).reshape(shape), np.array(units).reshape(shape) / 2


def assert_prints(actual, text, rounding=0.0):
    """Compare to the last digit of `text`, with an allowance for `rounding` of the inputs."""
    wanted, half = parse(text, np.shape(actual))
    finite = np.isfinite(wanted)
    assert np.array_equal(actual[~finite], wanted[~finite])
    difference = np.abs(np.where(finite, actual, 0.0) - np.where(finite, wanted, 0.0))
    assert (difference <= half * (1 + 1e-6) + rounding).all(), f"{actual}\nis not\n{text}"


PRINTED = {
    "context-vector": {
        "weights_2": "[0.1821, 0.1867, 0.1370, 0.1885, 0.1658, 0.1400]",
        "context_2": "[0.2413, 0.2311]",
        "context_16": WITH_16,
        "layer_context": LAYER,
    },
    "causal-mask": {"masked": MASKED_SCORES, "attention": MASKED_WEIGHTS, "output": NEW_VALUE},
    "positional-encoding": {"weights": AMAZING_WEIGHTS, "output": AMAZING_OUTPUT},
    "trainable-weights": {
        "weights_2": "[0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820]",
        "context_2": "[0.3061, 0.8210]",
        "context_1": UNIFORM,
        "context_v2": VERSION_2,
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
            without_pictures = [line for line in source.splitlines() if "plot" not in line]
            exec(compile("\n".join(without_pictures), page, "exec"), namespace)
        assert write_results.is_same(shown, output.getvalue()), output.getvalue()
    for name, text in PRINTED[page].items():
        assert_prints(np.asarray(namespace[name]), text, rounding=ROUNDING.get(page, 0.0))
