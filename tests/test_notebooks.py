"""Four notebooks of self-attention, to the digits that they print.

Each starts from the same numbers: PyTorch's random stream, NumPy's, or what it prints. The texts
below are its printed arrays.
"""

import functools
import math
import re

import numpy as np
import pytest

import regard

NUMBER = re.compile(r"[-+]?(?:inf|\d+\.?\d*(?:e[-+]\d+)?)")


def parse(text, shape):
    """The numbers of a printed array and half a unit of their last digit.

    Without exponents all numbers of an array are printed to the same number of decimals, of which
    trailing zeros are left out.
    """
    tokens = NUMBER.findall(text)
    decimals = max(len(token.partition("e")[0].partition(".")[2]) for token in tokens)
    units = [10.0 ** (int(token.partition("e")[2] or 0) - decimals) for token in tokens]
    return np.array(tokens, float).reshape(shape), np.array(units).reshape(shape) / 2


def assert_prints(actual, text, rounding=0.0):
    """Equal to the last digit of `text`, allowing for `rounding` of the numbers it came from."""
    wanted, half = parse(text, np.shape(actual))
    finite = np.isfinite(wanted)
    assert np.array_equal(actual[~finite], wanted[~finite])
    difference = np.abs(np.where(finite, actual, 0.0) - np.where(finite, wanted, 0.0))
    assert (difference <= half * (1 + 1e-6) + rounding).all(), f"{actual}\nis not\n{text}"


def parsed(text, rows):
    return parse(text, (rows, -1))[0]


def stages(query, key, value, mask=None, factor=None):
    """Attention by the four stages, one by one."""
    factor = 1 / math.sqrt(query.shape[-1]) if factor is None else factor
    scores = regard.scale(regard.matmul(query, key.T), factor)
    if mask is not None:
        scores = regard.apply_mask(scores, mask)
    weights = regard.softmax(scores)
    return regard.matmul(weights, value), weights


def assert_fused_is_stages(query, key, value, mask=None, **options):
    """Return output and weights of the fused call, which the stages give too."""
    factor = options.get("scale")
    hidden = regard.masks.causal(len(query)) if options.get("is_causal") else mask
    fused = regard.scaled_dot_product_attention(
        query, key, value, mask, return_weights=True, **options
    )
    # Every stage rounds once more than the fused call; the scores are what the rounding grows with.
    eps = np.finfo(query.dtype).eps
    spread = np.abs(query).sum(axis=-1).max() * np.abs(key).max() / math.sqrt(query.shape[-1])
    for actual, wanted in zip(fused, stages(query, key, value, hidden, factor), strict=True):
        assert actual.dtype == wanted.dtype
        size = max(1, np.abs(wanted).max())
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=(4 + 4 * spread) * eps * size)
        assert_same_zeros(actual, wanted)
    return fused


def assert_same_zeros(actual, wanted):
    assert np.array_equal(actual == 0, wanted == 0)


# ---- 000: the context vector of a token ----------------------------------------------------------

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
    """Queries, keys and values of the sentence."""
    generator = regard.TorchGenerator(123)
    return [regard.matmul(DREAM, generator.randn(3, 2)) for _ in range(3)]


def test_000_weights():
    generator = regard.TorchGenerator(123)
    assert_prints(
        generator.randn(3, 2),
        """[[-0.1115,  0.1204],
            [-0.3696, -0.2404],
            [-1.1969,  0.2093]]""",
    )
    assert_prints(
        generator.randn(3, 2),
        """[[-0.9724, -0.7550],
            [ 0.3239, -0.1085],
            [ 0.2103, -0.3908]]""",
    )
    assert_prints(
        generator.randn(3, 2),
        """[[ 0.2350,  0.6653],
            [ 0.3528,  0.9728],
            [-0.0386, -0.8861]]""",
    )


def test_000_query_key_and_value_of_token_2(target):
    generator = regard.TorchGenerator(123)
    for text in ("[-0.8158,  0.1573]", "[-0.5488, -0.8030]", "[0.2256, 0.2062]"):
        assert_prints(regard.matmul(DREAM[1], generator.randn(3, 2)), text)


