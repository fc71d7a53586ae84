"""Packed sequences of different lengths have the bits of a separate call for each sequence, in the
forward call and in the gradients."""

import dataclasses

import hypothesis
import numpy as np
from hypothesis import strategies as st

import gradient_reference
import regard
from drawn_problems import TARGETS, examples, laid_out, on_target
from element_types import TYPES, type_named
from error_limits import Judged, assert_within, judge
from problem import Problem, drawn
from reference import arithmetic, assert_same_bits

ragged = regard.scaled_dot_product_attention_ragged
ragged_backward = regard.scaled_dot_product_attention_ragged_backward
THREE = ("query", "key", "value")
PER_SEQUENCE = ("query_offset", "key_lengths", "left_padding")
Q_LENGTHS, K_LENGTHS = (0, 1, 2, 5, 8, 49, 130), (0, 1, 3, 8, 95, 96, 97, 200)


def turned(rows):
    """Return (length, heads, ...) as (heads, length, ...), and back."""
    return np.ascontiguousarray(rows.swapaxes(0, 1))


@dataclasses.dataclass(frozen=True)
class Packed:
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    query_starts: np.ndarray
    key_starts: np.ndarray
    options: dict
    grad_output: np.ndarray
    grad_lse: np.ndarray

    @property
    def arguments(self):
        return self.query, self.key, self.value, self.query_starts, self.key_starts

    @property
    def inputs(self):
        more = ("mask", "alibi_slopes", "distance_bias", "sinks")
        named = {name: getattr(self, name) for name in THREE}
        named |= {name: self.options[name] for name in more if name in self.options}
        return {name: x for name, x in named.items() if x.dtype != bool}

    def attend(self, **extra):
        return ragged(*self.arguments, **self.options | {"return_lse": True} | extra)

    def gradients(self, state, **extra):
        options = {"grad_lse": self.grad_lse, "with_respect_to": tuple(self.inputs)}
        given = self.grad_output, *self.arguments, *state
        return ragged_backward(*given, **self.options | options | extra)

    def sequences(self):
        """Yield (rows, keys, the problem of a single sequence)."""
        count = len(self.query_starts) - 1
        longest = max(np.diff(self.key_starts), default=0)
        for s in range(count):
            rows, keys = (slice(*x[s : s + 2]) for x in (self.query_starts, self.key_starts))
            options = dict(self.options)
            for name in PER_SEQUENCE:
                if not isinstance(options.get(name, "end"), str):
                    options[name] = int(np.broadcast_to(options[name], count)[s])
            for name, axes in (("alibi_slopes", 2), ("scale", 2), ("distance_bias", 3)):
                if np.ndim(options.get(name)) == axes:
                    options[name] = options[name][s]
            if "mask" in options:
                mask = np.broadcast_to(options["mask"], (*self.query.shape[:2], longest))
                options["mask"] = turned(mask[rows, :, : keys.stop - keys.start])
            if "dropout_p" in options:
                options["dropout_origin"] = (s, 0, 0)
            arrays = self.query[rows], self.key[keys], self.value[keys]
            grads = self.grad_output[rows], self.grad_lse[rows]
            yield rows, keys, Problem(*map(turned, arrays), options, *map(turned, grads))


@st.composite
def packed(draw):
    heads, kv_heads = draw(st.sampled_from([(1, 1), (4, 2), (6, 2), (5, 1)]))
    pairs = st.tuples(st.sampled_from(Q_LENGTHS), st.sampled_from(K_LENGTHS))
    lengths = draw(st.lists(pairs, max_size=6))
    q_lengths, k_lengths = np.array(lengths, int).reshape(-1, 2).T
    n, totals, longest = len(lengths), (q_lengths.sum(), k_lengths.sum()), max(k_lengths, default=0)
    dtype = type_named(draw(st.sampled_from(TYPES["storage"])))
    random, inner = np.random.default_rng(draw(st.integers(0, 99))), arithmetic(dtype)

    def normal(*shape):
        return random.standard_normal(shape)

    tables = {
        "is_causal": lambda: True,
        "query_offset": lambda: draw(st.sampled_from(["end", 3, np.arange(n) * 7 - 10])),
        "window": lambda: draw(st.sampled_from([(20, 3), (60, 0), (None, 5)])),
        "key_lengths": lambda: k_lengths - k_lengths // 3,
        "left_padding": lambda: k_lengths // 3,
        "softcap": lambda: draw(st.sampled_from([1.5, np.full(heads, 2.0)])),
        "scale": lambda: draw(st.sampled_from([0.4, 0.1 + abs(normal(n, heads)) / 4])),
        "alibi_slopes": lambda: normal(*draw(st.sampled_from([(heads,), (n, heads)]))) / 16,
        "distance_bias": lambda: normal(*draw(st.sampled_from([(heads, 9), (n, heads, 31)]))),
        "sinks": lambda: np.where(random.random(heads) < 0.2, -np.inf, normal(heads)),
    }
    chosen = draw(st.lists(st.sampled_from(list(tables)), unique=True, max_size=4))
    options = {name: tables[name]() for name in chosen}
    for name in ("alibi_slopes", "distance_bias", "sinks"):
        if name in options:
            options[name] = options[name].astype(inner)
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind != "none":
        shape = [draw(st.sampled_from([1, size])) for size in (totals[0], heads, longest)]
        shown = random.random(shape) < 0.7
        bias = np.where(shown, normal(*shape), -np.inf).astype(inner)
        options["mask"] = shown if kind == "bool" else bias
    if draw(st.integers(0, 3)) == 3:
        options |= {"dropout_p": 0.3, "dropout_seed": 2**40 + 3}
    shapes = (totals[0], heads, 16), (totals[1], kv_heads, 16), (totals[1], kv_heads, 11)
    arrays = [normal(*shape).astype(dtype) for shape in shapes]
    grads = normal(totals[0], heads, 11).astype(dtype), normal(totals[0], heads).astype(inner)
    starts = [np.concatenate([[0], np.cumsum(x)]) for x in (q_lengths, k_lengths)]
    return Packed(*arrays, *starts, options, *grads)


