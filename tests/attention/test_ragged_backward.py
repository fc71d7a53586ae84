"""The gradients of packed sequences have the bits of a separate call for each sequence."""

import dataclasses
import itertools

import numpy as np
import pytest

import gradient_reference
import regard
from cases import LAYOUTS
from element_types import each_in_one_type
from gradient_cases import GradientProblem, Judged, assert_within, drawn, judge
from reference import arithmetic, assert_same_bits

HEADS, KV_HEADS = 4, 2
PER_SEQUENCE = ("query_offset", "key_lengths", "left_padding")
THREE = ("query", "key", "value")


def starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths, dtype=int)])


def turned(rows):
    """Return (length, heads, ...) as (heads, length, ...), and back."""
    return rows.swapaxes(0, 1)


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
        named = dict(zip(THREE, self.arguments[:3], strict=True))
        more = ("mask", "alibi_slopes", "distance_bias", "sinks")
        named |= {name: self.options[name] for name in more if name in self.options}
        return {name: x for name, x in named.items() if x.dtype != bool}

    def attend(self, **extra):
        options = self.options | {"return_lse": True} | extra
        return regard.scaled_dot_product_attention_ragged(*self.arguments, **options)

    def gradients(self, state=None, **extra):
        state = self.attend() if state is None else state
        options = {"grad_lse": self.grad_lse, "with_respect_to": tuple(self.inputs)}
        return regard.scaled_dot_product_attention_ragged_backward(
            self.grad_output, *self.arguments, *state, **self.options | options | extra
        )

    def sequences(self):
        """Yield (rows, keys, the problem of a single sequence)."""
        count = len(self.query_starts) - 1
        for s in range(count):
            rows = slice(*self.query_starts[s : s + 2])
            keys = slice(*self.key_starts[s : s + 2])
            options = dict(self.options)
            for name in PER_SEQUENCE:
                if not isinstance(options.get(name, "end"), str):
                    options[name] = int(np.broadcast_to(options[name], count)[s])
            for name, axes in (("alibi_slopes", 2), ("scale", 2), ("distance_bias", 3)):
                if np.ndim(options.get(name)) == axes:
                    options[name] = options[name][s]
            if "mask" in options:
                shape = len(self.query), HEADS, max(np.diff(self.key_starts))
                mask = np.broadcast_to(options["mask"], shape)[rows, :, : keys.stop - keys.start]
                options["mask"] = turned(mask)
            arrays = self.query[rows], self.key[keys], self.value[keys]
            grads = turned(self.grad_output[rows]), turned(self.grad_lse[rows])
            yield rows, keys, GradientProblem(*map(turned, arrays), options, *grads)


LENGTHS = {
    "one": ([17], [30]),
    "uneven": ([1, 49, 5, 130, 3], [97, 96, 300, 150, 1]),
    "decode": ([1] * 7, [1, 8, 95, 96, 97, 200, 33]),
    "empty": ([0, 5, 0, 0, 7, 0], [9, 20, 0, 3, 11, 0]),
    "keyless": ([4, 6, 5], [0, 100, 0]),
    "long": ([30, 2, 70], [1000, 2500, 70]),
    "many": ([3, 1, 2] * 20, [5, 9, 2] * 20),
    "none": ([], []),
    "no-keys": ([3, 5], [0, 0]),
}
OPTIONS = {
    "plain": lambda n, t: {},
    "causal-offsets": lambda n, t: {"is_causal": True, "query_offset": np.arange(n) * 7 - 10},
    "causal-end": lambda n, t: {"is_causal": True, "query_offset": "end"},
    "window": lambda n, t: {"window": (20, 3), "query_offset": 4},
    "softcap": lambda n, t: {"softcap": 1.5, "scale": 0.7},
    "alibi": lambda n, t: {"alibi_slopes": t([0.5, 0.1, -0.2, 0.0]), "query_offset": 3},
    "slopes": lambda n, t: {"alibi_slopes": t(np.arange(4.0 * n).reshape(n, 4) / (16 * n + 1))},
    "distances": lambda n, t: {
        "distance_bias": t(np.sin(np.arange(4.0 * 31))).reshape(4, 31),
        "query_offset": np.arange(n) * 7 - 10,
    },
    "scales and distances": lambda n, t: {
        "distance_bias": t(np.sin(np.arange(4.0 * n * 9))).reshape(n, 4, 9),
        "scale": t(0.1 + np.arange(4.0 * n).reshape(n, 4) / (16 * n + 1)),
        "softcap": t([0.5, np.inf, 3, 2]),
    },
    "sinks": lambda n, t: {"sinks": t([0.5, -np.inf, 3, -2])},
    "lengths": lambda n, t: {"key_lengths": None},
    "padding": lambda n, t: {"left_padding": None, "query_offset": "end", "window": (60, 0)},
    "bool": lambda n, t: {"mask": bool},
    "float": lambda n, t: {"mask": float},
    "everything": lambda n, t: {
        "is_causal": True,
        "query_offset": np.arange(n) * 5,
        "window": (60, 0),
        "key_lengths": None,
        "softcap": 2.0,
        "alibi_slopes": t([0.05, 0.01, -0.02, 0.0]),
        "sinks": t([0.5, -np.inf, 1, -2]),
        "scale": 0.4,
        "mask": float,
    },
}