def test_000_queries_keys_and_values(target):
    queries, keys, values = dream()
    # The notebook's machine had no fused multiply-add. In the last of these, a small difference of
    # larger terms, that shows in the fourth digit; in PyTorch too.
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
    assert_prints(
        values,
        """[[ 0.3160,  0.6421],
            [ 0.2256,  0.2062],
            [ 0.3373,  0.6234],
            [ 0.3000,  0.3743],
            [ 0.1532, -0.1528],
            [ 0.0965, -0.3923]]""",
    )
    assert_prints(
        queries,
        """[[-0.6176,  0.0433],
            [-0.8158,  0.1573],
            [-0.8079, -0.0725],
            [-0.9423,  0.1437],
            [-1.0144,  0.1871],
            [-1.1192,  0.1599]]""",
    )


def test_000_scores(target):
    queries, keys, _ = dream()
    own = float(regard.matmul(queries[1], keys[1]))
    assert abs(own - 0.3214397430419922) <= 4 * 2.0**-25, "four roundings"
    row = "[ 0.2868,  0.3214, -0.1159,  0.3350,  0.1540, -0.0857]"
    assert_prints(regard.matmul(queries[1], keys.T), row)
    assert_prints(
        regard.matmul(queries, keys.T),
        """[[ 0.2712,  0.3042, -0.0522,  0.3229,  0.1715, -0.0238],
            [ 0.2868,  0.3214, -0.1159,  0.3350,  0.1540, -0.0857],
            [ 0.4469,  0.5016, -0.0076,  0.5405,  0.3179,  0.0390],
            [ 0.3583,  0.4017, -0.1161,  0.4217,  0.2053, -0.0784],
            [ 0.3627,  0.4065, -0.1402,  0.4244,  0.1976, -0.1020],
            [ 0.4333,  0.4858, -0.1328,  0.5107,  0.2517, -0.0873]]""",
    )


def test_000_context_vector_of_token_2(target):
    queries, keys, values = dream()
    output, weights = assert_fused_is_stages(queries[1:2], keys, values)
    assert_prints(weights[0], "[0.1821, 0.1867, 0.1370, 0.1885, 0.1658, 0.1400]")
    assert_prints(output[0], "[0.2413, 0.2311]")
    whole_output, whole_weights = assert_fused_is_stages(queries, keys, values)
    assert np.array_equal(whole_output[1], output[0])
    assert np.array_equal(whole_weights[1], weights[0])


def test_000_all_queries_with_the_scale_that_the_loop_left(target):
    """The notebook computes this table with d_k = 256, the last value of a loop before it."""
    output, weights = assert_fused_is_stages(*dream(), scale=1 / 16)
    assert_prints(
        weights,
        """[[0.1678, 0.1681, 0.1644, 0.1683, 0.1667, 0.1647],
            [0.1681, 0.1685, 0.1639, 0.1686, 0.1667, 0.1642],
            [0.1681, 0.1687, 0.1634, 0.1691, 0.1668, 0.1639],
            [0.1683, 0.1688, 0.1634, 0.1690, 0.1667, 0.1638],
            [0.1684, 0.1689, 0.1632, 0.1691, 0.1667, 0.1636],
            [0.1686, 0.1692, 0.1628, 0.1694, 0.1667, 0.1632]]""",
    )
    assert_prints(
        output,
        """[[0.2383, 0.2178],
            [0.2384, 0.2181],
            [0.2384, 0.2181],
            [0.2384, 0.2183],
            [0.2384, 0.2184],
            [0.2385, 0.2185]]""",
    )


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


VARIANCES = {
    8: "8.1428, 1.0179",
    16: "15.9418, 0.9964",
    32: "32.1296, 1.0040",
    64: "63.9599, 0.9994",
    128: "128.0868, 1.0007",
    256: "256.2036, 1.0008",
}


@functools.cache
def samples():
    """The notebook goes on with the stream that gave the weights."""
    generator = regard.TorchGenerator(123)
    for _ in range(3):
        generator.randn(3, 2)
    return {d_k: (generator.randn(10_000, d_k), generator.randn(10_000, d_k)) for d_k in VARIANCES}


class Variance:
    """Variance of numbers that come in blocks, in float64."""

    def __init__(self):
        self.count = self.total = self.squares = 0.0

    def add(self, block):
        wide = block.astype(np.float64).ravel()
        self.count += wide.size
        self.total += wide.sum()
        self.squares += wide @ wide

    def value(self):
        return self.squares / self.count - (self.total / self.count) ** 2