@hypothesis.given(problem=packed(), target=TARGETS, threads=st.integers(1, 4))
@examples(200)
def test_each_sequence_as_if_alone(problem, target, threads):
    with on_target(target):
        output, weights, lse = problem.attend(return_weights=True, threads=threads)
        assert_same_bits(problem.attend(), (output, lse))
        state = output, lse
        gradients = problem.gradients(state, threads=threads)
        for name, gradient in gradients._asdict().items():
            assert (gradient is not None) == (name in problem.inputs)
            if gradient is not None:
                assert gradient.shape == problem.inputs[name].shape
                assert gradient.dtype == problem.inputs[name].dtype
        for rows, keys, alone in problem.sequences():
            length = keys.stop - keys.start
            wanted = alone.attend(return_weights=True)
            own = output[rows], weights[rows, :, :length], lse[rows]
            assert_same_bits(tuple(map(turned, own)), wanted)
            assert not weights[rows, :, length:].any()
            found = alone.gradients((wanted[0], wanted[2]))
            for name, part in zip(THREE, (rows, keys, keys), strict=True):
                assert_same_bits(turned(getattr(gradients, name)[part]), getattr(found, name))


@hypothesis.given(problem=packed(), target=TARGETS)
@examples(100)
def test_gradients_of_biases_are_sums_over_sequences(problem, target):
    """Dropout identifies a sequence by its number."""
    names = [n for n in ("alibi_slopes", "distance_bias", "sinks") if n in problem.inputs]
    hypothesis.assume(names and len(problem.query_starts) > 1)
    with on_target(target):
        gradients = problem.gradients(problem.attend())
    sums = {name: [] for name in names}
    for _, _, alone in problem.sequences():
        given = alone.grad_output, *alone.arrays
        want = judge(gradient_reference.backward, alone, *given, grad_lse=alone.grad_lse)
        for name in names:
            sums[name].append(getattr(want, name))
    for name, parts in sums.items():
        exact = np.stack([part.exact for part in parts])
        if problem.inputs[name].ndim < exact.ndim:
            exact = exact.sum(axis=0)
        judged = Judged(exact, sum(part.limit for part in parts))
        assert_within(judged, getattr(gradients, name), problem.inputs[name].dtype, name)


@hypothesis.given(problem=packed(), target=TARGETS)
@examples(100)
def test_gradients_of_masks_are_summed_as_they_broadcast(problem, target):
    """Masks broadcast to (total, heads, longest kv_len)."""
    mask = problem.inputs.get("mask")
    hypothesis.assume(mask is not None)
    shape = (*problem.query.shape[:2], max(np.diff(problem.key_starts), default=0))
    whole = problem.options | {"mask": np.broadcast_to(mask, shape).copy()}
    with on_target(target):
        found = problem.gradients(problem.attend())
        expanded = dataclasses.replace(problem, options=whole)
        wanted = expanded.gradients(expanded.attend())
        assert_same_bits(found[:3], wanted[:3])
        for rows, keys, alone in expanded.sequences():
            length = keys.stop - keys.start
            assert_same_bits(turned(wanted.mask[rows, :, :length]), alone.gradients().mask)
            assert not wanted.mask[rows, :, length:].any()
    axes = tuple(i for i in range(3) if mask.shape[i] == 1)
    full = wanted.mask.astype(np.longdouble)
    # Each term is rounded as it is formed, each sum of terms is rounded in float64, and then the
    # result is rounded.
    share = np.finfo(mask.dtype).eps + np.finfo(float).eps / 2 * full.size / max(mask.size, 1)
    sizes = np.abs(full).sum(axis=axes, keepdims=True)
    judged = Judged(full.sum(axis=axes, keepdims=True), float(share * sizes.max(initial=0)))
    assert_within(judged, found.mask, mask.dtype)