def build(lengths, options, dtype, dropout=0.0):
    q_lengths, k_lengths = (np.array(x, int) for x in LENGTHS[lengths])
    totals, longest = (q_lengths.sum(), k_lengths.sum()), max(k_lengths, default=0)
    arrays = [
        drawn((totals[0], HEADS, 16), dtype, 1),
        drawn((totals[1], KV_HEADS, 16), dtype, 2),
        drawn((totals[1], KV_HEADS, 11), dtype, 3),
    ]
    options = OPTIONS[options](len(q_lengths), lambda x: np.array(x, arithmetic(dtype)))
    if "key_lengths" in options:
        options["key_lengths"] = k_lengths - k_lengths // 3
    if "left_padding" in options:
        options["left_padding"] = k_lengths // 3
    if "mask" in options:
        shape = totals[0], HEADS, longest
        mask = np.random.default_rng(4).random(shape) < 0.7
        bias = np.where(mask, drawn(shape, np.float64, 5), -np.inf).astype(dtype)
        options["mask"] = mask if options["mask"] is bool else bias
    if dropout:
        options |= {"dropout_p": dropout, "dropout_seed": 2**40 + 3}
    grads = drawn((totals[0], HEADS, 11), dtype, 6), drawn((totals[0], HEADS), arithmetic(dtype), 7)
    return Packed(*arrays, starts(q_lengths), starts(k_lengths), options, *grads)


PRODUCT = list(itertools.product(LENGTHS, OPTIONS))


def check_alone(case, dtype):
    packed = build(*case, dtype)
    state = packed.attend()
    actual = packed.gradients(state)
    for name, gradient in actual._asdict().items():
        assert (gradient is not None) == (name in packed.inputs)
        if gradient is not None:
            assert gradient.shape == packed.inputs[name].shape
            assert gradient.dtype == packed.inputs[name].dtype
    for rows, keys, problem in packed.sequences():
        alone = problem.gradients()
        assert_same_bits(turned(actual.query[rows]), alone.query)
        assert_same_bits(turned(actual.key[keys]), alone.key)
        assert_same_bits(turned(actual.value[keys]), alone.value)
        if alone.mask is not None:
            length = keys.stop - keys.start
            assert_same_bits(turned(actual.mask[rows, :, :length]), alone.mask)
            assert not actual.mask[rows, :, length:].any()
    for threads in (1, 2, 5):
        again = packed.gradients(state, threads=threads)
        for gradient, right in zip(again, actual, strict=True):
            assert right is None or assert_same_bits(gradient, right) is None


@each_in_one_type(PRODUCT[::4], "storage")
def test_gradients_of_each_sequence_as_if_alone(case, storage, target):
    check_alone(case, storage)


@pytest.mark.slow
@each_in_one_type(PRODUCT, "storage")
def test_gradients_of_each_sequence_of_every_case_as_if_alone(case, storage, target):
    check_alone(case, storage)


@each_in_one_type(
    list(
        itertools.product(
            ("uneven", "empty"),
            ("causal-end", "slopes", "distances", "scales and distances", "sinks", "everything"),
            (0, 0.3),
        )
    ),
    "storage",
)
def test_oracle_of_ragged_gradients(case, storage, target):
    """Dropout identifies a sequence by its number. The gradients of slopes and sinks are sums over
    all sequences."""
    lengths, options, dropout = case
    packed = build(lengths, options, storage, dropout)
    actual, sums = packed.gradients(), {}
    for number, (rows, keys, problem) in enumerate(packed.sequences()):
        grads = {"grad_lse": problem.grad_lse, "entries": number}
        arrays = problem.grad_output, *problem.arrays
        want = judge(gradient_reference.backward, problem, *arrays, **grads)
        for name, part in zip(THREE, (rows, keys, keys), strict=True):
            gradient = np.ascontiguousarray(turned(getattr(actual, name)[part]))
            assert_within(getattr(want, name), gradient, storage, name)
        if want.mask is not None:
            mask = actual.mask[rows, :, : keys.stop - keys.start]
            assert_within(want.mask, np.ascontiguousarray(turned(mask)), storage, "mask")
        for name in ("alibi_slopes", "distance_bias", "sinks"):
            sums.setdefault(name, []).append(getattr(want, name))
    for name, parts in sums.items():
        if name in packed.inputs:
            exact = [part.exact for part in parts]
            is_own = np.ndim(packed.inputs[name]) > np.ndim(exact[0])
            exact = np.stack(exact) if is_own else np.sum(exact, axis=0)
            judged = Judged(exact, sum(part.limit for part in parts))
            assert_within(judged, getattr(actual, name), arithmetic(storage), name)


