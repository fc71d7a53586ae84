"""Every kind of cache, and calls that change a cache, for tests that stop such calls."""

import numpy as np

import regard
from cache_model import Model, packed_tokens, tokens
from file_caches import loaded
from layered_caches import AllLayers

KINDS = {
    "growing": {},
    "capacity": {"capacity": 900},
    "pages": {"page_size": 16},
    "alike": {"page_size": 16, "are_alike": True},  # entries of one length take shortcuts
    "window": {"keep_last": 20, "keep_first": 3, "page_size": 16},
    "int8": {"dtype": "int8", "page_size": 32},
    "float8": {"dtype": "float8_e4m3fn", "page_size": 32},
    "layers": {"layers": 3, "page_size": 16},
    "layers window": {"layers": 2, "keep_last": 20, "keep_first": 3, "page_size": 16},
    "growing file": {"path": True},
    "capacity file": {"path": True, "capacity": 900},
    "pages file": {"path": True, "page_size": 16},
    "window file": {"path": True, "keep_last": 20, "keep_first": 3, "page_size": 16},
    "int8 file": {"path": True, "dtype": "int8", "page_size": 16, "keep_last": 33},
    "float8 file": {"path": True, "dtype": "float8_e4m3fn", "page_size": 16},
    "layers file": {"path": True, "layers": 3, "page_size": 16},
}

# Of four bits, whose rows are whole groups. Only `attack_caches.py` uses these, since other tests
# have queries of 8 numbers.
OF_FOUR_BITS = {
    "q4_1": {"dtype": "q4_1", "sizes": (32, 64), "page_size": 32},
    "q4_1 file": {"path": True, "dtype": "q4_1", "sizes": (32, 64), "page_size": 16},
    "layers q4_1 file": {
        "path": True,
        "layers": 2,
        "dtype": "q4_1",
        "sizes": (64, 32),
        "page_size": 16,
    },
}


def make(kind, path, batch=2):
    """Return a cache of some tokens and its model. Kinds of files are mapped after the first
    append."""
    options = dict(KINDS[kind])
    in_file = options.pop("path", False)
    first = [25] * batch if options.pop("are_alike", False) else [25, *[7] * (batch - 1)]
    layers, sizes = options.pop("layers", None), options.pop("sizes", (8, 5))
    if layers is None:
        cache = regard.KVCache(batch, 2, *sizes, **options)
    else:
        cache = AllLayers.made(layers, batch, 2, *sizes, **options)
    window = {name: options.get(name, 0) for name in ("keep_last", "keep_first")}
    window["keep_last"] = window["keep_last"] or None
    model = Model(batch, 2, *sizes, options.get("dtype", "float32"), **window)
    for each in (cache, model):
        each.append(*own_tokens(each, 0, batch, 25), first)
    if in_file:
        cache = loaded(cache, path)
    for each in (cache, model):
        each.append(*own_tokens(each, 1, batch, 30))
    return cache, model


def token(each, seed=5):
    each.append(*own_tokens(each, seed, batch_of(each), 1, dtype=np.float32))


def prompt(each, seed=6):
    each.append(
        *own_tokens(each, seed, batch_of(each), 40), [40 - 9 * b for b in range(batch_of(each))]
    )


def packed(each, seed=7):
    """Append a different number of tokens to each entry, and none to the third."""
    counts = [(1, 33, 0)[b % 3] for b in range(batch_of(each))]
    each.append_ragged(*packed_tokens(seed, counts, **dims_of(each)))


def undo(each, seed=None):
    """Take back the last append of `make`, which is possible for any window."""
    shorter = [length - 30 for length in lengths_of(each)]
    each.truncate(shorter[0] if len(set(shorter)) == 1 else shorter)


def beams(each, seed=None):
    each.reorder([0, *range(batch_of(each) - 1)])


def join(each, seed=None):
    each.reorder([*range(1, batch_of(each)), -1])


def drop(each, seed=None):
    each.drop(batch_of(each) - 1 if batch_of(each) > 1 else [])


def adopt(each, seed=8):
    """Let a text that was read by itself join, while there are few texts."""
    if batch_of(each) < 4:
        other = each.fork([-1])
        other.append(*own_tokens(each, seed, 1, 21))
        each.adopt(other)
    else:
        drop(each)


def keep(each, seed=None):
    """Keep some of the tokens that `make` appended last."""
    start = lengths_of(each)[0] - 30
    each.keep(0, [start + 1, start + 4, start + 29])


CHANGES = {
    "token": token,
    "prompt": prompt,
    "packed": packed,
    "undo": undo,
    "beams": beams,
    "join": join,
    "drop": drop,
    "adopt": adopt,
    "keep": keep,
}


def dims_of(each):
    return {"head_dim": each.head_dim, "value_dim": each.value_dim}


def own_tokens(each, seed, batch, new, **options):
    """Return tokens of the sizes that a cache or a model has."""
    return tokens(seed, batch, new, **dims_of(each), **options)


def batch_of(each):
    return len(lengths_of(each))


def lengths_of(each):
    lengths = each.lengths
    return lengths if isinstance(lengths, list) else lengths.tolist()
