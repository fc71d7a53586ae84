"""Test the CUDA kernels, emulated on the CPU, against the oracle in float64. (test_sanitizers has
every kernel, and the tables of cases.)"""

import numpy as np
import pytest

import cuda_emulation
from error_limits import assert_matches
from reference import assert_same_bits

# .ci/run runs them; without a GPU, few people need to.
pytestmark = pytest.mark.exhaustive

HOW = ("seed", "misaligned", "rows_first")


def check(runner, query, key, value, **options):
    how = {name: options.pop(name) for name in HOW if name in options}
    want = cuda_emulation.expected(query, key, value, **options)
    got = runner.solve(query, key, value, **options, **how)
    assert_matches(want, output=got.output, lse=got.lse)
    return got


def draw(random, dtype, *shape):
    return random.standard_normal(shape).astype(dtype)


def arrays(random, dtype, batch, heads, lengths, dims):
    (h, kv_h), (q_len, kv_len), (dim, value_dim) = heads, lengths, dims
    return (
        draw(random, dtype, batch, h, q_len, dim),
        draw(random, dtype, batch, kv_h, kv_len, dim),
        draw(random, dtype, batch, kv_h, kv_len, value_dim),
    )


@pytest.mark.parametrize("lengths", [(3, 1600), (70, 70)], ids=["chunks", "tiles"])
def test_all_options_at_once(lengths, single_or_half, emulation, random):
    q_len, kv_len = lengths
    query, key, value = arrays(random, single_or_half, 2, (4, 2), lengths, (40, 24))
    bias = draw(random, single_or_half, 1, 4, 1, kv_len)
    bias[..., 5::7] = -np.inf
    for slopes in (draw(random, np.float32, 4) / 8, draw(random, np.float32, 2, 4) / 8):
        check(
            emulation,
            query,
            key,
            value,
            mask=(random.random((2, 1, q_len, kv_len)) < 0.6, bias),
            window=(kv_len // 2, 3),
            query_offset=np.array([kv_len - q_len, kv_len // 2]),
            key_lengths=np.array([kv_len, kv_len - 9]),
            left_padding=np.array([0, 11]),
            softcap=5.0,
            alibi_slopes=slopes,
            sinks=draw(random, np.float32, 4),
        )


@pytest.mark.parametrize("element", ["float16", "bfloat16", "float32"])
def test_bias_of_any_type(element, single_or_half, emulation, random):
    query, key, value = arrays(random, single_or_half, 1, (2, 2), (9, 70), (16, 16))
    bias = draw(random, np.float32, 1, 2, 9, 70).astype(cuda_emulation.dtype_of(element))
    bias[..., 3] = 1e-6  # below the normal numbers of float16
    check(emulation, query, key, value, mask=bias)


def test_widest_windows_and_farthest_offsets(single_or_half, emulation, random):
    query, key, value = arrays(random, single_or_half, 1, (1, 1), (5, 70), (8, 8))
    most = 2**31 - 1
    for offset in (most, -most):
        for window in ((None, 0), (0, None), (most, most), (most, 3)):
            check(emulation, query, key, value, window=window, query_offset=offset)


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}], ids=["plain", "options"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_hidden_keys_and_values_change_no_bit(special, options, single_or_half, emulation, random):
    """Keys are hidden by position from some rows of a tile, and by length from all."""
    query, key, value = arrays(random, single_or_half, 1, (2, 1), (70, 140), (20, 70))
    options = {"is_causal": True, "query_offset": 60, "key_lengths": 129, **options}
    want = emulation.solve(query, key, value, **options)
    for position in (129, 139, 100, 128):
        spoilt = key.copy(), value.copy()
        for array in spoilt:
            array[:, :, position, ::3] = special
        got = emulation.solve(query, *spoilt, **options)
        blind = 70 if position >= 129 else position - 60
        assert_same_bits(got.output[:, :, :blind], want.output[:, :, :blind])
        assert_same_bits(got.lse[:, :, :blind], want.lse[:, :, :blind])
        assert not np.isfinite(got.output[:, :, blind:, ::3].astype(np.float32)).any()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_values_that_are_special_show_where_they_are_seen(
    special, single_or_half, emulation, random
):
    """Only a value is special, so scores are finite and only its own column changes."""
    query, key, value = arrays(random, single_or_half, 1, (1, 1), (70, 140), (20, 70))
    mask = random.random((1, 1, 70, 140)) < 0.7
    for options in ({"mask": mask}, {"mask": np.where(mask, 0, -np.inf).astype(np.float32)}):
        want = emulation.solve(query, key, value, **options)
        spoilt = value.copy()
        spoilt[0, 0, 77, 66] = special
        got = emulation.solve(query, key, spoilt, **options)
        seen = mask[0, 0, :, 77]
        assert_same_bits(got.lse, want.lse)
        assert_same_bits(got.output[0, 0, ~seen], want.output[0, 0, ~seen])
        others = np.arange(70) != 66
        assert_same_bits(got.output[0, 0, :, others], want.output[0, 0, :, others])
        shown = got.output[0, 0, seen, 66].astype(np.float32)
        assert np.array_equal(shown, np.full_like(shown, special), equal_nan=True)


def test_rows_whose_scores_are_all_minus_infinity_have_seen_keys(single_or_half, emulation, random):
    """As in NumPy, 0 / 0 is NaN: visibility, not the scores, determines whether a row is empty."""
    query, key, value = arrays(random, single_or_half, 1, (1, 1), (3, 70), (8, 8))
    key[..., 0], query[..., 0], query[0, 0, 1, 0] = -np.inf, 1, 0
    got = emulation.solve(query, key, value)
    assert np.isnan(got.output.astype(np.float32)).all()
    assert np.isneginf(got.lse[0, 0, ::2]).all()


def test_any_alignment_and_strides(single_or_half, emulation, random):
    """Rows that cannot be read 16 bytes at a time give the same bits as rows that can."""
    query, key, value = arrays(random, single_or_half, 2, (4, 2), (9, 150), (24, 40))
    options = {"is_causal": True, "query_offset": 120}
    want = emulation.solve(query, key, value, **options)
    size = query.itemsize

    def rows_first(array):
        return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)

    def wider(array):
        room = np.zeros((*array.shape[:3], array.shape[3] + 1), array.dtype)
        room[..., :-1] = array
        return room[..., :-1]

    for change in (rows_first, wider):
        moved = [change(array) for array in (query, key, value)]
        got = emulation.solve(*moved, rows_first=True, **options)
        assert_same_bits(np.ascontiguousarray(got.output), want.output)
    got = emulation.solve(query, key, value, misaligned=size, **options)
    assert_same_bits(got.output, want.output)


@pytest.mark.parametrize("lengths", [(4, 3000), (130, 200)], ids=["chunks", "tiles"])
def test_bits_depend_on_shapes_alone(lengths, single_or_half, emulation, random):
    """The bits do not depend on the order of threads, blocks and copies, or on other entries."""
    query, key, value = arrays(random, single_or_half, 2, (4, 2), lengths, (32, 16))
    options = {"is_causal": True, "query_offset": lengths[1] - lengths[0]}
    want = emulation.solve(query, key, value, **options)
    assert (want.workspace_bytes > 0) == (lengths[0] == 4)
    for seed in (1, 2):
        got = emulation.solve(query, key, value, seed=seed, **options)
        assert_same_bits(got.output, want.output)
    alone = emulation.solve(query[1:], key[1:], value[1:], **options)
    assert_same_bits(alone.output, want.output[1:])


def test_tiles_that_nobody_sees_are_skipped(emulation, random):
    """Tiles are hidden by position and by a bool mask: only the remaining tiles have products."""
    dtype = np.float16
    query, key, value = arrays(random, dtype, 1, (1, 1), (64, 640), (64, 64))
    of_a_tile = emulation.solve(query, key[:, :, :64], value[:, :, :64]).products
    assert of_a_tile == 4 * (4 * 8 + 4 * 8)
    mask = np.zeros((1, 1, 64, 640), bool)
    mask[..., 70] = mask[0, 0, 3, 500] = True
    for options, tiles in (
        ({}, 10),
        ({"mask": np.ones((1, 1, 64, 640), bool)}, 10),
        ({"is_causal": True}, 1),
        ({"is_causal": True, "query_offset": 64}, 2),
        ({"window": (63, 0), "query_offset": 320}, 2),
        ({"left_padding": 320}, 5),
        ({"key_lengths": 65}, 2),
        ({"mask": mask}, 2),
    ):
        assert check(emulation, query, key, value, **options).products == tiles * of_a_tile, options


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}], ids=["plain", "options"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_no_access_to_shared_memory_waits_for_a_bank(
    dim, options, single_or_half, emulation, random
):
    query, key, value = arrays(random, single_or_half, 1, (1, 1), (64, 192), (dim, dim))
    mask = random.random((1, 1, 64, 192)) < 0.9
    got = check(emulation, query, key, value, mask=mask if options else None, **options)
    assert got.accesses > 0
    assert got.conflicts == 0
