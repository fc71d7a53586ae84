"""Test linear attention against its recurrence, and that its bits depend on nothing else."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import regard
from drawn_problems import TARGETS, TYPES, examples, on_target
from error_limits import half_ulp
from layouts import LAYOUTS
from linear_reference import recurrence, reverse_recurrence
from reference import assert_same_bits

attend = regard.linear_attention
BATCHES = [(), (1,), (2,), (2, 3)]
HEADS = [(1, 1), (2, 1), (4, 2), (3, 3), (10, 1)]
LENGTHS = [0, 1, 2, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 100, 130, 200]
DIMS = [1, 3, 8, 16, 17, 33, 64, 100]
STRENGTHS = [0.01, 0.3, 5, 1e4]
TOKEN_AXES = {"query": -2, "key": -2, "value": -2, "beta": -1}


@st.composite
def problems(draw, batches=BATCHES, types=TYPES):
    """Draw the arguments of a call. Those with a batch may broadcast."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch, (heads, kv_heads) = draw(st.sampled_from(batches)), draw(st.sampled_from(HEADS))
    length, dim = draw(st.sampled_from(LENGTHS)), draw(st.sampled_from(DIMS))
    value_dim, dtype = draw(st.sampled_from([0, *DIMS])), np.dtype(draw(st.sampled_from(types)))
    rows, inner = (kv_heads, length), np.float64 if dtype == np.float64 else np.float32

    def normal(*shape):
        own = batch if draw(st.integers(0, 3)) else (1,) * len(batch)
        return random.standard_normal((*own, *shape))

    key = normal(*rows, dim)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    query = random.standard_normal((*batch, heads, length, dim))
    problem = {"query": query, "key": key, "value": normal(*rows, value_dim)}
    problem = {name: array.astype(dtype) for name, array in problem.items()}
    kind = draw(st.sampled_from(["none", "tokens", "columns"]))
    if kind != "none":
        shape = (*batch, *rows, dim) if kind == "columns" else normal(*rows).shape
        decay = -random.exponential(draw(st.sampled_from(STRENGTHS)), shape)
        decay[random.random(shape) < draw(st.sampled_from([0, 0.05]))] = -np.inf
        problem["decay"] = decay.astype(inner)
    if draw(st.booleans()):
        problem["beta"] = random.random(normal(*rows).shape).astype(inner)
    if draw(st.booleans()):
        problem["state"] = normal(kv_heads, dim, value_dim).astype(inner)
    if draw(st.booleans()):
        problem["scale"] = 0.7
    return problem


def call(problem, **changes):
    given = {"return_state": True} | problem | changes
    return attend(given.pop("query"), given.pop("key"), given.pop("value"), **given)


def cut(problem, tokens, **changes):
    """Return the problem of some tokens."""
    part = dict(problem)
    columns = "decay" in problem and problem["decay"].ndim == problem["query"].ndim
    for name, axis in (TOKEN_AXES | {"decay": -2 if columns else -1}).items():
        if name in part:
            part[name] = part[name][(..., tokens, *[slice(None)] * (-1 - axis))]
    return part | changes


def inner_of(problem):
    return np.float64 if problem["query"].dtype == np.float64 else np.float32


def check(problem, result):
    exact, inner = recurrence(**problem), inner_of(problem)
    naive = recurrence(**problem, dtype=inner)
    assert [x.dtype for x in result] == [problem["query"].dtype, inner]
    for own, right, rough, size in zip(result, exact[:2], naive[:2], exact.sizes, strict=True):
        check_error(own, right, rough, size)


def check_error(own, right, rough, size):
    """The error is at most twice that of the recurrence in the same arithmetic, plus what rounding
    does to products that are summed in another order."""
    assert own.shape == right.shape
    limit = 2 * np.abs(rough - right).max(initial=0)
    limit += 2 * np.finfo(rough.dtype).eps * size.max(initial=0)
    limit += 100 * np.finfo(rough.dtype).tiny  # decays that would be denormal are 0
    error = np.abs(own.astype(np.longdouble) - right)
    assert (error <= limit + half_ulp(np.abs(right).astype(float) + float(limit), own.dtype)).all()


