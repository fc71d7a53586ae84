"""matmul, scale, apply_mask and softmax compute what NumPy does, and together what the fused call
does."""

import tracemalloc

import numpy as np
import pytest

import cases
import regard
import sparse_cases
from layouts import LAYOUTS
from problem import drawn
from reference import assert_same_bits, error, largest, wider

SIZES = [1, 2, 3, *cases.AROUND_LANES[3:]]


def assert_product(a, b, dtype, **options):
    """Allow twice NumPy's own error, and four roundings if NumPy is exact by luck: a partial sum is
    about as large as the root of the sum of the squares of its terms."""
    wide = wider(dtype)
    actual = regard.matmul(a, b, **options)
    exact = np.matmul(a.astype(wide), b.astype(wide))
    floor = 2 * np.finfo(dtype).eps * np.sqrt(largest(np.matmul(a**2, b**2)))
    assert actual.dtype == dtype
    assert actual.shape == exact.shape
    assert error(actual, exact) <= 2 * error(np.matmul(a, b), exact) + floor


@pytest.mark.parametrize("size", [*SIZES, 3000])
def test_matmul_is_exact_on_small_integers(size, dtype, target):
    """Every product and sum is exact, so a term that is wrong, missing or doubled shows."""
    i = SIZES.index(size) if size in SIZES else 0
    random = np.random.default_rng(size)
    around = [(size, SIZES[i - 3], SIZES[i - 7]), (SIZES[i - 5], size, SIZES[i - 2])]
    around += [(SIZES[i - 4], SIZES[i - 9], size), (1, size, 1)]
    for m, k, n in around:
        a = random.integers(-8, 9, (m, k)).astype(dtype)
        b = random.integers(-8, 9, (k, n)).astype(dtype)
        for threads in (1, 3):
            assert_same_bits(regard.matmul(a, b, threads=threads) + 0, a @ b + 0)


LONG = [(24, 3000, 40), (3, 1030, 700), (1, 3000, 500), (400, 3000, 1), (410, 700, 400)]


@pytest.mark.parametrize(("m", "k", "n"), LONG)
def test_matmul_of_long_shapes(m, k, n, dtype, target):
    assert_product(drawn((m, k), dtype, 1), drawn((k, n), dtype, 2), dtype)


def test_matmul_of_few_rows_so_deep_that_it_pauses(dtype, target):
    """matmul checks the stop signal in between, and then continues with the sum so far."""
    random = np.random.default_rng(0)
    a, b = random.integers(-8, 9, (8, 140_000)), random.integers(-8, 9, (140_000, 5))
    wanted = (a @ b).astype(dtype)
    a, b = a.astype(dtype), b.astype(dtype)
    assert_same_bits(regard.matmul(a, b, threads=1), wanted)
    assert_same_bits(regard.matmul(a, b.T.copy().T, threads=1), wanted)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5,), (5,)),
        ((5,), (5, 7)),
        ((3, 5), (5,)),
        ((5,), (2, 3, 5, 7)),
        ((2, 3, 4, 5), (5,)),
        ((3, 5), (2, 4, 5, 7)),
        ((2, 4, 3, 5), (5, 7)),
        ((2, 1, 3, 5), (4, 5, 7)),
        ((1, 1, 3, 5), (2, 4, 5, 7)),
        ((2, 1, 2, 1, 3, 5), (3, 1, 2, 5, 7)),
        ((0, 5), (5, 7)),
        ((3, 5), (5, 0)),
        ((3, 0), (0, 7)),
        ((0,), (0,)),
        ((0, 0), (0, 0)),
        ((4, 0, 3, 5), (5, 7)),
        ((0, 3, 5), (1, 5, 7)),
    ],
    ids=str,
)
def test_matmul_has_numpys_shapes(a, b, dtype, target):
    assert_product(drawn(a, dtype, 1), drawn(b, dtype, 2), dtype)
    assert_product(drawn(a, dtype, 1), drawn(b, dtype, 2), dtype, threads=2)


def test_matmul_result_types(target):
    a, b = [[1, 2], [3, 4]], [[5.0], [6.0]]
    for left, right in [(a, b), (np.array(a), np.array(b)), (np.array(a), np.array(b, np.float32))]:
        assert_same_bits(regard.matmul(left, right), np.array([[17.0], [39.0]]))
    assert_same_bits(regard.matmul(np.array(a) > 1, np.array(a) > 1), np.array([[1.0, 1], [1, 2]]))
    mixed = regard.matmul(drawn((3, 4), np.float32), drawn((4, 2), np.float64))
    assert mixed.dtype == np.float64


