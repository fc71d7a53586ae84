"""Test the gradients of attention against the oracle, with every option, type and kind of
broadcast, and check which changes of a call must not change a bit of them."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

import gradient_reference
import regard
from cases import LAYOUTS, Case
from element_types import each_in_one_type, type_named
from gradient_cases import FEW, MORE, OTHERS, GradientProblem, assert_within, build, drawn
from option_cases import MIXES
from reference import assert_same_bits

sdpa = regard.scaled_dot_product_attention
sdpa_backward = regard.scaled_dot_product_attention_backward
THREADS = (1, 2, 3, 5)


def check(problem, want, **extra):
    """Check every gradient, its shape and its type; inputs without a gradient must have None."""
    actual = problem.gradients(**extra)
    assert type(actual) is regard.AttentionGradients
    assert actual._fields == want._fields
    for name, gradient in actual._asdict().items():
        if name not in problem.inputs:
            assert gradient is None, name
        else:
            assert_within(getattr(want, name), gradient, problem.inputs[name].dtype, name)


@functools.lru_cache(maxsize=8)
def solved(case, dtype):
    """Return a problem and the oracle's result, computed once for all targets."""
    problem = build(case, dtype)
    return problem, problem.expected()


@each_in_one_type(FEW, "storage")
def test_oracle(case, storage, target):
    check(*solved(case, storage))


@pytest.mark.slow
@each_in_one_type(OTHERS[::4], "storage", often=2)
def test_oracle_of_the_other_cases(case, storage, target):
    check(*solved(case, storage), threads=2)


SHAPES = {"query": (2, 4, 9, 8), "key": (2, 2, 21, 8), "value": (2, 2, 21, 6)}
MASKS = [(1, 1, 1, 21), (1, 4, 9, 21), (2, 1, 1, 21), (9, 21), (1, 1, 9, 1), (), (1,), (21,)]
MASKS += [(2, 4, 9, 21), (4, 1, 1), (2, 1, 1, 1), (2, 4, 9, 1), (1, 9, 1), (2, 4, 1, 21)]


@each_in_one_type(MASKS, "storage")
def test_gradients_of_masks_are_summed_as_they_broadcast(case, storage, target):
    """The mask is passed by itself and in a pair, in its own type, whatever the type of the
    arrays."""
    problem = build(Case(f"mask {case}", **SHAPES, float_mask=case, window=(14, 9)), storage, 0.2)
    check(problem, problem.expected())
    shown = np.random.default_rng(1).random((9, 21)) < 0.8
    for dtype in ("float16", "float32", "float64"):
        bias = problem.options["mask"].astype(dtype)
        pair = dataclasses.replace(problem, options=problem.options | {"mask": (shown, bias)})
        check(pair, pair.expected())


def test_gradients_of_arrays_in_several_types(target):
    """Each gradient has the type of its input; the widest input type determines the arithmetic."""
    types = [type_named(name) for name in ("float32", "float64", "float16", "bfloat16")]
    case = Case("types", **SHAPES, sinks=0.5, alibi_slopes=0.1, is_causal=True, query_offset=9)
    problem = build(case, np.dtype(np.float32), 0.0)
    for chosen in itertools.permutations(types, 3):
        arrays = [x.astype(t) for x, t in zip(problem.arrays, chosen, strict=True)]
        mixed = GradientProblem(*arrays, problem.options, problem.grad_output, problem.grad_lse)
        check(mixed, mixed.expected())


def test_gradients_of_lists_are_of_float64(target):
    arrays = [drawn(shape, np.float64, 2) for shape in ((3, 4), (5, 4), (5, 2))]
    grad_output = drawn((3, 2), np.float64, 3)
    output, lse = sdpa(*arrays, return_lse=True)
    wanted = sdpa_backward(grad_output, *arrays, output, lse)
    lists = [x.tolist() for x in (grad_output, *arrays, output, lse)]
    assert_same_bits(sdpa_backward(*lists)[:3], wanted[:3])


SOME = [*MIXES[::6], MORE[3]]