@pytest.mark.parametrize("d_k", VARIANCES)
def test_000_scaling_brings_the_variance_of_scores_to_1(d_k, target):
    queries, keys = samples()[d_k]
    before, after = Variance(), Variance()
    scores = np.empty((1000, 10_000), np.float32)
    for first in range(0, 10_000, 1000):
        regard.matmul(queries[first : first + 1000], keys.T, out=scores)
        before.add(scores)
        after.add(regard.scale(scores, 1 / math.sqrt(d_k), out=scores))
    assert abs(before.value() / d_k - 1) < 0.05
    assert abs(after.value() - 1) < 0.05
    # PyTorch rounds the variance to float32 before it prints it.
    assert_prints(
        np.array([before.value(), after.value()]),
        VARIANCES[d_k],
        rounding=np.spacing(np.float32(d_k)),
    )


def test_000_class(target):
    layer = regard.SelfAttention(3, 2, rng=regard.TorchGenerator(123))
    assert_prints(
        layer(DREAM),
        """[[-0.5282, -0.0051],
            [-0.5288, -0.0036],
            [-0.5276, -0.0066],
            [-0.5289, -0.0040],
            [-0.5289, -0.0032],
            [-0.5287, -0.0033]]""",
    )
    names = {"W_query.weight": "W_q.weight", "W_key.weight": "W_k.weight"}
    names["W_value.weight"] = "W_v.weight"
    state = {names[key]: array for key, array in layer.state_dict().items()}
    other = regard.SelfAttention(3, 2, rng=0)
    other.load_state_dict(state)
    assert np.array_equal(other(DREAM), layer(DREAM))


# ---- 001: masked attention of random vectors -----------------------------------------------------

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
WEIGHTS = """
    [1.        , 0.        , 0.        , 0.        ]
    [0.7649962 , 0.2350038 , 0.        , 0.        ]
    [0.52177556, 0.17977168, 0.29845276, 0.        ]
    [0.08844457, 0.4203686 , 0.04903541, 0.44215143]
"""
# The inputs are known to half a unit of the eighth decimal; this is what it does to the scores.
HALF = 0.5e-8
SCORE_ROUNDING = HALF * (np.abs(QUERY).sum(axis=1)[:, None] + np.abs(KEY).sum(axis=1))


def triangle():
    """The notebook's mask, made as it makes it."""
    mask = np.tril(np.ones((4, 4)))
    mask[mask == 0] = -np.inf
    mask[mask == 1] = 0
    return mask


def test_001_scores_and_their_variance(target):
    scores = regard.matmul(QUERY, KEY.T)
    assert_prints(
        scores,
        """[[ 0.20138332,  1.18844554, -2.49210879, -0.35348884],
            [ 2.36274522, -0.97556009, -0.35245351, -2.76014537],
            [ 1.77648308, -1.23734722,  0.19645048, -1.20126238],
            [-2.05108275,  2.3577449 , -3.71938331,  2.5006384 ]]""",
        rounding=SCORE_ROUNDING,
    )
    scaled = regard.scale(scores, 1 / np.sqrt(8))
    variances = [x.var() for x in (QUERY, KEY, scores, scaled)]
    wanted = [0.6255806827997046, 0.8418219704856419, 3.549242551815472, 0.443655318976934]
    # A change d of x moves its variance by 2 cov(x, d), within twice the deviations' product.
    changes = [HALF, HALF, SCORE_ROUNDING.max(), SCORE_ROUNDING.max() / np.sqrt(8)]
    for actual, exact, change in zip(variances, wanted, changes, strict=True):
        assert abs(actual - exact) <= 2 * math.sqrt(exact) * change


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
    assert_prints(weights, WEIGHTS, rounding=weight_rounding * weights)
    assert_prints(output, NEW_VALUE, rounding=HALF + weight_rounding * np.abs(VALUE).max())
    assert np.array_equal(weights != 0, np.tri(4, dtype=bool))
    assert np.array_equal(output[0], VALUE[0])


@pytest.mark.parametrize(
    "options",
    [
        {"mask": triangle()},
        {"mask": triangle().tolist()},
        {"mask": regard.masks.causal(4)},
        {"is_causal": True},
    ],
    ids=["triangle", "list", "bool", "is_causal"],
)
def test_001_attention(options, target):
    assert_001(*assert_fused_is_stages(QUERY, KEY, VALUE, **options))


def test_001_function_is_a_drop_in(target):
    assert_001(
        *regard.scaled_dot_product_attention(QUERY, KEY, VALUE, triangle(), return_weights=True)
    )


# ---- 002: embeddings, positions, and a sentence's scores -----------------------------------------