def test_matmul_shows_nan_and_infinity_where_they_belong(dtype, target):
    a, b = drawn((37, 41), dtype, 1), drawn((41, 70), dtype, 2)
    wanted = regard.matmul(a, b)
    a[5, 7], b[3, 9], b[40, 69] = np.nan, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        shown = ~np.isfinite(a @ b)
    actual = regard.matmul(a, b)
    assert np.array_equal(~np.isfinite(actual), shown)
    assert_same_bits(actual[~shown], wanted[~shown])


@pytest.mark.parametrize("size", SIZES)
def test_scale_is_numpys_product(size, dtype, target):
    x = drawn((3, size), dtype, size)
    x[0, 0] = -0.0
    x[1, -1], x[2, size // 2] = np.inf, np.nan
    for factor in (0.3, 2, -1.0, 0.0, 1e-30):
        with np.errstate(invalid="ignore"):
            wanted = x * dtype.type(factor)
        actual = regard.scale(x, factor)
        shown = np.isnan(wanted)
        assert np.array_equal(np.isnan(actual), shown)
        assert_same_bits(actual[~shown], wanted[~shown])


@pytest.mark.parametrize("size", SIZES)
def test_apply_mask_hides_or_adds(size, dtype, target):
    scores = drawn((2, 3, size), dtype, size)
    scores[0, 0, 0] = np.nan
    random = np.random.default_rng(size)
    for shape in [(2, 3, size), (3, 1), (size,), (2, 1, 1), ()]:
        hidden = np.asarray(random.random(shape) < 0.5)
        got = regard.apply_mask(scores, ~hidden)
        assert np.array_equal(got, np.where(hidden, dtype.type(-np.inf), scores), equal_nan=True)
        assert got.dtype == dtype
        bias = np.where(hidden, -np.inf, random.standard_normal(shape)).astype(dtype)
        got = regard.apply_mask(scores, bias)
        # -inf hides instead of being added; otherwise a NaN in a hidden score would show.
        wanted = np.where(bias == -np.inf, bias, scores + bias)
        assert np.array_equal(got, wanted, equal_nan=True)
        assert got.dtype == dtype


def test_apply_mask_keeps_the_precision_of_the_scores(target):
    scores = drawn((3, 5), np.float32)
    assert regard.apply_mask(scores, np.zeros((3, 5), np.float64)).dtype == np.float32
    assert regard.apply_mask([[1, 2]], [[True, False]]).tolist() == [[1.0, -np.inf]]
    assert regard.apply_mask([[1, 2]], [[0.5, -np.inf]]).tolist() == [[1.5, -np.inf]]


def softmax(x, axis, dtype):
    x = np.asarray(x, dtype)
    with np.errstate(invalid="ignore", divide="ignore"):
        top = x.max(axis=axis, keepdims=True, initial=-np.inf)
        terms = np.exp(x - np.where(top == -np.inf, 0, top))
        return np.nan_to_num(terms / terms.sum(axis=axis, keepdims=True))


def assert_softmax(x, axis, dtype, **options):
    """Allow twice NumPy's own error, and the errors of regard's exp: log2(e) is rounded (eps |x|,
    in numerator and denominator), and 4 eps for the rest, as in `error_limits.expected`."""
    actual = regard.softmax(x, axis, **options)
    assert actual.dtype == dtype
    exact = softmax(x, axis, wider(dtype))
    finite = np.asarray(x)[np.isfinite(x)]
    floor = np.finfo(dtype).eps * (4 + 2 * largest(finite))
    assert error(actual, exact) <= 2 * error(softmax(x, axis, dtype), exact) + floor


def test_softmax_of_any_rank(dtype, target):
    for shape in ((1,), (7,), (2, 3, 2, 1, 2, 5), (0,), (3, 0), (0, 3)):
        for axis in range(-len(shape), len(shape)):
            assert_softmax(drawn(shape, dtype), axis, dtype)


@pytest.mark.parametrize("size", [*SIZES, 1000])
def test_softmax_of_rows(size, dtype, target):
    assert_softmax(drawn((3, size), dtype, size) * 3, -1, dtype)
    x = drawn((2, size, 5), dtype, size) * 3
    x[np.random.default_rng(size).random(x.shape) < 0.3] = -np.inf
    for axis in (-1, 1, 0, 2, -2, -3):
        assert_softmax(x, axis, dtype, threads=1 + size % 3)


def test_softmax_of_a_row_without_keys_is_zero(dtype, target):
    x = drawn((40, 70), dtype)
    x[[0, 17, 39]] = -np.inf
    actual = regard.softmax(x)
    assert_same_bits(actual[[0, 17, 39]], np.zeros((3, 70), dtype))
    x = x.T.copy()
    assert_same_bits(regard.softmax(x, axis=0)[:, [0, 17, 39]], np.zeros((70, 3), dtype))


def test_softmax_shows_nan_in_its_row_only(dtype, target):
    x = drawn((40, 70), dtype)
    clean = regard.softmax(x)
    x[3, 69], x[20, 0] = np.nan, np.nan
    x[20, 1:] = -np.inf
    actual = regard.softmax(x)
    assert np.isnan(actual[[3, 20]]).all()
    others = np.setdiff1d(np.arange(40), [3, 20])
    assert_same_bits(actual[others], clean[others])


def test_softmax_of_one_number_far_above_the_others(dtype, target):
    """This holds wherever the number is. A number that overflows because the maximum misses it does
    not become 1."""
    ones = np.eye(300, dtype=dtype)
    for x in (3000 * ones, 3000 * ones[:, ::-1].copy()[:, ::-1]):
        assert_same_bits(regard.softmax(x), ones)
    assert_same_bits(regard.softmax(3000 * ones, axis=0), ones)


@pytest.mark.parametrize("shift", [-1e30, -1e4, 1e4, 1e30])
def test_softmax_far_from_zero(shift, dtype, target):
    """The steps are exact at this magnitude, so only the differences count."""
    steps = np.arange(50) % 7 * (abs(shift) / 8)
    x = (shift + steps).astype(dtype)
    top = steps == steps.max()
    assert_same_bits(regard.softmax(x) > 0, top)
    assert error(regard.softmax(x)[top], 1 / top.sum()) <= 4 * np.finfo(dtype).eps


WRITEABLE = ["contiguous", *(n for n in LAYOUTS if n not in ("read_only", "byte_swapped"))]


@pytest.mark.parametrize("layout", WRITEABLE)
def test_out_of_every_stage(layout, dtype, target):
    """`out` may be the scores themselves, if the result has their shape."""
    lay = LAYOUTS.get(layout, np.array)
    x, y, mask = drawn((9, 21), dtype), drawn((21, 9), dtype), np.tri(9, 21, 5, dtype=bool)
    for call in (
        lambda **o: regard.matmul(x, y, **o),
        lambda **o: regard.scale(x, 0.5, **o),
        lambda **o: regard.apply_mask(x, mask, **o),
        lambda **o: regard.apply_mask(x, np.where(mask, 0.5, -np.inf), **o),
        lambda **o: regard.softmax(x, **o),
        lambda **o: regard.softmax(x, axis=0, **o),
    ):
        wanted = call()
        out = lay(np.full(wanted.shape, 7, dtype))
        around = out.base if isinstance(out.base, np.ndarray) else out
        before = around.copy()
        assert call(out=out) is out
        assert_same_bits(out, wanted)
        out[...] = 7  # any remaining difference is around it
        assert around.tobytes() == before.tobytes()
    for call in (
        lambda x, **o: regard.scale(x, 0.5, **o),
        lambda x, **o: regard.apply_mask(x, mask, **o),
        lambda x, **o: regard.softmax(x, **o),
        lambda x, **o: regard.softmax(x, axis=0, **o),
    ):
        scores = lay(x)
        wanted = call(scores)
        assert call(scores, out=scores) is scores
        assert_same_bits(scores, wanted)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)], ids=str)