@each_in_one_type(SOME, "storage")
def test_gradients_alone_have_the_bits_of_all(case, storage, target):
    """The bits do not depend on which gradients are requested, or in which order."""
    problem = build(case, storage)
    state, names = problem.attend(), tuple(problem.inputs)
    whole = problem.gradients(state)
    asked = [(name,) for name in names] + list(itertools.combinations(names[:3], 2))
    for some in [*asked, names[::-1], list(names), set(names), ()]:
        part = problem.gradients(state, with_respect_to=some)
        for name in whole._fields:
            if name in some:
                assert_same_bits(getattr(part, name), getattr(whole, name))
            else:
                assert getattr(part, name) is None
    three = sdpa_backward(
        problem.grad_output, *problem.arrays, *state, **problem.options, grad_lse=problem.grad_lse
    )
    assert_same_bits(three[:3], whole[:3])
    assert set(three[3:]) == {None}


@each_in_one_type(SOME, "storage")
def test_out_is_filled_and_returned_with_gradients(case, storage, target):
    problem = build(case, storage)
    state = problem.attend()
    wanted = problem.gradients(state)
    three = ("query", "key", "value")
    for lay in (np.array, *(LAYOUTS[name] for name in ("fortran", "reversed", "every_third_row"))):
        out = [lay(np.full_like(getattr(wanted, name), 7)) for name in three]
        given = regard.AttentionGradients(*out)
        actual = problem.gradients(state, with_respect_to=three, out=given)
        for mine, gradient, right in zip(out, actual, wanted, strict=False):
            assert gradient is mine
            assert_same_bits(mine, right)


@each_in_one_type(MIXES[::12], "storage")
def test_no_gradient_of_lse_is_one_of_zeros(case, storage, target):
    problem = build(case, storage)
    zeros = np.zeros_like(problem.grad_lse)
    wanted = problem.gradients(grad_lse=zeros)
    for gradient, right in zip(problem.gradients(grad_lse=None), wanted, strict=True):
        assert right is None or np.array_equal(gradient, right)


def test_gradients_follow_from_lse_alone(dtype, target):
    """The loss depends on lse only: the gradient of the output is zero, and so is that of the
    values."""
    case = Case("lse", **SHAPES, sinks=1.0, float_mask=(9, 21), softcap=3.0)
    problem = build(case, dtype, 0.0)
    grads = np.zeros_like(problem.grad_output), drawn((2, 4, 9), dtype, 4)
    problem = GradientProblem(*problem.arrays, problem.options, *grads)
    check(problem, problem.expected())
    actual = problem.gradients()
    assert not actual.value.any()
    # If all scores of a row and its sink increase equally, lse increases as much: the sinks' shares
    # are the rest.
    shares = actual.mask.astype(np.float64).sum() + actual.sinks.astype(np.float64).sum()
    total = problem.grad_lse.astype(np.float64).sum()
    assert abs(shares - total) <= 200 * np.finfo(dtype).eps * np.abs(problem.grad_lse).sum()


# Bit equality


@each_in_one_type([*MIXES[::8], *MORE[-5:]], "storage")
def test_gradients_for_any_number_of_threads(case, storage, target, layer):
    problem = build(case, storage)
    state = problem.attend()
    one, *others = (problem.gradients(state, threads=n) for n in THREADS)
    for name, gradient in one._asdict().items():
        for other in others:
            assert getattr(other, name) is gradient is None or name in problem.inputs
            if gradient is not None:
                assert_same_bits(getattr(other, name), gradient)


def check_entries(case, dtype):
    problem = build(case, dtype, 0.0).whole()
    names = [name for name in problem.inputs if name in ("query", "key", "value", "mask")]
    wanted = problem.gradients(with_respect_to=names)
    for index in np.ndindex(problem.batch):
        alone = problem.entry(index).gradients(with_respect_to=names)
        for name in names:
            assert_same_bits(getattr(alone, name), getattr(wanted, name)[index])


@each_in_one_type(MIXES[::9], "storage")
def test_gradients_of_every_entry_alone(case, storage, target):
    """All options are used, and per-entry options are split along with the batch."""
    check_entries(case, storage)


@pytest.mark.slow
@each_in_one_type([*MIXES, *MORE[-5:]], "storage")
def test_gradients_of_every_entry_of_every_mix_alone(case, storage, target):
    check_entries(case, storage)


@each_in_one_type(MIXES[::9], "storage")
def test_gradients_of_some_queries_alone(case, storage, target):
    """A query's gradient has the same bits by itself as among all queries."""
    problem = build(case, storage)
    if problem.query.shape[:-3] != problem.batch:
        problem = problem.whole()
    wanted = problem.gradients(with_respect_to=["query"]).query
    q_len = problem.query.shape[-2]
    for length in (1, 7, 40):
        for start in range(0, q_len, length):
            alone = problem.rows(start, start + length).gradients(with_respect_to=["query"])
            assert_same_bits(alone.query, wanted[..., start : start + length, :])