@pytest.mark.parametrize(
    "axes", [(), (1,), (300,), (4, 1), (1, 300), (188, 1, 1), (1, 4, 1), (1, 4, 300)], ids=str
)
def test_gradients_of_ragged_masks_are_summed_as_they_broadcast(axes, dtype, target):
    """Masks broadcast to (total, heads, longest kv_len), and the gradient of the whole mask is
    summed."""
    packed = build("uneven", "plain", dtype)
    mask = drawn(axes, dtype, 8)
    whole = np.broadcast_to(mask, (188, HEADS, 300)).copy()
    wanted = dataclasses.replace(packed, options={"mask": whole}).gradients()
    actual = dataclasses.replace(packed, options={"mask": mask}).gradients()
    for name in THREE:
        assert_same_bits(getattr(actual, name), getattr(wanted, name))
    axes = (1,) * (3 - mask.ndim) + mask.shape
    axes = tuple(i for i in range(3) if axes[i] == 1)
    full = wanted.mask.astype(np.longdouble)
    exact = full.sum(axis=axes).reshape(mask.shape)
    # Each term is rounded as it is formed, each sum of terms is rounded in float64, and then the
    # result is rounded.
    share = np.finfo(dtype).eps + np.finfo(np.float64).eps / 2 * full.size / max(mask.size, 1)
    limit = float(share * np.abs(full).sum(axis=axes).max())
    assert_within(Judged(exact, limit), actual.mask, dtype)


@pytest.mark.parametrize("options", ["plain", "causal-end", "float", "everything"])
@pytest.mark.parametrize("lengths", ["uneven", "empty", "decode"])
def test_other_sequences_reach_no_gradient(lengths, options, dtype, target):
    """Elements past a sequence's length, or in mask columns beyond its keys, reach no gradient
    either."""
    packed = build(lengths, options, dtype)
    clean = packed.gradients()
    for kept, (rows, keys, _) in enumerate(packed.sequences()):
        length = packed.options.get("key_lengths", np.diff(packed.key_starts))[kept]
        present = slice(keys.start, keys.start + int(length))
        loud = {name: np.full_like(getattr(packed, name), np.nan) for name in THREE}
        loud |= {name: np.full_like(getattr(packed, name), np.nan) for name in GRADS}
        for name, array in loud.items():
            part = present if name in ("key", "value") else rows
            array[part] = getattr(packed, name)[part]
        changed = dict(packed.options)
        if "mask" in changed:
            mask = np.full_like(changed["mask"], np.nan)
            mask[rows, :, : int(length)] = changed["mask"][rows, :, : int(length)]
            changed["mask"] = mask
        actual = dataclasses.replace(packed, options=changed, **loud).gradients(
            with_respect_to=THREE
        )
        for name, part in zip(THREE, (rows, keys, keys), strict=True):
            assert_same_bits(getattr(actual, name)[part], getattr(clean, name)[part])


GRADS = ("grad_output", "grad_lse")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ragged_gradients_of_any_layout(layout, dtype, target):
    packed = build("uneven", "everything", dtype, 0.2)
    lay, state = LAYOUTS[layout], packed.attend()
    wanted = packed.gradients(state)
    moved = {name: lay(getattr(packed, name)) for name in (*THREE, *GRADS)}
    if layout != "byte_swapped":
        moved["options"] = packed.options | {"mask": lay(packed.options["mask"])}
    moved = dataclasses.replace(packed, **moved)
    for gradient, right in zip(moved.gradients(map(lay, state)), wanted, strict=True):
        assert_same_bits(gradient, right)
    if layout not in ("read_only", "byte_swapped"):
        out = [lay(np.full_like(getattr(wanted, name), 7)) for name in THREE]
        actual = packed.gradients(state, with_respect_to=THREE, out=regard.AttentionGradients(*out))
        for mine, gradient, right in zip(out, actual, wanted, strict=False):
            assert gradient is mine
            assert_same_bits(mine, right)