@functools.cache
def amazing():
    """The embeddings of the three words, and the weights that are drawn after them."""
    random = np.random.RandomState(42)
    embeddings = np.array([random.rand(8) for _ in range(3)])
    return embeddings, *(random.rand(8, 8) for _ in range(3))


def amazing_inputs():
    return amazing()[0] + regard.positional.sinusoidal(3, 8)


def amazing_heads():
    return [regard.matmul(amazing_inputs(), weight) for weight in amazing()[1:]]


def test_002_embeddings_and_positions():
    assert_prints(amazing()[0][2], "[0.3042 0.5248 0.4319 0.2912 0.6119 0.1395 0.2921 0.3664]")
    assert_prints(
        amazing_inputs(),
        """[[0.3745 1.9507 0.732  1.5987 0.156  1.156  0.0581 1.8662]
            [1.4426 1.2484 0.1204 1.9649 0.8424 1.2123 0.1828 1.1834]
            [1.2135 0.1086 0.6306 1.2713 0.6319 1.1393 0.2941 1.3664]]""",
    )


def test_002_weights():
    _, weight_query, weight_key, _ = amazing()
    assert_prints(
        weight_query,
        """[[0.4561 0.7852 0.1997 0.5142 0.5924 0.0465 0.6075 0.1705]
            [0.0651 0.9489 0.9656 0.8084 0.3046 0.0977 0.6842 0.4402]
            [0.122  0.4952 0.0344 0.9093 0.2588 0.6625 0.3117 0.5201]
            [0.5467 0.1849 0.9696 0.7751 0.9395 0.8948 0.5979 0.9219]
            [0.0885 0.196  0.0452 0.3253 0.3887 0.2713 0.8287 0.3568]
            [0.2809 0.5427 0.1409 0.8022 0.0746 0.9869 0.7722 0.1987]
            [0.0055 0.8155 0.7069 0.729  0.7713 0.074  0.3585 0.1159]
            [0.8631 0.6233 0.3309 0.0636 0.311  0.3252 0.7296 0.6376]]""",
    )
    assert_prints(
        weight_key,
        """[[0.8872 0.4722 0.1196 0.7132 0.7608 0.5613 0.771  0.4938]
            [0.5227 0.4275 0.0254 0.1079 0.0314 0.6364 0.3144 0.5086]
            [0.9076 0.2493 0.4104 0.7556 0.2288 0.077  0.2898 0.1612]
            [0.9297 0.8081 0.6334 0.8715 0.8037 0.1866 0.8926 0.5393]
            [0.8074 0.8961 0.318  0.1101 0.2279 0.4271 0.818  0.8607]
            [0.007  0.5107 0.4174 0.2221 0.1199 0.3376 0.9429 0.3232]
            [0.5188 0.703  0.3636 0.9718 0.9624 0.2518 0.4972 0.3009]
            [0.2848 0.0369 0.6096 0.5027 0.0515 0.2786 0.9083 0.2396]]""",
    )


def test_002_queries_keys_and_values(target):
    query, key, value = amazing_heads()
    assert_prints(
        query,
        """[[3.2106 4.6715 4.3622 4.8134 3.2794 3.9177 5.1507 4.2588]
            [3.2656 4.4498 4.1326 4.8386 4.0389 3.8503 5.5063 3.9866]
            [2.8894 3.4368 2.4507 3.6915 3.0919 3.3843 4.2741 3.1117]]""",
    )
    assert_prints(
        key,
        """[[4.1983 3.3252 3.0982 3.6923 2.1246 2.7978 5.4825 3.1297]
            [4.9891 4.3791 3.06   4.1014 3.3176 3.1249 6.2913 3.8818]
            [3.9476 3.2093 2.8283 3.7569 2.7267 2.1453 5.2656 2.7697]]""",
    )
    assert_prints(
        value,
        """[[3.034  3.6074 5.1513 3.2015 3.5217 3.7557 5.0402 3.6896]
            [3.4629 3.8557 5.9133 3.1644 4.0228 3.9501 4.6531 5.1316]
            [2.5045 2.9097 4.583  2.4956 3.8129 2.7861 3.9781 4.104 ]]""",
    )