ROLES = ["query", "key", "value", "grad_output", "grad_lse", "output", "lse", "mask"]


@functools.lru_cache(maxsize=8)
def lying(dtype, target):
    """Return a problem, its output and lse, and its gradients, on the active target."""
    assert target == regard.active_target()
    case = Case(
        *("layouts", (2, 4, 37, 19), (2, 2, 101, 19), (2, 2, 101, 23)),
        float_mask=(2, 4, 37, 101),
        is_causal=True,
        query_offset=60,
        alibi_slopes=0.1,
        sinks=0.5,
    )
    problem = build(case, dtype, 0.3)
    state = problem.attend()
    return problem, state, problem.gradients(state)


def check_layouts(moved, dtype):
    problem, (output, lse), wanted = lying(dtype, regard.active_target())
    options = problem.options | {"mask": moved.pop("mask", problem.options["mask"])}
    state = moved.pop("output", output), moved.pop("lse", lse)
    moved = dataclasses.replace(problem, options=options, **moved)
    for gradient, right in zip(moved.gradients(state), wanted, strict=True):
        assert right is None or gradient.flags.c_contiguous
        assert right is None or assert_same_bits(gradient, right) is None


def arrays_of(dtype):
    problem, (output, lse), _ = lying(dtype, regard.active_target())
    arrays = {role: getattr(problem, role, problem.options.get(role)) for role in ROLES}
    return arrays | {"output": output, "lse": lse}


@each_in_one_type(list(itertools.product(ROLES, LAYOUTS))[::3], "storage")
def test_one_argument_of_the_gradients_elsewhere(case, storage, target):
    role, layout = case
    check_layouts({role: LAYOUTS[layout](arrays_of(storage)[role])}, storage)


@each_in_one_type(LAYOUTS, "storage")
def test_all_arguments_of_the_gradients_elsewhere(case, storage, target):
    check_layouts({role: LAYOUTS[case](x) for role, x in arrays_of(storage).items()}, storage)


@each_in_one_type(["query", "key", "value", "grad_output", "mask"], "storage")
def test_broadcast_arrays_have_the_gradients_of_copies(case, storage, target):
    """A broadcast array has strides of 0. The caller passed an array of the full shape, so its
    gradient has this shape."""
    problem, array = lying(storage, regard.active_target())[0], arrays_of(storage)[case]
    for axis in range(4):
        thin = np.broadcast_to(np.take(array, [0], axis), array.shape)
        wanted, actual = (
            dataclasses.replace(problem, options=problem.options | {"mask": x})
            if case == "mask"
            else dataclasses.replace(problem, **{case: x})
            for x in (thin.copy(), thin)
        )
        for gradient, right in zip(actual.gradients(), wanted.gradients(), strict=True):
            assert right is None or assert_same_bits(gradient, right) is None


@pytest.mark.parametrize("shape", [(), (150,), (2, 1, 1, 150), (4, 1, 150), (4, 1, 1)], ids=str)
def test_a_mask_that_is_broadcast_has_the_gradients_of_its_copy(shape, dtype, target):
    """There are many rows. The gradient of a mask without rows must not be summed in another
    order."""
    case = Case("many rows", (2, 4, 130, 16), (2, 2, 150, 16), (2, 2, 150, 11), float_mask=shape)
    problem = build(case, dtype, 0.0)
    whole = problem.whole().gradients()
    assert_same_bits(problem.gradients()[:3], whole[:3])


