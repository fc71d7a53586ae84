"""The four notebooks, to the digits that they print, and the site's notebooks, which compute the
last of these numbers.

Each test starts from the numbers of its notebook: PyTorch's random stream, NumPy's random stream,
or printed inputs.
"""

import contextlib
import io
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import regard

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


def parsed(text, rows):
    return parse(text, (rows, -1))[0]


def stages(query, key, value, mask=None, factor=None):
    """Compute attention by the four stages, one after another."""
    factor = 1 / math.sqrt(query.shape[-1]) if factor is None else factor
    scores = regard.scale(regard.matmul(query, key.T), factor)
    if mask is not None:
        scores = regard.apply_mask(scores, mask)
    weights = regard.softmax(scores)
    return regard.matmul(weights, value), weights


def assert_fused_is_stages(query, key, value, mask=None, **options):
    """Return output and weights of the fused call, which must agree with the stages."""
    factor = options.get("scale")
    hidden = regard.masks.causal(len(query)) if options.get("is_causal") else mask
    fused = regard.scaled_dot_product_attention(
        query, key, value, mask, return_weights=True, **options
    )
    # Every stage rounds once more than the fused call, and the rounding grows with the scores.
    eps = np.finfo(query.dtype).eps
    spread = np.abs(query).sum(axis=-1).max() * np.abs(key).max() / math.sqrt(query.shape[-1])
    for actual, wanted in zip(fused, stages(query, key, value, hidden, factor), strict=True):
        assert actual.dtype == wanted.dtype
        size = max(1, np.abs(wanted).max())
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=(4 + 4 * spread) * eps * size)
        assert np.array_equal(actual == 0, wanted == 0)
    return fused


DREAM = np.array(
    [
        [0.72, 0.45, 0.31],
        [0.75, 0.20, 0.55],
        [0.30, 0.80, 0.40],
        [0.85, 0.35, 0.60],
        [0.55, 0.15, 0.75],
        [0.25, 0.20, 0.85],
    ],
    np.float32,
)


def dream():
    """Return queries, keys and values of the sentence."""
    generator = regard.TorchGenerator(123)
    return [regard.matmul(DREAM, generator.randn(3, 2)) for _ in range(3)]


def test_000_keys(target):
    _, keys, _ = dream()
    # The notebook ran on a machine without fused multiply-add. The last of these numbers is a small
    # difference of larger terms, so this shows in its fourth digit, in PyTorch as well.
    terms = np.abs(DREAM) @ np.abs(regard.TorchGenerator(123).randn(6, 2)[3:])
    assert_prints(
        keys,
        """[[-4.8914e-01, -7.1363e-01],
            [-5.4880e-01, -8.0295e-01],
            [ 5.1548e-02, -4.6967e-01],
            [-5.8694e-01, -9.1428e-01],
            [-3.2846e-01, -7.2469e-01],
            [ 4.7331e-04, -5.4268e-01]]""",
        rounding=np.finfo(np.float32).eps * terms,
    )


def test_000_context_vector_of_token_2(target):
    queries, keys, values = dream()
    own = float(regard.matmul(queries[1], keys[1]))
    assert abs(own - 0.3214397430419922) <= 4 * 2.0**-25, "four roundings"
    row = "[ 0.2868,  0.3214, -0.1159,  0.3350,  0.1540, -0.0857]"
    assert_prints(regard.matmul(queries[1], keys.T), row)
    output, weights = assert_fused_is_stages(queries[1:2], keys, values)
    assert_prints(weights[0], "[0.1821, 0.1867, 0.1370, 0.1885, 0.1658, 0.1400]")
    assert_prints(output[0], "[0.2413, 0.2311]")
    whole_output, whole_weights = assert_fused_is_stages(queries, keys, values)
    assert np.array_equal(whole_output[1], output[0])
    assert np.array_equal(whole_weights[1], weights[0])


@pytest.mark.parametrize(
    ("factor", "wanted"),
    [
        (1, "[0.1925, 0.1426, 0.2351, 0.1426, 0.2872]"),
        (8, "[0.0326, 0.0030, 0.1615, 0.0030, 0.8000]"),
    ],
)
def test_000_softmax_peaks_with_the_scale_of_its_input(factor, wanted, dtype, target):
    x = np.array([0.1, -0.2, 0.3, -0.2, 0.5], dtype)
    assert_prints(regard.softmax(regard.scale(x, factor)), wanted)