def test_002_stages(target):
    query, key, value = amazing_heads()
    scores = regard.matmul(query, key.T)
    assert_prints(
        scores,
        """[[119.7964 141.6248 114.3513]
            [121.1941 143.8183 116.3466]
            [ 93.9901 111.9071  90.0504]]""",
    )
    scaled = regard.scale(scores, 1 / np.sqrt(8))
    assert_prints(
        scaled,
        """[[42.3544 50.0719 40.4293]
            [42.8486 50.8474 41.1347]
            [33.2305 39.5651 31.8376]]""",
    )
    with np.errstate(divide="ignore"):
        mask = np.log(np.tri(3))
    masked = regard.apply_mask(scaled, mask)
    assert_prints(
        masked,
        """[[42.3544    -inf    -inf]
            [42.8486 50.8474    -inf]
            [33.2305 39.5651 31.8376]]""",
    )
    weights = regard.softmax(masked)
    assert_prints(weights, AMAZING_WEIGHTS)
    assert_prints(regard.matmul(weights, value), AMAZING_OUTPUT)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"mask": regard.masks.causal(3)}])
def test_002_attention(options, target):
    output, weights = assert_fused_is_stages(*amazing_heads(), **options)
    assert_prints(weights, AMAZING_WEIGHTS)
    assert_prints(output, AMAZING_OUTPUT)


def test_002_unscaled_scores_do_not_overflow(target):
    """One of the scores is 143.8, whose exponential no float32 holds."""
    heads = [x.astype(np.float32) for x in amazing_heads()]
    output, weights = assert_fused_is_stages(*heads, scale=1.0)
    assert np.isfinite(output).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)


AMAZING_WEIGHTS = """
    [1.     0.     0.    ]
    [0.0003 0.9997 0.    ]
    [0.0018 0.9978 0.0004]
"""
AMAZING_OUTPUT = """
    [3.034  3.6074 5.1513 3.2015 3.5217 3.7557 5.0402 3.6896]
    [3.4628 3.8556 5.9131 3.1644 4.0227 3.95   4.6532 5.1311]
    [3.4618 3.8548 5.9114 3.1642 4.0219 3.9492 4.6535 5.1286]
"""


# ---- 003: trainable weights, and layers made of them ---------------------------------------------

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


def test_003_context_vector_of_token_2(target):
    generator = regard.TorchGenerator(123)
    weights = [generator.rand(3, 2) for _ in range(3)]
    assert_prints(regard.matmul(JOURNEY[1], weights[0]), "[0.4306, 1.4551]")
    assert_prints(regard.matmul(JOURNEY[1], weights[1]), "[0.4433, 1.1419]")
    queries, keys, values = (regard.matmul(JOURNEY, weight) for weight in weights)
    assert_prints(regard.matmul(queries[1], keys[1]), "1.8524")
    row = "[1.2705, 1.8524, 1.8111, 1.0795, 0.5577, 1.5440]"
    assert_prints(regard.matmul(queries[1], keys.T), row)
    output, weights = assert_fused_is_stages(queries[1:2], keys, values)
    assert_prints(weights[0], "[0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820]")
    assert_prints(output[0], "[0.3061, 0.8210]")
    whole_output, whole_weights = assert_fused_is_stages(queries, keys, values)
    assert np.array_equal(whole_output[1], output[0])
    assert np.array_equal(whole_weights[1], weights[0])


def test_003_version_1_goes_on_with_the_stream(target):
    generator = regard.TorchGenerator(123)
    for _ in range(3):
        generator.rand(3, 2)
    layer = regard.SelfAttention(3, 2, init="uniform", rng=generator)
    assert_prints(
        layer(JOURNEY),
        """[[1.4035, 1.0391],
            [1.4410, 1.0669],
            [1.4391, 1.0655],
            [1.3786, 1.0178],
            [1.3653, 1.0086],
            [1.4025, 1.0361]]""",
    )


def test_003_version_2(target):
    layer = regard.SelfAttention(3, 2, rng=regard.TorchGenerator(789))
    assert_prints(
        layer(JOURNEY),
        """[[-0.0739,  0.0713],
            [-0.0748,  0.0703],
            [-0.0749,  0.0702],
            [-0.0760,  0.0685],
            [-0.0763,  0.0679],
            [-0.0754,  0.0693]]""",
    )


@pytest.mark.parametrize("init", ["linear", "uniform", "normal"])
def test_a_layer_is_the_stages(init, target):
    layer = regard.SelfAttention(3, 2, init=init, rng=regard.TorchGenerator(123))
    weights = layer.state_dict().values()
    heads = [regard.matmul(JOURNEY, w.T if init == "linear" else w) for w in weights]
    wanted = assert_fused_is_stages(*heads)
    for actual, exact in zip(layer(JOURNEY, return_weights=True), wanted, strict=True):
        assert np.array_equal(actual, exact)