@pytest.mark.parametrize("shape", [(3, 70, 600), (2, 150, 33), (130, 2, 5)], ids=str)
def test_the_order_of_axes_in_memory_changes_no_bit(shape, order, dtype, target):
    """Rows that are next to each other are computed in SIMD lanes, and results have the same memory
    layout as NumPy's."""
    x = drawn(shape, dtype) * 3
    x[0, 1, :2] = -np.inf
    bits = np.random.default_rng(1).random(shape) < 0.5
    bias = np.where(bits, x, -np.inf).astype(dtype)
    there = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    for call in (
        lambda x, **o: regard.scale(x, 0.5, **o),
        lambda x, **o: regard.apply_mask(x, bits, **o),
        lambda x, **o: regard.apply_mask(x, bits[0], **o),
        lambda x, **o: regard.apply_mask(x, bits[..., :1], **o),
        lambda x, **o: regard.apply_mask(x, bias, **o),
        lambda x, **o: regard.softmax(x, axis=0, **o),
        lambda x, **o: regard.softmax(x, axis=1, **o),
        lambda x, **o: regard.softmax(x, axis=2, **o),
    ):
        wanted = call(x, threads=1)
        for threads in (1, 3):
            actual = call(there, threads=threads)
            assert actual.strides == np.exp(there).strides
            assert_same_bits(actual, wanted)
            assert_same_bits(call(there, out=np.empty_like(x), threads=threads), wanted)

    for axis in range(3):
        part = there[:, ::-1, 1:]
        assert_same_bits(regard.softmax(part, axis, threads=2), regard.softmax(part.copy(), axis))


