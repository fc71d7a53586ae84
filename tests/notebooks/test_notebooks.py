"""The four notebooks, to the digits that they print: embeddings, stages, fused calls and layers.

Each test starts from the numbers of its notebook: PyTorch's random stream, NumPy's random stream,
or printed inputs.
"""

import numpy as np
import pytest
from printed import (
    AMAZING_OUTPUT,
    AMAZING_WEIGHTS,
    LAYER,
    MASKED_WEIGHTS,
    UNIFORM,
    VERSION_2,
    WITH_16,
    assert_fused_is_stages,
    assert_prints,
    parsed,
)

import regard

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


def test_000_all_queries_with_the_scale_that_the_loop_left(target):
    """The notebook computes this table with d_k = 256, the last value of an earlier loop."""
    assert_prints(assert_fused_is_stages(*dream(), scale=1 / 16)[0], WITH_16)


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


def test_000_class(target):
    layer = regard.SelfAttention(3, 2, rng=regard.TorchGenerator(123))
    assert_prints(layer(DREAM), LAYER)


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


def test_002_unscaled_scores_do_not_overflow(target):
    """One of the scores is 143.8, whose exponential is too large for float32."""
    heads = [x.astype(np.float32) for x in amazing_heads()]
    output, weights = assert_fused_is_stages(*heads, scale=1.0)
    assert np.isfinite(output).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)


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
    # The layers of the notebook: the first continues the same stream of random numbers.
    layer = regard.SelfAttention(3, 2, init="uniform", rng=generator)
    assert_prints(layer(JOURNEY), UNIFORM)
    layer = regard.SelfAttention(3, 2, rng=regard.TorchGenerator(789))
    assert_prints(layer(JOURNEY), VERSION_2)


@pytest.mark.parametrize("init", ["linear", "uniform", "normal"])
def test_a_layer_is_the_stages(init, target):
    layer = regard.SelfAttention(3, 2, init=init, rng=regard.TorchGenerator(123))
    weights = layer.state_dict().values()
    heads = [regard.matmul(JOURNEY, w.T if init == "linear" else w) for w in weights]
    wanted = assert_fused_is_stages(*heads)
    for actual, exact in zip(layer(JOURNEY, return_weights=True), wanted, strict=True):
        assert np.array_equal(actual, exact)
