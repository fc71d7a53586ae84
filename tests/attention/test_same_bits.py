"""On one target, no bit of a result depends on the number of threads, the layout of the arrays, the
batch, the other queries, or the form in which hidden pairs are given. These properties hold for
every call that forms scores, and for any problem."""

import dataclasses
import hashlib

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import regard
from drawn_calls import attend, calls, gradients, tangents, tangents_of, weights
from drawn_problems import TARGETS, examples, laid_out, on_target
from problem import Problem
from reference import assert_same_bits, solve


@pytest.mark.every("layer")
@hypothesis.given(call=calls(), target=TARGETS, threads=st.sampled_from([2, 3, 5, 8]))
@examples(200)
def test_any_number_of_threads(layer, call, target, threads):
    family, problem = call
    with on_target(target):
        assert_same_bits(family(problem, threads=threads), family(problem, threads=1))


@hypothesis.given(call=calls(), target=TARGETS, data=st.data())
@examples(300)
def test_arrays_of_any_layout_are_left_alone(call, target, data):
    family, problem = call

    def lay(array):
        return laid_out(data.draw, array) if data.draw(st.booleans()) else array

    options = problem.with_masks(lay)
    for name in ("alibi_slopes", "distance_bias", "sinks"):
        if name in options:
            options[name] = np.repeat(options[name], 2, axis=-1)[..., ::2]
    roles = ("query", "key", "value", "grad_output", "grad_lse")
    moved = {role: lay(getattr(problem, role)) for role in roles}
    given = [*moved.values(), *(x for x in options.values() if isinstance(x, np.ndarray))]
    before = [x.tobytes() for x in given]
    for array in given:
        array.setflags(write=False)
    moved = dataclasses.replace(problem, options=options, **moved)
    with on_target(target):
        assert_same_bits(family(moved, threads=3), family(problem))
    assert [x.tobytes() for x in given] == before


PER_ENTRY = ("attend", "weights", "int8", "bfloat16", "tangents", "stream")


@hypothesis.given(call=calls(PER_ENTRY, ends=False), target=TARGETS)
@examples(200)
def test_every_entry_and_head_alone(call, target):
    family, problem = call
    problem = problem.whole()
    with on_target(target):
        wanted = family(problem)
        for index in np.ndindex(problem.batch):
            entry = problem.entry(index)
            along = (
                {"along": [t[index] for t in tangents_of(problem)]} if family is tangents else {}
            )
            part = tuple(x[index] for x in wanted)
            assert_same_bits(family(entry, **along), part)
            if family in (attend, weights) and "dropout_p" not in problem.options:
                h = len(entry.query) - 1
                assert_same_bits(family(entry.head(h)), tuple(x[h] for x in part))


@hypothesis.given(call=calls(("gradients",), dropout=False, ends=False), target=TARGETS)
@examples(120)
def test_gradients_of_every_entry_alone(call, target):
    problem = call[1].whole()
    names = [n for n in problem.inputs if n in ("query", "key", "value", "mask")]
    with on_target(target):
        wanted = problem.gradients(with_respect_to=names)
        for index in np.ndindex(problem.batch):
            alone = problem.entry(index).gradients(with_respect_to=names)
            for name in names:
                assert_same_bits(getattr(alone, name), getattr(wanted, name)[index])


@hypothesis.given(call=calls(("gradients",)), target=TARGETS, data=st.data())
@examples(120)
def test_gradients_of_some_inputs_have_the_bits_of_all(call, target, data):
    """This includes `out`, and gradients in any order."""
    problem = call[1]
    names = list(problem.inputs)
    some = data.draw(st.lists(st.sampled_from(names), unique=True))
    with on_target(target):
        state = problem.attend()
        whole = problem.gradients(state)
        part = problem.gradients(state, with_respect_to=some)
        for name in whole._fields:
            assert (getattr(part, name) is not None) == (name in some)
            if name in some:
                assert_same_bits(getattr(part, name), getattr(whole, name))
        three = names[:3]
        out = [laid_out(data.draw, np.full_like(x, 7)) for x in whole[:3]]
        if all(x.flags.writeable and x.dtype.isnative for x in out):
            given = regard.AttentionGradients(*out)
            found = problem.gradients(state, with_respect_to=three, out=given)
            assert all(mine is wanted for mine, wanted in zip(found[:3], out, strict=True))
            assert_same_bits(tuple(out), whole[:3])


PER_ROW = ("attend", "int8", "tangents", "stream")


@hypothesis.given(call=calls((*PER_ROW, "gradients"), ends=False), target=TARGETS, data=st.data())
@examples(200)
def test_some_rows_alone(call, target, data):
    """A row has the same bits among any other rows: a text decoded token by token has the results
    of the whole text. (`weights` computes scores in another order.)"""
    family, problem = call
    problem = problem.whole()
    if problem.options.get("query_offset") is None:
        problem.options["query_offset"] = 0
    q_len = problem.query.shape[-2]
    start = data.draw(st.integers(0, q_len - 1))
    rows = slice(start, data.draw(st.integers(start + 1, q_len)))
    some = problem.rows(rows.start, rows.stop)
    with on_target(target):
        if family is gradients:
            wanted = problem.gradients(with_respect_to=["query"]).query
            found = some.gradients(with_respect_to=["query"]).query
            assert_same_bits(found, wanted[..., rows, :])
            return
        along = {}
        if family is tangents:
            query, *others = tangents_of(problem)
            along = {"along": [query[..., rows, :], *others]}
        wanted = [
            x[..., rows] if x.ndim < problem.query.ndim else x[..., rows, :]
            for x in family(problem)
        ]
        assert_same_bits(tuple(family(some, **along)), tuple(wanted))