def test_one_long_row_is_shared_out(dtype, target):
    x = drawn(100_003, dtype)
    assert_same_bits(regard.scale(x, 3.0, threads=3), x * dtype.type(3))
    bits = np.arange(len(x)) % 3 == 0
    wanted = np.where(bits, x, dtype.type(-np.inf))
    assert_same_bits(regard.apply_mask(x, bits, threads=3), wanted)
    assert_softmax(x, -1, dtype, threads=3)


def test_sparse_masks_are_applied_as_dense_ones():
    """The mask is applied some rows at a time, in any layout, in place, and with missing keys."""
    for name, mask in sparse_cases.sparse_masks(2, 3, 500, 800).items():
        scores = drawn((2, 3, 500, 800), np.float32).swapaxes(0, 1).copy().swapaxes(0, 1)
        scores[..., 7, :] = np.nan
        wanted = regard.apply_mask(scores, sparse_cases.dense(mask, 800))
        for out in (None, np.empty_like(scores), scores):
            masked = regard.apply_mask(scores, mask, out=out)
            assert out is None or masked is out, name
            assert masked.strides == wanted.strides
            assert_same_bits(masked, wanted)


def test_a_sparse_mask_takes_little_memory():
    """The dense form of the mask would be as large as the scores; half of their bytes are
    allowed."""
    scores = np.zeros((4000, 4000), np.float32)
    mask = regard.masks.sliding(4000, window=(9, 0))
    tracemalloc.start()
    regard.apply_mask(scores, mask, out=scores)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < scores.size / 2
    assert np.isfinite(scores).sum() == mask.nnz


def test_threads_of_the_stages(dtype, target, layer):
    a, b = drawn((3, 130, 300), dtype), drawn((300, 210), dtype, 1)
    wide, mask = drawn((40, 5003), dtype, 2), drawn((40, 1), dtype) > 0
    for call in (
        lambda n: regard.matmul(a, b, threads=n),
        lambda n: regard.matmul(a[0, 0], b, threads=n),
        lambda n: regard.matmul(wide, wide.T, threads=n),
        lambda n: regard.scale(wide, 0.3, threads=n),
        lambda n: regard.apply_mask(wide, mask, threads=n),
        lambda n: regard.softmax(wide, threads=n),
        lambda n: regard.softmax(wide, axis=0, threads=n),
        lambda n: regard.softmax(wide[0], threads=n),
    ):
        one, *others = (call(n) for n in (1, 2, 3, 7))
        for other in others:
            assert_same_bits(other, one)


def test_every_entry_of_the_stages_alone(dtype, target):
    a, b = drawn((4, 37, 61), dtype), drawn((4, 61, 45), dtype, 1)
    product, weights = regard.matmul(a, b), regard.softmax(a * 3)
    for i in range(4):
        assert_same_bits(regard.matmul(a[i], b[i]), product[i])
        assert_same_bits(regard.softmax(a[i] * 3), weights[i])
        assert_same_bits(regard.softmax(a[i, 5] * 3), weights[i, 5])
