"""Packed sequences of different lengths have the bits of a separate call for each sequence."""

import dataclasses
import itertools

import numpy as np
import pytest

import regard
from cases import LAYOUTS
from data_kinds import drawn_for
from element_types import each_in_one_type
from messages import says
from reference import arithmetic, assert_matches, assert_same_bits, expected

sdpa = regard.scaled_dot_product_attention
EVERYTHING = {"return_weights": True, "return_lse": True}


def ragged(*arguments, **options):
    return regard.scaled_dot_product_attention_ragged(*arguments, **options)


def starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths, dtype=int)])


@dataclasses.dataclass(frozen=True)
class Packed:
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    query_starts: np.ndarray
    key_starts: np.ndarray
    options: dict

    @property
    def arguments(self):
        return self.query, self.key, self.value, self.query_starts, self.key_starts

    def attend(self, **extra):
        return ragged(*self.arguments, **self.options | extra)

    def sequences(self):
        """Yield (rows, number of keys, the sequence's own arrays, its own options)."""
        count = len(self.query_starts) - 1
        for s in range(count):
            rows = slice(*self.query_starts[s : s + 2])
            keys = slice(*self.key_starts[s : s + 2])
            length = int(keys.stop - keys.start)
            options = dict(self.options)
            for name in ("query_offset", "key_lengths", "left_padding"):
                if not isinstance(options.get(name, "end"), str):
                    options[name] = int(np.broadcast_to(options[name], count)[s])
            if np.ndim(options.get("alibi_slopes")) == 2:
                options["alibi_slopes"] = options["alibi_slopes"][s]
            if "mask" in options:
                heads, longest = self.query.shape[1], max(np.diff(self.key_starts))
                shape = len(self.query), heads, longest
                mask = np.broadcast_to(options["mask"], shape)
                options["mask"] = mask[rows, :, :length].swapaxes(0, 1)
            arrays = self.query[rows], self.key[keys], self.value[keys]
            yield rows, length, [x.swapaxes(0, 1) for x in arrays], options