VISIBLE_BY = ("is_causal", "window", "key_lengths", "left_padding")


@hypothesis.given(call=calls(("attend", "weights"), ends=False), target=TARGETS)
@examples(200)
def test_hiding_by_position_is_hiding_by_a_mask(call, target):
    family, problem = call
    seen = solve(*problem.arrays, **problem.options).seen
    mask = problem.options.get("mask")
    bias = mask[1] if isinstance(mask, tuple) else mask
    has_bias = bias is not None and bias.dtype != bool
    kept = {k: v for k, v in problem.options.items() if k not in VISIBLE_BY}
    as_mask = dataclasses.replace(
        problem, options=kept | {"mask": (seen, bias) if has_bias else seen}
    )
    with on_target(target):
        assert_same_bits(family(as_mask), family(problem))


@hypothesis.given(
    call=calls(
        ("attend", "weights", "gradients", "tangents", "statistics", "picture", "stream"),
        ends=False,
    ),
    target=TARGETS,
    poison=st.sampled_from([np.nan, np.inf, -np.inf, 6e4]),
)
@examples(300)
def test_what_is_hidden_may_hold_anything(call, target, poison):
    """Keys and values that no query sees, and queries that see no key, change no bit."""
    family, problem = call
    problem = problem.whole()
    seen = solve(*problem.arrays, **problem.options).seen
    blind = ~seen.any(axis=-1)
    *batch, kv_heads, kv_len = problem.key.shape[:-1]
    hidden = ~seen.reshape(*batch, kv_heads, -1, kv_len).any(axis=-2)
    hypothesis.assume(blind.any() or hidden.any())
    loud = {
        name: getattr(problem, name).copy() for name in ("query", "key", "value", "grad_output")
    }
    for name, array in loud.items():
        array[hidden if name in ("key", "value") else blind] = poison
    spoiled = dataclasses.replace(problem, **loud)
    along = {}
    if family is tangents:
        along = {"along": tangents_of(problem)}
        for array, where in zip(along["along"], (blind, hidden, hidden), strict=True):
            array[where] = poison
    with on_target(target):
        assert_same_bits(family(spoiled, **along), family(problem))


@hypothesis.given(
    call=calls(
        ("attend", "weights", "int8", "gradients", "tangents", "stream"), dropout=False, ends=False
    ),
    target=TARGETS,
    filling=st.sampled_from([np.nan, np.inf, 3e4, 0.0]),
    data=st.data(),
)
@examples(200)
def test_other_entries_may_hold_anything(call, target, filling, data):
    family, problem = call
    problem = problem.whole()
    hypothesis.assume(problem.batch)
    kept = tuple(data.draw(st.integers(0, n - 1)) for n in problem.batch)
    others = np.ones(problem.batch, bool)
    others[kept] = False
    names = ("query", "key", "value", "grad_output", "grad_lse")
    loud = {name: getattr(problem, name).copy() for name in names}
    for array in loud.values():
        array[others] = filling
    spoiled = Problem(options=problem.options, **loud)
    with on_target(target), np.errstate(all="ignore"):
        if family is gradients:
            asked = {"with_respect_to": ("query", "key", "value")}
            found, wanted = (p.gradients(**asked)[:3] for p in (spoiled, problem))
        else:
            found, wanted = family(spoiled), family(problem)
    assert_same_bits(*(tuple(x[kept] for x in parts) for parts in (found, wanted)))


@hypothesis.given(call=calls(("weights",)), target=TARGETS, data=st.data())
@examples(100)
def test_the_weights_of_some_rows(call, target, data):
    """Positions, masks and dropout are those of the whole."""
    problem = call[1]
    rows = slice(*(data.draw(st.none() | st.integers(-4, 60)) for _ in range(2)))
    with on_target(target):
        output, every, lse = weights(problem)
        assert_same_bits(weights(problem, rows=rows), (output, every[..., rows, :], lse))


def test_earlier_calls_leave_no_trace(dtype, target, output_of):
    """After calls of every size, some with NaN, the bits equal the bits of a process's very first
    call."""
    script = f"""
    import hashlib
    import numpy as np, regard
    random = np.random.default_rng(4)
    inputs = [random.standard_normal((2, 37, 48)).astype("{dtype}") for _ in range(3)]
    output, lse = regard.scaled_dot_product_attention(*inputs, is_causal=True, return_lse=True)
    print(hashlib.sha256(output.tobytes() + lse.tobytes()).hexdigest())
    """
    first = output_of(script, REGARD_TARGET=target)
    random = np.random.default_rng(4)
    inputs = [random.standard_normal((2, 37, 48)).astype(dtype) for _ in range(3)]
    for q_len, kv_len, dim in [(200, 300, 128), (1, 1000, 7), (3, 2, 256), (64, 64, 64)]:
        for fill in (np.nan, np.inf, 3e38, 1.0):
            noise = [np.full((3, n, dim), fill, dtype) for n in (q_len, kv_len, kv_len)]
            regard.scaled_dot_product_attention(*noise, threads=3)
            regard.softmax(regard.matmul(noise[0], noise[1].swapaxes(-1, -2)))
        output, lse = regard.scaled_dot_product_attention(*inputs, is_causal=True, return_lse=True)
        digest = hashlib.sha256(output.tobytes() + lse.tobytes()).hexdigest()
        assert digest == first