@pytest.mark.parametrize("lengths", [(0, 7), (7, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("batch", [(), (2,), (0,), (3, 0)], ids=str)
def test_gradients_of_empty_arrays_are_zero(lengths, batch, dtype, target):
    q_len, kv_len = lengths
    shapes = (*batch, 4, q_len, 5), (*batch, 2, kv_len, 5), (*batch, 2, kv_len, 3)
    options = {"float_mask": (4, q_len, kv_len), "alibi_slopes": 0.3, "sinks": 1.0}
    options["distance_bias"] = 3
    problem = build(Case(f"empty {batch} {lengths}", *shapes, **options), dtype, 0.3)
    problem = dataclasses.replace(problem, grad_lse=np.zeros_like(problem.grad_lse))
    gradients = problem.gradients()
    for name, array in problem.inputs.items():
        assert_same_bits(np.abs(getattr(gradients, name)), np.zeros_like(array))


def test_gradients_without_heads(dtype, target):
    arrays = [np.ones(shape, dtype) for shape in ((2, 0, 5, 8), (2, 0, 9, 8), (2, 0, 9, 3))]
    options = {"distance_bias": np.ones((0, 3), dtype), "return_lse": True}
    state = regard.scaled_dot_product_attention(*arrays, **options)
    asked = ("query", "value", "distance_bias")
    del options["return_lse"]
    gradients = sdpa_backward(state[0], *arrays, *state, **options, with_respect_to=asked)
    assert [x.shape for x in (gradients[0], gradients[2])] == [x.shape for x in arrays[::2]]
    assert gradients.distance_bias.shape == (0, 3)


def test_inputs_of_the_gradients_are_left_alone(storage, target):
    problem, state, _ = lying(storage, regard.active_target())
    arrays = [*problem.arrays, *state, problem.grad_output, problem.grad_lse]
    arrays.append(problem.options["mask"])
    before = [x.tobytes() for x in arrays]
    for array in arrays:
        array.setflags(write=False)
    problem.gradients(state, threads=2)
    assert [x.tobytes() for x in arrays] == before


@pytest.mark.parametrize("batch", [1, 3])
def test_heads_of_a_query_share_a_row_of_a_mask(batch, dtype, target):
    """Seven query heads share a key head, so a query's rows would be split between threads if the
    threads divided the strips."""
    random = np.random.default_rng(0)
    query = random.standard_normal((batch, 7, 200, 8)).astype(dtype)
    key, value = random.standard_normal((2, batch, 1, 30, 8)).astype(dtype)
    mask = random.standard_normal((200, 30)).astype(dtype)
    output, lse = regard.scaled_dot_product_attention(query, key, value, mask, return_lse=True)
    given = output, query, key, value, output, lse, mask
    wanted = regard.scaled_dot_product_attention_backward(
        *given, with_respect_to=["mask"], threads=1
    ).mask
    exact = gradient_reference.backward(
        output.astype(float), *(x.astype(float) for x in (query, key, value)), mask
    )
    assert np.abs(wanted - exact.mask).max() < 1000 * np.finfo(dtype).eps
    for threads in (2, 3, 5):
        for _ in range(5):
            mine = regard.scaled_dot_product_attention_backward(
                *given, with_respect_to=["mask"], threads=threads
            ).mask
            assert_same_bits(mine, wanted)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_a_float64_gradient_of_a_float32_call_is_rounded(target):
    """As by a NumPy user whose loss is computed in float64."""
    query, key, value, grad_output = (normal(2, 9, 16) for _ in range(4))
    wide = grad_output.astype(np.float64) * (1 + 2.0**-40)
    output, lse = sdpa(query, key, value, return_lse=True)
    for given, same in ((wide, wide.astype("f4")), (wide.astype(">f8"), wide.astype("f4"))):
        wanted, found = (
            regard.scaled_dot_product_attention_backward(each, query, key, value, output, lse)
            for each in (same, given)
        )
        for name in ("query", "key", "value"):
            assert getattr(found, name).dtype == np.float32
            assert_same_bits(getattr(found, name), getattr(wanted, name))
    for narrow, rounded in zip(
        regard.scaled_dot_product_attention_jvp(query, key, value, wide.astype("f4"), None, None),
        regard.scaled_dot_product_attention_jvp(query, key, value, wide, None, None),
        strict=True,
    ):
        assert_same_bits(rounded, narrow)


@pytest.mark.parametrize("sink", [2.3e38, 2.4e38, 3.4e38])
def test_sinks_as_large_as_the_range(sink, target):
    """The sink has all weight: it gets the gradient of lse, and no other gradient is NaN."""
    query, key, value = (normal(2, 9, 16) for _ in range(3))
    sinks = np.full(2, sink)
    output, lse = sdpa(query, key, value, sinks=sinks, return_lse=True)
    assert (output == 0).all()
    assert np.isfinite(lse).all()
    gradients = regard.scaled_dot_product_attention_backward(
        np.ones_like(output),
        query,
        key,
        value,
        output,
        lse,
        sinks=sinks,
        grad_lse=np.ones_like(lse),
        with_respect_to=("query", "key", "value", "sinks"),
    )
    assert (gradients.sinks == 9).all()
    assert all((part == 0).all() for part in (gradients.query, gradients.key, gradients.value))