# Each row of 8 fills two lines.
QUERY = parsed(
    """
    -0.27766923  0.30586403  0.01057463  0.36409474
    -0.41489623  1.15277481  0.63715732 -1.05318505
     -0.6823625  0.72444694  -1.4419607 -0.50095249
    -0.04408113  0.68822858  1.05971024 -0.10210544
    -0.74758765  0.58988275   0.2740787  0.33826729
     1.34593399  -0.1037819  0.87886222 -0.59395793
     0.45122425 -0.41196376  1.01399581  0.53620411
    -0.80208738  1.57122979 -0.97703709 -1.46250139
    """,
    rows=4,
)
KEY = parsed(
    """
     -0.4708874  1.64177464 -1.38780232  1.71701544
     1.01333479  0.62804628 -0.54720871  0.94657378
     0.27079892   0.3888408  1.06496911  0.07948627
     -1.4330064  0.13770432  0.31164302 -0.14493827
     1.11200785  1.39342085  0.45975428 -1.09075613
     0.65111229 -0.76908524  0.17459603  1.11260402
     1.95817072  0.52294909  0.84582026 -0.61544628
    -0.35686193 -0.79044713 -0.46193641 -1.23709805
    """,
    rows=4,
)
VALUE = parsed(
    """
     0.89056773 -0.87976587 -0.44480487  0.96568199
     1.63254008   1.2195493  0.71989661  0.77845321
    -0.90588885 -0.07982795 -1.01866175  1.84510543
     0.13146088 -1.32809874 -0.40017139  1.07784997
     0.38218721 -2.68105677  1.04859167  0.70093381
    -1.25073563  0.09439338 -2.07207328  -1.2197445
     1.18827287  1.06620003 -1.19065712  1.71442776
    -0.25029707  0.96933714  0.83646095 -1.27176068
    """,
    rows=4,
)
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
# The inputs are known to half a unit of the eighth decimal, which changes the scores by this much.
HALF = 0.5e-8
SCORE_ROUNDING = HALF * (np.abs(QUERY).sum(axis=1)[:, None] + np.abs(KEY).sum(axis=1))


def triangle():
    """Build the mask as the notebook does."""
    mask = np.tril(np.ones((4, 4)))
    mask[mask == 0] = -np.inf
    mask[mask == 1] = 0
    return mask


def test_001_mask_and_masked_scores(target):
    mask = triangle()
    assert np.array_equal(mask, regard.masks.as_additive(regard.masks.causal(4), np.float64))
    scaled = regard.scale(regard.matmul(QUERY, KEY.T), 1 / np.sqrt(8))
    for form in (mask, regard.masks.causal(4)):
        assert_prints(
            regard.apply_mask(scaled, form),
            """[[ 0.07119975,        -inf,        -inf,        -inf],
                [ 0.83535658, -0.34491258,        -inf,        -inf],
                [ 0.62808162, -0.4374683 ,  0.06945573,        -inf],
                [-0.72516726,  0.8335887 , -1.31500058,  0.88410919]]""",
            rounding=SCORE_ROUNDING / np.sqrt(8),
        )


def assert_001(output, weights):
    # A weight moves by its size times at most twice the change of a score.
    weight_rounding = 2 * SCORE_ROUNDING.max() / np.sqrt(8)
    assert_prints(weights, MASKED_WEIGHTS, rounding=weight_rounding * weights)
    assert_prints(output, NEW_VALUE, rounding=HALF + weight_rounding * np.abs(VALUE).max())
    assert np.array_equal(weights != 0, np.tri(4, dtype=bool))
    assert np.array_equal(output[0], VALUE[0])


@pytest.mark.parametrize(
    "options", [{"mask": triangle()}, {"mask": regard.masks.causal(4)}, {"is_causal": True}]
)
def test_001_attention(options, target):
    assert_001(*assert_fused_is_stages(QUERY, KEY, VALUE, **options))


def amazing_heads():
    """Return query, key and value of three words, drawn by NumPy."""
    random = np.random.RandomState(42)
    embeddings = np.array([random.rand(8) for _ in range(3)])
    inputs = embeddings + regard.positional.sinusoidal(3, 8)
    return [regard.matmul(inputs, random.rand(8, 8)) for _ in range(3)]


@pytest.mark.parametrize("options", [{"is_causal": True}, {"mask": regard.masks.causal(3)}])
def test_002_attention(options, target):
    query, key, value = amazing_heads()
    assert_prints(
        regard.scale(regard.matmul(query, key.T), 1 / np.sqrt(8)),
        """[[42.3544 50.0719 40.4293]
            [42.8486 50.8474 41.1347]
            [33.2305 39.5651 31.8376]]""",
    )
    output, weights = assert_fused_is_stages(query, key, value, **options)
    assert_prints(weights, AMAZING_WEIGHTS)
    assert_prints(output, AMAZING_OUTPUT)


JOURNEY = np.array(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ],
    np.float32,
)


def test_003_context_vectors(target):
    generator = regard.TorchGenerator(123)
    weights = [generator.rand(3, 2) for _ in range(3)]
    queries, keys, values = (regard.matmul(JOURNEY, weight) for weight in weights)
    row = "[1.2705, 1.8524, 1.8111, 1.0795, 0.5577, 1.5440]"
    assert_prints(regard.matmul(queries[1], keys.T), row)
    output, weights = assert_fused_is_stages(queries[1:2], keys, values)
    assert_prints(weights[0], "[0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820]")
    assert_prints(output[0], "[0.3061, 0.8210]")


@pytest.mark.parametrize("init", ["linear", "uniform", "normal"])
def test_a_layer_is_the_stages(init, target):
    layer = regard.SelfAttention(3, 2, init=init, rng=regard.TorchGenerator(123))
    weights = layer.state_dict().values()
    heads = [regard.matmul(JOURNEY, w.T if init == "linear" else w) for w in weights]
    wanted = assert_fused_is_stages(*heads)
    for actual, exact in zip(layer(JOURNEY, return_weights=True), wanted, strict=True):
        assert np.array_equal(actual, exact)


# The site's notebooks


PRINTED = {
    "context-vector": {
        "context_2": "[0.2413, 0.2311]",
        "context_16": WITH_16,
        "layer_context": LAYER,
    },
    "causal-mask": {"attention": MASKED_WEIGHTS},
    "positional-encoding": {"output": AMAZING_OUTPUT},
    "trainable-weights": {
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