def gradients(problem, grad_output, **given):
    given = problem | given
    inputs = (given.pop("query"), given.pop("key"), given.pop("value"))
    return regard.linear_attention_backward(grad_output, *inputs, **given)


@hypothesis.given(problem=problems(), target=TARGETS, layout=st.sampled_from([*LAYOUTS]))
@examples(300)
def test_the_recurrence(problem, target, layout):
    arrays = {name: problem[name] for name in ("query", "key", "value")}
    with on_target(target):
        result = call(problem)
        moved = {name: LAYOUTS[layout](array) for name, array in arrays.items()}
        assert_same_bits(call(problem | moved, threads=3), result)
        state = np.array(problem.get("state", np.zeros_like(result[1])))
        if state.shape == result[1].shape:
            out = np.empty_like(result[0]), state
            in_place = call(problem | {"state": state}, out=out)
            assert in_place[0] is out[0]
            assert in_place[1] is state
            assert_same_bits(in_place, result)
    check(problem, result)


@hypothesis.given(problem=problems(), target=TARGETS, data=st.data())
@examples(100)
def test_parts_have_the_same_bits(problem, target, data):
    """A call for all tokens gives the bits of calls for the first ones, and of those that continue
    from a state after whole chunks."""
    length = problem["query"].shape[-2]
    end, middle = data.draw(st.integers(0, length)), 64 * data.draw(st.integers(0, length // 64))
    with on_target(target):
        output, state = call(problem)
        first, _ = call(cut(problem, slice(end)))
        assert_same_bits(first, output[..., :end, :])
        before, kept = call(cut(problem, slice(middle)))
        after = call(cut(problem, slice(middle, None), state=kept))
        assert_same_bits(
            (before, *after), (output[..., :middle, :], output[..., middle:, :], state)
        )


@hypothesis.given(problem=problems(batches=[()]), target=TARGETS, data=st.data())
@examples(100)
def test_packed_texts(problem, target, data):
    length = problem["query"].shape[-2]
    ends = sorted(data.draw(st.lists(st.integers(0, length), max_size=4)))
    starts = [0, *ends, length]
    packed = problem | {n: problem[n].swapaxes(0, 1) for n in TOKEN_AXES if n in problem}
    if "decay" in problem:
        packed["decay"] = problem["decay"].swapaxes(0, 1)
    with on_target(target):
        output, states = call(packed, starts=starts)
        assert len(states) == len(starts) - 1
        for begin, end, state in zip(starts, starts[1:], states, strict=False):
            alone = call(cut(problem, slice(begin, end)))
            assert_same_bits((output[begin:end].swapaxes(0, 1), state), alone)


@hypothesis.given(problem=problems(), target=TARGETS, data=st.data())
@examples(50)
def test_a_token_that_is_no_number_changes_no_earlier_one(problem, target, data):
    length = problem["query"].shape[-2]
    token = data.draw(st.integers(0, max(length - 1, 0)))
    name = data.draw(st.sampled_from([n for n in (*TOKEN_AXES, "decay") if n in problem]))
    with on_target(target):
        output, _ = call(problem)
        cut(problem, slice(token, None))[name][...] = data.draw(st.sampled_from([np.nan, np.inf]))
        spoiled, _ = call(problem)
    assert_same_bits(spoiled[..., :token, :], output[..., :token, :])
    seen = problem["value"].shape[-1] and length and (name != "decay" or token > 0)
    if seen and np.isnan(problem[name]).any():
        assert np.isnan(spoiled[..., token:, :]).all()


@pytest.mark.parametrize("columns", [False, True])
def test_decays_beyond_the_range_of_numbers(columns, target):
    """Sums of -1e4 neither overflow nor hide later decays, and an infinite decay forgets."""
    random = np.random.default_rng(0)
    query, key, value = random.standard_normal((3, 2, 130, 16), dtype=np.float32)
    decay = -random.exponential(0.1, query.shape if columns else query.shape[:-1])
    decay[:, 3::7], decay[:, 5::9], decay[:, [0, 50, 51, 127]] = -1e4, 0.9, -np.inf
    problem = {"query": query, "key": key, "value": value, "decay": decay.astype(np.float32)}
    check(problem, call(problem))
    forgotten = call(problem | {"state": np.full((2, 16, 16), 1e30, np.float32)})
    assert_same_bits(forgotten, call(problem))


def test_two_dimensions_lists_and_no_query_heads():
    x = np.arange(6.0).reshape(3, 2)
    output, state = attend(x, x.tolist(), x, decay=[0, 0, 0], scale=1, return_state=True)
    np.testing.assert_allclose(state, x.T @ x)
    np.testing.assert_allclose(output[-1], x[-1] @ x.T @ x)
    wide = np.ones((4, 3, 2), np.float32)
    _, state = attend(wide[:0], wide, wide, beta=np.float64(0.5), return_state=True)
    assert state.dtype == np.float32
    assert_same_bits(state, attend(wide, wide, wide, beta=0.5, return_state=True)[1])


@hypothesis.given(problem=problems(), target=TARGETS, seed=st.integers(0, 99), ends=st.booleans())
@examples(100)
def test_gradients(problem, target, seed, ends):
    random, inner = np.random.default_rng(seed), inner_of(problem)
    output, state = call(problem)
    grad_output = random.standard_normal(output.shape).astype(output.dtype)
    grad_state = random.standard_normal(state.shape).astype(inner) if ends else None
    with on_target(target):
        found = gradients(problem, grad_output, grad_state=grad_state, threads=1)
        again = gradients(problem, LAYOUTS["reversed"](grad_output), grad_state=grad_state)
    given = [name for name in found._fields if getattr(found, name) is not None]
    assert set(given) == problem.keys() - {"scale"}
    assert_same_bits(*(tuple(getattr(x, name) for name in given) for x in (again, found)))
    exact, sizes = reverse_recurrence(problem, grad_output, grad_state if ends else 0)
    rough, _ = reverse_recurrence(problem, grad_output, grad_state if ends else 0, inner)
    for name in given:
        assert getattr(found, name).dtype == problem[name].dtype
        check_error(getattr(found, name), exact[name], rough[name], sizes[name])


@hypothesis.given(problem=problems(types=["float64"]), seed=st.integers(0, 99))
@examples(20)
def test_the_reference_gradients_are_differences(problem, seed):
    random = np.random.default_rng(seed)
    problem = {n: np.maximum(x, -30).astype(np.longdouble) for n, x in problem.items()}
    output, state, _ = recurrence(**problem)
    of_output, of_state = (random.standard_normal(x.shape) for x in (output, state))
    exact, sizes = reverse_recurrence(problem, of_output, of_state)
    for name, gradient in exact.items():
        step = 1e-6 * random.standard_normal(gradient.shape)
        ends = [recurrence(**problem | {name: problem[name] + s * step}) for s in (1, -1)]
        difference = (of_output * (ends[0].output - ends[1].output)).sum()
        difference += (of_state * (ends[0].state - ends[1].state)).sum()
        error = abs((gradient * step).sum() - difference / 2)
        limit = 1e-5 * (sizes[name] * abs(step)).sum()
        assert error <= limit + 100 * np.finfo(np.longdouble).eps * (1 + output.size + state.size)


@hypothesis.given(problem=problems(batches=[()]), target=TARGETS, data=st.data())
@examples(30)
def test_gradients_of_packed_texts(problem, target, data):
    length = problem["query"].shape[-2]
    starts = [0, *sorted(data.draw(st.lists(st.integers(0, length), max_size=4))), length]
    grad_output = np.ones_like(call(problem)[0])
    packed = problem | {
        n: problem[n].swapaxes(0, 1) for n in (*TOKEN_AXES, "decay") if n in problem
    }
    with on_target(target):
        together = gradients(packed, grad_output.swapaxes(0, 1), starts=starts)
        for begin, end in itertools.pairwise(starts):
            alone = gradients(cut(problem, slice(begin, end)), grad_output[:, begin:end])
            for whole, part in zip(together[:5], alone[:5], strict=True):
                if part is not None:
                    assert_same_bits(whole[begin:end].swapaxes(0, 1), part)
