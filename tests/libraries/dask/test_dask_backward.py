"""Test the gradients of attention over Dask arrays against the oracle, for chunks of any sizes."""

import numpy as np
import pytest

pytest.importorskip("dask.array", reason='pip install ".[dask]"')

import dask
import dask.array as da

import regard
import regard.dask
from cases import Case
from dask_chunks import cut
from gradient_cases import build, drawn
from reference import assert_same_bits

attend = regard.dask.scaled_dot_product_attention
gradients_of = regard.dask.scaled_dot_product_attention_backward


@pytest.fixture(autouse=True)
def scheduler():
    with dask.config.set(scheduler="synchronous"):
        yield


def pull(problem, name, wanted, **extra):
    """Return the gradients as Dask arrays, from the output and lse for the same chunks."""
    whole = cut(problem, name)
    state = attend(*whole.arrays, **whole.options, return_lse=True, split_every=2)
    grad_output, grad_lse = (
        da.from_array(array, chunks=own.chunks)
        for array, own in zip((problem.grad_output, problem.grad_lse), state, strict=True)
    )
    gradients = gradients_of(
        grad_output,
        *whole.arrays,
        *state,
        **whole.options,
        grad_lse=grad_lse,
        with_respect_to=wanted,
        split_every=2,
        **extra,
    )
    inputs = dict(zip(("query", "key", "value"), whole.arrays, strict=True))
    for name, array in inputs.items():
        if name in wanted:
            assert getattr(gradients, name).chunks == array.chunks
    return gradients


SHAPES = (2, 4, 19, 8), (2, 2, 41, 8), (2, 2, 41, 6)
EVERYTHING = Case(
    "everything", *SHAPES, float_mask=(4, 19, 41), alibi_slopes=0.1, sinks=0.5, distance_bias=30
)


@pytest.mark.parametrize("name", regard.AttentionGradients._fields)
def test_one_gradient_has_the_bits_that_it_has_among_all(name):
    problem = build(EVERYTHING, np.dtype(np.float32), 0.3)
    together = dask.compute(*pull(problem, "cut", regard.AttentionGradients._fields))
    alone = pull(problem, "cut", [name])
    assert [field for field, array in alone._asdict().items() if array is not None] == [name]
    wanted = regard.AttentionGradients(*together)
    assert_same_bits(getattr(alone, name).compute(), getattr(wanted, name))


def test_no_gradient_at_all():
    problem = build(EVERYTHING, np.dtype(np.float32), 0.0)
    assert pull(problem, "cut", ()) == regard.AttentionGradients()


def test_gradients_share_their_tasks():
    arrays = [da.from_array(x, chunks=(2, 25, 8)) for x in drawn((3, 2, 100, 8), np.float32)]
    output, lse = attend(*arrays, is_causal=True, return_lse=True)
    gradients = gradients_of(output, *arrays, output, lse, is_causal=True)
    keys = {key for array in gradients[:3] for key in array.__dask_graph__()}
    pairs = [key for key in keys if str(key[0]).startswith("attention-gradient-part-")]
    pairs = [key for key in pairs if "-of-" not in key[0]]
    assert len(pairs) == 4 * 5 // 2


def test_keys_that_no_query_sees_have_gradients_of_zero():
    arrays = [da.from_array(x, chunks=(2, 25, 8)) for x in drawn((3, 2, 100, 8), np.float32)]
    arrays[1] = da.where(da.arange(100, chunks=25)[:, None] < 60, arrays[1], np.nan)
    output, lse = attend(*arrays, key_lengths=60, return_lse=True)
    gradients = gradients_of(output, *arrays, output, lse, key_lengths=60)
    of_query, of_key, of_value = dask.compute(*gradients[:3])
    assert np.isfinite(of_query).all()
    for gradient in (of_key, of_value):
        assert not gradient[:, 60:].any()
        assert gradient[:, :60].all()
