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

from notebooks import assert_prints

PAGES = Path(__file__).parent.parent.parent / "docs" / "notebooks"
sys.path.insert(0, str(PAGES.parent))
import write_results  # noqa: E402

PRINTED = {
    "context-vector": {
        "w_query": "[[-0.1115, 0.1204], [-0.3696, -0.2404], [-1.1969, 0.2093]]",
        "w_key": "[[-0.9724, -0.7550], [0.3239, -0.1085], [0.2103, -0.3908]]",
        "w_value": "[[0.2350, 0.6653], [0.3528, 0.9728], [-0.0386, -0.8861]]",
        "query_2": "[-0.8158, 0.1573]",
        "key_2": "[-0.5488, -0.8030]",
        "value_2": "[0.2256, 0.2062]",
        "scores_2": "[0.2868, 0.3214, -0.1159, 0.3350, 0.1540, -0.0857]",
        "weights_2": "[0.1821, 0.1867, 0.1370, 0.1885, 0.1658, 0.1400]",
        "context_2": "[0.2413, 0.2311]",
        "weights_16": """
            [[0.1678, 0.1681, 0.1644, 0.1683, 0.1667, 0.1647],
             [0.1681, 0.1685, 0.1639, 0.1686, 0.1667, 0.1642],
             [0.1681, 0.1687, 0.1634, 0.1691, 0.1668, 0.1639],
             [0.1683, 0.1688, 0.1634, 0.1690, 0.1667, 0.1638],
             [0.1684, 0.1689, 0.1632, 0.1691, 0.1667, 0.1636],
             [0.1686, 0.1692, 0.1628, 0.1694, 0.1667, 0.1632]]""",
        "context_16": """
            [[0.2383, 0.2178], [0.2384, 0.2181], [0.2384, 0.2181],
             [0.2384, 0.2183], [0.2384, 0.2184], [0.2385, 0.2185]]""",
        "layer_context": """
            [[-0.5282, -0.0051], [-0.5288, -0.0036], [-0.5276, -0.0066],
             [-0.5289, -0.0040], [-0.5289, -0.0032], [-0.5287, -0.0033]]""",
    },
    "causal-mask": {
        "scores": """
            [[ 0.20138332,  1.18844554, -2.49210879, -0.35348884],
             [ 2.36274522, -0.97556009, -0.35245351, -2.76014537],
             [ 1.77648308, -1.23734722,  0.19645048, -1.20126238],
             [-2.05108275,  2.3577449 , -3.71938331,  2.5006384 ]]""",
        "masked": """
            [[ 0.07119975,        -inf,        -inf,        -inf],
             [ 0.83535658, -0.34491258,        -inf,        -inf],
             [ 0.62808162, -0.4374683 ,  0.06945573,        -inf],
             [-0.72516726,  0.8335887 , -1.31500058,  0.88410919]]""",
        "attention": """
            [[1.        , 0.        , 0.        , 0.        ],
             [0.7649962 , 0.2350038 , 0.        , 0.        ],
             [0.52177556, 0.17977168, 0.29845276, 0.        ],
             [0.08844457, 0.4203686 , 0.04903541, 0.44215143]]""",
    },
    "positional-encoding": {
        "x": """
            [[0.3745 1.9507 0.732  1.5987 0.156  1.156  0.0581 1.8662]
             [1.4426 1.2484 0.1204 1.9649 0.8424 1.2123 0.1828 1.1834]
             [1.2135 0.1086 0.6306 1.2713 0.6319 1.1393 0.2941 1.3664]]""",
        "scores": """
            [[119.7964 141.6248 114.3513]
             [121.1941 143.8183 116.3466]
             [ 93.9901 111.9071  90.0504]]""",
        "weights": """
            [[1.     0.     0.    ]
             [0.0003 0.9997 0.    ]
             [0.0018 0.9978 0.0004]]""",
        "output": """
            [[3.034  3.6074 5.1513 3.2015 3.5217 3.7557 5.0402 3.6896]
             [3.4628 3.8556 5.9131 3.1644 4.0227 3.95   4.6532 5.1311]
             [3.4618 3.8548 5.9114 3.1642 4.0219 3.9492 4.6535 5.1286]]""",
    },
    "trainable-weights": {
        "query_2": "[0.4306, 1.4551]",
        "key_2": "[0.4433, 1.1419]",
        "scores_2": "[1.2705, 1.8524, 1.8111, 1.0795, 0.5577, 1.5440]",
        "weights_2": "[0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820]",
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


@pytest.mark.parametrize("page", PRINTED)
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