@hypothesis.given(problem=packed(), target=TARGETS, kept=st.integers(0, 5))
@examples(100)
def test_other_sequences_may_hold_anything(problem, target, kept):
    """No sequence reads another one, elements past its length, or mask columns beyond its keys."""
    sequences = list(problem.sequences())
    hypothesis.assume(sequences)
    kept %= len(sequences)
    rows, keys, _ = sequences[kept]
    length = problem.options.get("key_lengths", np.diff(problem.key_starts))[kept]
    present = slice(keys.start, keys.start + int(length))
    loud = {}
    for name in (*THREE, "grad_output", "grad_lse"):
        part = present if name in ("key", "value") else rows
        loud[name] = np.full_like(getattr(problem, name), np.nan)
        loud[name][part] = getattr(problem, name)[part]
    options = dict(problem.options)
    mask = options.get("mask")
    if mask is not None and mask.shape[0] > 1:
        options["mask"] = np.full_like(mask, np.nan)  # True in a bool mask
        options["mask"][rows] = mask[rows]
    spoiled = dataclasses.replace(problem, options=options, **loud)
    with on_target(target):
        state, clean_state = spoiled.attend(), problem.attend()
        assert_same_bits(*(tuple(x[rows] for x in each) for each in (state, clean_state)))
        asked = {"with_respect_to": THREE}
        found, clean = spoiled.gradients(state, **asked), problem.gradients(clean_state, **asked)
        for name, part in zip(THREE, (rows, keys, keys), strict=True):
            assert_same_bits(getattr(found, name)[part], getattr(clean, name)[part])


@hypothesis.given(problem=packed(), target=TARGETS, data=st.data())
@examples(80)
def test_packed_arrays_of_any_layout(problem, target, data):
    def lay(array):
        return laid_out(data.draw, array) if data.draw(st.booleans()) else array

    roles = {name: lay(getattr(problem, name)) for name in (*THREE, "grad_output", "grad_lse")}
    kinds = [np.int32, np.uint16, np.int64, list]
    for name in ("query_starts", "key_starts"):
        kind, starts = data.draw(st.sampled_from(kinds)), getattr(problem, name)
        roles[name] = starts.tolist() if kind is list else np.repeat(starts.astype(kind), 2)[::2]
    options = dict(problem.options)
    if "mask" in options:
        options["mask"] = lay(options["mask"])
    moved = dataclasses.replace(problem, options=options, **roles)
    with on_target(target):
        state = problem.attend()
        assert_same_bits(moved.attend(threads=3), state)
        asked = {"with_respect_to": THREE}
        assert_same_bits(moved.gradients(state, **asked)[:3], problem.gradients(state, **asked)[:3])


def example(dtype=np.float32):
    shapes = (10, 4, 16), (23, 2, 16), (23, 2, 11)
    arrays = [drawn(shape, dtype, i) for i, shape in enumerate(shapes)]
    return *arrays, np.array([0, 4, 10]), np.array([0, 12, 23])


def test_out_is_filled_and_returned(storage, target):
    wanted = ragged(*example(storage))
    out = np.full((10, 8, 11), 7, storage)[:, ::2]
    assert ragged(*example(storage), out=out) is out
    assert_same_bits(out, wanted)


def test_sparse_masks_count_keys_from_the_first_of_each_sequence(dtype, target):
    *arrays, q_starts, k_starts = example(dtype)
    rows = np.arange(10)
    for mask in (
        regard.masks.Ranges(rows % 5, rows % 7 + 3, kv_len=12),
        regard.masks.Blocks.from_dense(drawn((10, 12), float) > 0, block=(4, 3)),
        regard.masks.stack([regard.masks.Ranges(h, rows + 3, kv_len=12) for h in range(4)]),
    ):
        dense = np.broadcast_to(mask.to_dense()[..., :12], (4, 10, 12))
        dense = np.ascontiguousarray(dense.swapaxes(0, 1))
        results = []
        for each in (mask, dense):
            state = ragged(*arrays, q_starts, k_starts, each, return_lse=True)
            given = state[0], *arrays, q_starts, k_starts, *state, each
            results.append((*state, *ragged_backward(*given)[:3]))
        assert_same_bits(*results)