LENGTHS = {
    "one": ([17], [30]),
    "even": ([8, 8, 8], [8, 8, 8]),
    "uneven": ([1, 49, 5, 130, 3], [97, 96, 300, 150, 1]),
    "decode": ([1] * 7, [1, 8, 95, 96, 97, 200, 33]),
    "empty": ([0, 5, 0, 0, 7, 0], [9, 20, 0, 3, 11, 0]),
    "keyless": ([4, 6, 5], [0, 100, 0]),
    "many": ([3, 1, 2] * 20, [5, 9, 2] * 20),
    "none": ([], []),
    "no-rows": ([0, 0], [3, 5]),
    "no-keys": ([3, 5], [0, 0]),
}
OPTIONS = {
    "plain": lambda n, t: {},
    "causal": lambda n, t: {"is_causal": True},
    "causal-offsets": lambda n, t: {"is_causal": True, "query_offset": np.arange(n) * 7 - 10},
    "causal-end": lambda n, t: {"is_causal": True, "query_offset": "end"},
    "window": lambda n, t: {"window": (20, 3), "query_offset": 4},
    "softcap": lambda n, t: {"softcap": 1.5, "scale": 0.7},
    "alibi": lambda n, t: {"alibi_slopes": t([0.5, 0.1, -0.2, 0.0]), "query_offset": 3},
    "sinks": lambda n, t: {"sinks": t([0.5, -np.inf, 3, -2])},
    "lengths": lambda n, t: {"key_lengths": None},
    "padding": lambda n, t: {"left_padding": None, "query_offset": "end", "window": (60, 0)},
    "slopes": lambda n, t: {"alibi_slopes": t(np.arange(4.0 * n).reshape(n, 4) / (16 * n + 1))},
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


def build(lengths, options, dtype, *, heads=4, kv_heads=2):
    q_lengths, k_lengths = (np.array(x, int) for x in LENGTHS[lengths])
    random = np.random.default_rng(len(lengths) + 100 * len(options))
    drawn = drawn_for(f"{lengths} {options} {heads}")
    shapes = (heads, 16), (kv_heads, 16), (kv_heads, 11)
    totals = q_lengths.sum(), k_lengths.sum(), k_lengths.sum()
    shapes = [(total, *shape) for total, shape in zip(totals, shapes, strict=True)]
    arrays = [x.astype(dtype) for x in drawn.arrays(random, *shapes)]
    options = drawn.options | OPTIONS[options](
        len(q_lengths), lambda x: np.array(x, arithmetic(dtype))
    )
    if "key_lengths" in options:
        options["key_lengths"] = k_lengths - k_lengths // 3
    if "left_padding" in options:
        options["left_padding"] = k_lengths // 3
    if "mask" in options:
        shape = totals[0], heads, max(k_lengths, default=0)
        mask = random.random(shape) < 0.7
        bias = np.where(mask, drawn.array(random, shape), -np.inf).astype(dtype)
        options["mask"] = mask if options["mask"] is bool else bias
    return Packed(*arrays, starts(q_lengths), starts(k_lengths), options)


@each_in_one_type(list(itertools.product(LENGTHS, OPTIONS)), "storage")
def test_each_sequence_as_if_alone(case, storage, target):
    packed = build(*case, storage)
    output, weights, lse = packed.attend(**EVERYTHING)
    longest = max(np.diff(packed.key_starts), default=0)
    assert output.shape == (len(packed.query), 4, 11)
    assert weights.shape == (len(packed.query), 4, longest)
    assert lse.shape == (len(packed.query), 4)
    assert (output.dtype, weights.dtype, lse.dtype) == (storage, storage, arithmetic(storage))
    for rows, length, arrays, own in packed.sequences():
        alone = sdpa(*arrays, **own, **EVERYTHING)
        part = output[rows], weights[rows, :, :length], lse[rows]
        assert_same_bits(tuple(x.swapaxes(0, 1) for x in part), alone)
        assert not weights[rows, :, length:].any()
    for threads in (1, 2, 3):
        assert_same_bits(packed.attend(threads=threads), output)
        again = packed.attend(return_lse=True, threads=threads)
        assert_same_bits(again, (output, lse))


HEADS = [(1, 1), (2, 2), (6, 2), (5, 1)]


@each_in_one_type(
    list(itertools.product(HEADS, ("uneven", "empty"), ("causal", "softcap", "float"))), "storage"
)
def test_ragged_oracle(case, storage, target):
    (heads, kv_heads), lengths, options = case
    packed = build(lengths, options, storage, heads=heads, kv_heads=kv_heads)
    output, weights, lse = packed.attend(**EVERYTHING)
    for rows, length, arrays, own in packed.sequences():
        want = expected(*arrays, **own)
        own_weights = weights[rows, :, :length].swapaxes(0, 1)
        assert_matches(
            want, output=output[rows].swapaxes(0, 1), weights=own_weights, lse=lse[rows].T
        )


@pytest.mark.parametrize("options", ["plain", "causal", "float", "everything"])
@pytest.mark.parametrize("lengths", ["uneven", "empty", "decode"])
def test_other_sequences_are_anything(lengths, options, storage, target):
    """No sequence reads another sequence, or anything beyond its own keys: neither elements past
    its length, nor mask columns for which it has no keys."""
    packed = build(lengths, options, storage)
    clean = packed.attend(return_lse=True)
    count = len(packed.query_starts) - 1
    for kept in range(count):
        rows = slice(*packed.query_starts[kept : kept + 2])
        first = packed.key_starts[kept]
        query, key, value = (np.full_like(x, np.nan) for x in packed.arguments[:3])
        query[rows] = packed.query[rows]
        length = packed.options.get("key_lengths", np.diff(packed.key_starts))[kept]
        key[first : first + length] = packed.key[first : first + length]
        value[first : first + length] = packed.value[first : first + length]
        changed = {"query": query, "key": key, "value": value}
        mask = packed.options.get("mask")
        if mask is not None:
            spoiled = np.full_like(mask, np.nan)  # True in a bool mask
            spoiled[rows, :, :length] = mask[rows, :, :length]
            changed["options"] = packed.options | {"mask": spoiled}
        output, lse = dataclasses.replace(packed, **changed).attend(return_lse=True)
        assert_same_bits((output[rows], lse[rows]), tuple(x[rows] for x in clean))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_arrays_of_any_layout(layout, storage, target):
    packed = build("uneven", "everything", storage)
    lay = LAYOUTS[layout]
    wanted = packed.attend(**EVERYTHING)
    arrays = {name: lay(getattr(packed, name)) for name in ("query", "key", "value")}
    options = packed.options | {"mask": lay(packed.options["mask"])}
    moved = dataclasses.replace(packed, **arrays, options=options)
    assert_same_bits(moved.attend(**EVERYTHING), wanted)
    if layout not in ("read_only", "byte_swapped"):
        out = lay(np.full(wanted[0].shape, 7, storage))
        assert moved.attend(out=out) is out
        assert_same_bits(out, wanted[0])


@pytest.mark.parametrize(
    "axes", [(), (1,), (300,), (4, 1), (1, 300), (188, 1, 1), (1, 4, 1), (188, 4, 300)], ids=str
)
def test_masks_broadcast(axes, dtype, target):
    """Masks broadcast to (total, heads, longest kv_len)."""
    packed = build("uneven", "plain", dtype)
    mask = np.asarray(np.random.default_rng(0).random(axes) < 0.6)
    for kind in (mask, np.where(mask, 0.5, -np.inf).astype(dtype)):
        whole = np.broadcast_to(kind, (188, 4, 300)).copy()
        wanted = ragged(*packed.arguments, whole, **EVERYTHING)
        assert_same_bits(ragged(*packed.arguments, kind, **EVERYTHING), wanted)


def test_one_number_for_all_sequences(dtype, target):
    packed = build("uneven", "plain", dtype)
    wanted = ragged(
        *packed.arguments, is_causal=True, query_offset=np.ones(5, int), key_lengths=[1] * 5
    )
    for one in (1, np.int8(1), [1], (1,) * 5, np.ones(5, np.uint8)):
        actual = ragged(*packed.arguments, is_causal=True, query_offset=one, key_lengths=one)
        assert_same_bits(actual, wanted)


@pytest.mark.parametrize("kind", [np.int32, np.uint16, np.int64, np.uint64, list, tuple])
def test_starts_of_any_integer_kind(kind, target):
    packed = build("uneven", "plain", np.dtype(np.float32))
    wanted = packed.attend()
    if isinstance(kind, type) and issubclass(kind, np.integer):
        moved = [np.repeat(x.astype(kind), 2)[::2] for x in packed.arguments[3:]]
    else:
        moved = [kind(x.tolist()) for x in packed.arguments[3:]]
    assert_same_bits(ragged(*packed.arguments[:3], *moved), wanted)


def test_mixed_types_in_a_ragged_call(target):
    packed = build("uneven", "everything", np.dtype(np.float32))
    arrays = [packed.query.astype("f2"), packed.key, packed.value.astype("f2")]
    wide = [x.astype(np.float32) for x in arrays]
    rest = packed.arguments[3:]
    wanted = ragged(*wide, *rest, **packed.options, **EVERYTHING)
    assert_same_bits(ragged(*arrays, *rest, **packed.options, **EVERYTHING), wanted)


def test_inputs_are_left_alone(storage, target):
    packed = build("uneven", "everything", storage)
    everything = [*packed.arguments, *packed.options.values()]
    everything = [x for x in everything if isinstance(x, np.ndarray)]
    before = [x.tobytes() for x in everything]
    for array in everything:
        array.setflags(write=False)
    packed.attend(**EVERYTHING)
    assert [x.tobytes() for x in everything] == before


# Invalid arguments


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


GOOD = {
    "query": normal(10, 14, 64),
    "key": normal(23, 7, 64),
    "value": normal(23, 7, 32),
    "query_starts": np.array([0, 4, 10]),
    "key_starts": np.array([0, 12, 23]),
}
RANGES = {
    "query-starts-end": ({"query_starts": [0, 4, 9]}, "query_starts 9 10"),
    "query-starts-beyond": ({"query_starts": [0, 4, 11]}, "query_starts 11 10"),
    "query-starts-first": ({"query_starts": [1, 4, 10]}, "query_starts 1 0"),
    "query-starts-fall": ({"query_starts": [0, 12, 10]}, "query_starts"),
    "query-starts-negative": ({"query_starts": [0, -1, 10]}, "query_starts"),
    "query-starts-2d": ({"query_starts": np.zeros((2, 2), int)}, "query_starts"),
    "query-starts-0d": ({"query_starts": 0}, "query_starts"),
    "query-starts-none": ({"query_starts": np.zeros(0, int)}, "query_starts"),
    "query-starts-empty-list": ({"query_starts": []}, "query_starts sequences 0"),
    "query-starts-beyond-64-bits": ({"query_starts": [0, 2**70, 10]}, f"query_starts {2**70}"),
    "query-starts-huge": (
        {"query_starts": np.array([0, 2**63, 10], np.uint64)},
        "query_starts 9223372036854775808",
    ),
    "query-starts-uneven": ({"query_starts": [[0], [4, 10]]}, "query_starts"),
    "key-starts-end": ({"key_starts": [0, 12, 22]}, "key_starts 22 23"),
    "key-starts-first": ({"key_starts": [2, 12, 23]}, "key_starts 2 0"),
    "key-starts-fall": ({"key_starts": [0, 24, 23]}, "key_starts"),
    "key-starts-length": ({"key_starts": [0, 23]}, "query_starts key_starts 3 2"),
    "key-starts-empty-list": ({"key_starts": ()}, "key_starts sequences 0"),
    "key-starts-beyond-64-bits": ({"key_starts": [0, -(2**70), 23]}, f"key_starts {-(2**70)}"),
    "key-starts-longer": ({"key_starts": [0, 5, 12, 23]}, "query_starts key_starts 3 4"),
    "query-2d": ({"query": normal(10, 64)}, "query"),
    "query-4d": ({"query": normal(1, 10, 14, 64)}, "query"),
    "key-2d": ({"key": normal(23, 64)}, "key"),
    "value-4d": ({"value": normal(1, 23, 7, 32)}, "value"),
    "head-dim": ({"key": normal(23, 7, 48)}, "query key head_dim 64 48"),
    "value-total": ({"value": normal(22, 7, 32)}, "key value 23 22"),
    "kv-heads": ({"value": normal(23, 14, 32)}, "key value 7 14"),
    "heads": ({"query": normal(10, 16, 64)}, "query key 16 7"),
    "mask-columns": ({"mask": np.ones((10, 14, 13), bool)}, "mask 13 12"),
    "mask-rows": ({"mask": np.ones((9, 1, 1), bool)}, "mask 9 10"),
    "mask-heads": ({"mask": np.ones((7, 1))}, "mask 7 14"),
    "lengths-beyond": ({"key_lengths": [12, 12]}, "key_lengths 12 11"),
    "lengths-negative": ({"key_lengths": -1}, "key_lengths -1"),
    "lengths-shape": ({"key_lengths": [1, 2, 3]}, "key_lengths 3 2"),
    "offset-shape": ({"query_offset": [1, 2, 3]}, "query_offset 3 2"),
    "offset-2d": ({"query_offset": [[1], [2]]}, "query_offset"),
    "window": ({"window": (-1, 0)}, "window -1"),
    "softcap": ({"softcap": 0.0}, "softcap 0"),
    "slopes": ({"alibi_slopes": np.ones(7)}, "alibi_slopes 7 14"),
    "sinks": ({"sinks": np.ones(13)}, "sinks 13 14"),
    "threads": ({"threads": 0}, "threads 0"),
}
KINDS = {
    "query-starts-masked": (
        {"query_starts": np.ma.array([0, 4, 10], mask=[0, 1, 0])},
        "query_starts masked",
    ),
    "query-starts-float": ({"query_starts": [0.0, 4.0, 10.0]}, "query_starts"),
    "query-starts-none": ({"query_starts": None}, "query_starts"),
    "key-starts-float": ({"key_starts": np.array([0.0, 12.0, 23.0])}, "key_starts float64"),
    "key-starts-empty-array": ({"key_starts": np.array([])}, "key_starts float64"),
    "key-starts-objects": ({"key_starts": np.array([0, 12, 23], object)}, "key_starts object"),
    "key-starts-string": ({"key_starts": "0"}, "key_starts"),
    "query-complex": ({"query": GOOD["query"].astype(complex)}, "query complex128"),
    "mask-int": ({"mask": np.ones((10, 14, 12), int)}, "mask int64 bool float"),
    "window-int": ({"window": 3}, "window"),
    "lengths-float": ({"key_lengths": 1.5}, "key_lengths"),
}
REFUSED = [
    pytest.param(error, changes, words.split(), id=name)
    for error, table in ((ValueError, RANGES), (TypeError, KINDS))
    for name, (changes, words) in table.items()
]


@pytest.mark.parametrize(("error", "changes", "words"), REFUSED)
def test_refused(error, changes, words, target):
    with pytest.raises(error, match=says(*words)):
        ragged(**GOOD | changes)
    out = np.full((10, 14, 32), 7, np.float32)
    with pytest.raises(error):
        ragged(**GOOD | changes, out=out, **EVERYTHING)
    assert (out == 7).all()


def test_wrong_out(target):
    for shape in ((10, 14, 31), (14, 10, 32), (1, 10, 14, 32)):
        out = np.full(shape, 7, np.float32)
        with pytest.raises(ValueError, match=says("out", "10", "14", "32")):
            ragged(**GOOD, out=out)
        assert (out == 7).all()
    out = np.full((10, 14, 32), 7, np.float64)
    with pytest.raises(TypeError, match=says("out", "float64", "float32")):
        ragged(**GOOD, out=out)
    assert (out == 7).all()


def test_out_over_an_input_of_a_ragged_call(dtype, target):
    for role in ("query", "key", "value"):
        inputs = {name: np.ones((12, 3, 4), dtype) for name in ("query", "key", "value")}
        before = inputs[role].copy()
        with pytest.raises(ValueError, match=says("out", role)):
            ragged(**inputs, query_starts=[0, 12], key_starts=[0, 12], out=inputs[role])
        assert_same_bits(inputs[role], before)


def test_ragged_options_are_named(target):
    with pytest.raises(TypeError):
        ragged(*GOOD.values(), None, True)
    with pytest.raises(TypeError, match="dropout"):
        ragged(**GOOD, dropout=0.1)
    with pytest.raises(TypeError):
        ragged(GOOD["query"], GOOD["key"], GOOD["value"])
