"""A numbered stream of calls to the public functions, where the number determines the call.

`call_of(number)` draws a function, its arrays and its options. The result of the call, or the error
that it raises, does not depend on threads; `digest` turns either into a short text.
"""

import dataclasses
import hashlib
import importlib.util
import zlib
from collections.abc import Callable

import numpy as np

import regard

STATISTICS = (
    *("entropy", "max", "effective_count", "mean_distance", "first_mass", "local_mass"),
    *("previous_token", "column_sums", "column_means", "top_k"),
)
MOST_WORK = 1e8  # multiplications of one product, so that a call takes about a second at most
MOST_THREADS = 4  # of a call
DIMS = (1, 3, 8, 16, 24, 40, 64, 80, 96, 128, 200, 256)
TYPES = ["float16", "float32", "float64"]
if importlib.util.find_spec("ml_dtypes"):
    TYPES.append("bfloat16")


@dataclasses.dataclass(frozen=True)
class Call:
    """A call, made with `run(threads, folder)`; cache files are created in the folder."""

    number: int
    kind: str
    run: Callable

    def result(self, threads, folder):
        """Return the result of the call, or the exception that it raises, for `digest`."""
        try:
            return self.run(threads, folder)
        except (TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"


def arrays_in(result):
    """Yield the arrays and other values of a result, in order."""
    if isinstance(result, dict):
        result = [part for item in result.items() for part in item]
    if isinstance(result, (tuple, list)):
        for part in result:
            yield from arrays_in(part)
    else:
        yield result


def digest(result):
    """Return a text that is the same for two results whose bits, types and shapes are all the
    same."""
    summed = hashlib.blake2b(digest_size=16)
    for part in arrays_in(result):
        if isinstance(part, np.ndarray):
            summed.update(f"{part.dtype}{part.shape}".encode())
            summed.update(np.ascontiguousarray(part).view(np.uint8).tobytes())
        else:
            summed.update(repr(part).encode())
    return summed.hexdigest()


def _type(random, types=TYPES):
    name = str(random.choice(types))
    return np.dtype(importlib.import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def _drawn(shape, dtype, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _problem(random, number, types=TYPES):
    """Draw queries, keys and values of any size up to a few thousand, and some of the options."""
    batch, kv_heads = int(random.integers(1, 4)), int(random.choice([1, 1, 2, 4]))
    heads = kv_heads * int(random.choice([1, 1, 2, 4]))
    dim, value_dim = (int(random.choice(DIMS)) for _ in range(2))
    q_len, kv_len = (int(np.exp(random.uniform(0, np.log(most)))) for most in (3000, 5000))
    work = batch * heads * (dim + value_dim) * kv_len
    q_len = max(1, min(q_len, int(MOST_WORK / work)))
    options = {}
    for name, draw in (
        ("is_causal", lambda: True),
        ("query_offset", lambda: int(random.integers(-5, kv_len + 5))),
        ("window", lambda: (int(random.integers(kv_len + 1)), int(random.integers(40)))),
        ("key_lengths", lambda: random.integers(kv_len + 1, size=batch)),
        ("left_padding", lambda: int(random.integers(kv_len // 2 + 1))),
        ("softcap", lambda: float(random.uniform(1, 50))),
        ("alibi_slopes", lambda: random.random(heads)),
        ("distance_bias", lambda: random.standard_normal((heads, 9))),
        ("sinks", lambda: random.standard_normal(heads)),
        ("mask", lambda: random.random((q_len, kv_len)) < 0.5),
        ("mask", lambda: random.standard_normal((batch, 1, q_len, kv_len))),
        ("mask", lambda: regard.masks.sliding(q_len, kv_len, window=(50, 9))),
    ):
        if random.random() < 0.15:
            options[name] = draw()
    dtype = _type(random, types)
    shapes = (
        (batch, heads, q_len, dim),
        (batch, kv_heads, kv_len, dim),
        (batch, kv_heads, kv_len, value_dim),
    )
    arrays = [_drawn(shape, dtype, number + i) for i, shape in enumerate(shapes)]
    return arrays, options


def guide(random, number):
    """Make the first example of docs/guide/threads.md."""
    x = np.random.default_rng(0).standard_normal((4, 300, 64))
    return lambda threads, _: regard.scaled_dot_product_attention(x, x, x, threads=threads)


def attention(random, number):
    precision = [None, None, None, "int8"][random.integers(4)]
    arrays, options = _problem(random, number, TYPES if precision is None else ["float32"])
    options |= {"return_weights": random.random() < 0.3, "return_lse": random.random() < 0.5}
    if random.random() < 0.2:
        options |= {"dropout_p": 0.2, "dropout_seed": number}
    has_out = random.random() < 0.3
    shape = (*arrays[0].shape[:-1], arrays[2].shape[-1])

    def run(threads, _):
        out = {"out": np.full(shape, np.nan, arrays[0].dtype)} if has_out else {}
        return regard.scaled_dot_product_attention(
            *arrays, precision=precision, threads=threads, **options, **out
        )

    return run


def long(random, number):
    """Make a call that is long enough to be stopped halfway."""
    q_len = int(random.integers(1000, 3000))
    x = _drawn((1, 8, q_len, 64), np.float32, number)
    return lambda threads, _: regard.scaled_dot_product_attention(
        x, x, x, is_causal=True, threads=threads
    )


def derivatives(random, number):
    arrays, options = _problem(random, number)
    state = regard.scaled_dot_product_attention(*arrays, return_lse=True, threads=1, **options)
    grad = _drawn(state[0].shape, state[0].dtype, number)
    along = [_drawn(x.shape, x.dtype, number) for x in arrays]

    def run(threads, _):
        options_ = options | {"threads": threads}
        return (
            regard.scaled_dot_product_attention_backward(grad, *arrays, *state, **options_),
            regard.scaled_dot_product_attention_jvp(*arrays, *along, return_lse=True, **options_),
        )

    return run


def ragged(random, number):
    """Make the forward, the backward and the statistics of sequences one after another."""
    count = int(random.integers(1, 9))
    lengths = [(np.exp(random.uniform(0, most, count)) - 1).astype(int) for most in (6, 7)]
    starts = [np.concatenate([[0], np.cumsum(each)]) for each in lengths]
    dim, value_dim = (int(random.choice(DIMS[:8])) for _ in range(2))
    sizes = (starts[0], 4, dim), (starts[1], 2, dim), (starts[1], 2, value_dim)
    dtype = _type(random)
    arrays = [_drawn((n[-1], *rest), dtype, number + i) for i, (n, *rest) in enumerate(sizes)]
    table = [{}, {"is_causal": True, "query_offset": "end"}, {"window": (50, 3)}]
    table += [{"softcap": 2.0, "sinks": np.array([0.5, -np.inf, 3, -2])}]
    table += [{"alibi_slopes": np.array([0.5, 0.1, -0.2, 0.0]), "query_offset": 3}]
    options = table[random.integers(len(table))]

    def run(threads, _):
        state = regard.scaled_dot_product_attention_ragged(
            *arrays, *starts, return_lse=True, threads=threads, **options
        )
        gradients = regard.scaled_dot_product_attention_ragged_backward(
            state[0], *arrays, *starts, *state, threads=threads, **options
        )
        summary = regard.summarize_attention_ragged(
            *arrays[:2], *starts, statistics=STATISTICS, threads=threads, **options
        )
        return state, gradients, summary

    return run


def statistics(random, number):
    (query, key, _), options = _problem(random, number)
    reduce = str(random.choice(["max", "mean"]))

    def run(threads, _):
        options_ = options | {"threads": threads}
        summary = regard.summarize_attention(query, key, statistics=STATISTICS, **options_)
        return summary, regard.attention_map(query, key, reduce=reduce, shape=(7, 60), **options_)

    return run


def stream(random, number):
    (query, key, value), options = _problem(random, number)
    kv_len = key.shape[-2]
    length = max(int(random.integers(1, kv_len + 2)), kv_len // 40)

    def run(threads, _):
        chunks = regard.KeyValueChunks(key, value, length=length)
        return regard.attend_stream(query, chunks, return_lse=True, threads=threads, **options)

    return run


def merge(random, number):
    parts, rows, dim = (int(random.integers(*n)) for n in ((1, 5), (1, 2000), (1, 100)))
    dtype = _type(random, ["float32", "float64"])
    outputs = [_drawn((2, rows, dim), dtype, number + i) for i in range(parts)]
    lses = [9 * _drawn((2, rows), dtype, number + 9 + i) for i in range(parts)]
    lses[0][:, : rows // 3] = -np.inf

    def run(threads, _):
        merged = regard.merge_attention_states(outputs, lses, threads=threads)
        return merged, regard.merge_attention_states_backward(merged[0], outputs, lses, *merged)

    return run


def stages(random, number):
    m, n, k = (int(np.exp(random.uniform(0, 7.5))) for _ in range(3))
    m = max(1, min(m, int(2 * MOST_WORK / (n * k))))
    dtype = _type(random, ["float32", "float64"])
    a, b = _drawn((2, m, k), dtype, number), _drawn((k, n), dtype, number + 1)
    b = np.asfortranarray(b) if random.random() < 0.3 else b
    shown = _drawn((m, n), np.float64, number + 2) < 0.5

    def run(threads, _):
        scores = regard.matmul(a, b, threads=threads)
        masked = regard.apply_mask(
            regard.scale(scores, 0.3, threads=threads), shown, threads=threads
        )
        return scores, [regard.softmax(masked, axis=axis, threads=threads) for axis in (-1, 0)]

    return run


def layer(random, number):
    """Train a layer for a step."""
    length, heads, dim = int(random.integers(1, 300)), 4, int(random.choice([8, 16, 32]))
    dtype = _type(random, ["float32", "float64"])
    table = [{}, {"rotary": True, "num_kv_heads": 2, "qk_norm": "rms"}, {"dropout": 0.1}]
    table += [{"alibi": True, "window": (30, 0)}, {"qkv_bias": True, "out_bias": True}]
    options = table[random.integers(len(table))]
    x = _drawn((2, length, heads * dim), dtype, number)

    def run(threads, _):
        made = regard.MultiHeadAttention(
            heads * dim, heads, is_causal=True, rng=number, dtype=dtype, **options
        ).train()
        output = made(x, threads=threads, dropout_seed=number)
        return output, made.backward(x, threads=threads), dict(made.grads)

    return run


def cache(random, number):
    """Use a cache from creation to end: a prompt, tokens one by one, evictions, forks, a file."""
    window = [None, None, 300][random.integers(3)]
    page_size = [None, 16][random.integers(2)] if window is None else None
    dtype = ["float32", "float16", "int8"][random.integers(3)]
    prompt, steps = int(random.integers(1, 3000)), 10
    key = _drawn((2, 2, prompt + steps, 64), np.float32, number)
    query = _drawn((2, 8, prompt + steps, 64), np.float32, number + 1)
    options = {"keep_last": window, "keep_first": 4 if window else 0, "page_size": page_size}

    def run(threads, folder):
        made = regard.KVCache(2, 2, 64, dtype=dtype, **options)
        made.append(key[:, :, :prompt], key[:, :, :prompt])
        seen = []
        for at in range(prompt, prompt + steps):
            one = np.s_[:, :, at : at + 1]
            made.append(key[one], key[one])
            seen.append(made.attend(query[one], return_lse=True, threads=threads))
        forked = made.fork()
        forked.append(key[one], key[one])
        seen += [forked.keys, forked.values, made.keys, made.lengths]
        path = folder()
        made.save(path)
        with regard.KVCache.load(path, mmap=True) as loaded:
            seen += [loaded.keys, loaded.values, loaded.lengths]
        path.unlink()
        return seen

    return run


KINDS = (
    *(guide, attention, attention, attention, long, derivatives, derivatives, ragged, ragged),
    *(statistics, statistics, stream, merge, stages, stages, layer, layer, cache, cache, cache),
)


def call_of(number, seed=0):
    """Return the call of a number, which is the same in every process."""
    kind = KINDS[number % len(KINDS)]
    random = np.random.default_rng([seed, number, zlib.crc32(kind.__name__.encode())])
    return Call(number, kind.__name__, kind(random, number))
