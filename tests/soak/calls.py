"""A numbered stream of calls to the public functions, where the number determines the call.

`call_of(number)` draws a function, its arrays and its options. The result of the call, or the error
that it raises, does not depend on threads; `digest` turns either into a short text.
"""

import dataclasses
import hashlib
import importlib.util
import itertools
import zlib
from collections.abc import Callable

import numpy as np

import cache_kinds
import cases
import gradient_cases
import regard
from element_types import TYPES, type_named
from gradient_cases import drawn
from regard._arguments.options import BackwardOptions, WeightOptions

WEIGHT_OPTIONS = {*WeightOptions.__annotations__, "mask"} - {"threads"}
BACKWARD_OPTIONS = {*BackwardOptions.__annotations__, "mask"} - {"threads"}
STATISTICS = (
    "entropy", "max", "effective_count", "mean_distance", "first_mass", "local_mass",
    "previous_token", "column_sums", "column_means", "top_k",
)  # fmt: skip
MOST_WORK = 1e8  # multiplications of one product, so that a call takes about a second at most
# The package ml_dtypes, which provides bfloat16, may be missing.
HAS_BFLOAT16 = importlib.util.find_spec("ml_dtypes") is not None
TYPES_HERE = {
    name: [kind for kind in kinds if kind != "bfloat16" or HAS_BFLOAT16]
    for name, kinds in TYPES.items()
}
MOST_THREADS = 4  # of a call
DIMS = (1, 3, 8, 16, 24, 40, 64, 80, 96, 128, 200, 256)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call, made with `run(threads, folder)`; cache files are created in the folder."""

    number: int
    kind: str
    what: str
    run: Callable

    def result(self, threads, folder):
        """Return the result of the call, or the exception that it raises, for `digest`."""
        try:
            return self.run(threads, folder)
        except (TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"


def arrays_in(result):
    """Yield the arrays and other values of a result, in order."""
    if dataclasses.is_dataclass(result):
        result = [getattr(result, field.name) for field in dataclasses.fields(result)]
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


def _type(random, types):
    return TYPES_HERE[types][random.integers(len(TYPES_HERE[types]))]


def _table_problem(random, types="storage"):
    """Draw a case of the tests' tables, which cover every option."""
    case = gradient_cases.ALL[random.integers(len(gradient_cases.ALL))]
    name = _type(random, types)
    return f"{case.name} {name}", gradient_cases.build(case, type_named(name))


def _drawn_case(random, number):
    """Draw a case of any size up to a few thousand, with some of the options."""
    kv_heads = int(random.choice([1, 1, 2, 4]))
    heads = kv_heads * int(random.choice([1, 1, 2, 4]))
    head_dim, value_dim = (int(random.choice(DIMS)) for _ in range(2))
    batch = (int(random.integers(1, 4)),)
    rows = batch[0] * heads * (head_dim + value_dim)
    q_len = int(np.exp(random.uniform(0, np.log(3000))))
    kv_len = int(np.exp(random.uniform(0, np.log(5000))))
    q_len = max(1, min(q_len, int(MOST_WORK / (rows * kv_len))))
    options = {}
    for name, draw in (
        ("is_causal", lambda: True),
        ("query_offset", lambda: int(random.integers(-5, kv_len + 5))),
        ("window", lambda: (int(random.integers(kv_len + 1)), int(random.integers(40)))),
        ("key_lengths", lambda: tuple(int(n) for n in random.integers(kv_len + 1, size=batch))),
        ("left_padding", lambda: int(random.integers(kv_len // 2 + 1))),
        ("softcap", lambda: float(random.uniform(1, 50))),
        ("alibi_slopes", lambda: 0.1),
        ("sinks", lambda: 1.0),
        ("bool_mask", lambda: (q_len, kv_len)),
    ):
        if random.random() < 0.2:
            options[name] = draw()
    return cases.Case(
        f"soak {number}",
        (*batch, heads, q_len, head_dim),
        (*batch, kv_heads, kv_len, head_dim),
        (*batch, kv_heads, kv_len, value_dim),
        **options,
    )


def _drawn_problem(random, number, types="storage"):
    case = _drawn_case(random, number)
    name = _type(random, types)
    what = f"{case.query} {case.key} {case.value} {name}"
    return what, gradient_cases.build(case, type_named(name))


def _problem(random, number, types="storage"):
    if random.random() < 0.5:
        return _table_problem(random, types)
    return _drawn_problem(random, number, types)


def _some(problem, names):
    return {name: value for name, value in problem.options.items() if name in names}


def guide(random, number):
    """Make the first example of docs/guide/threads.md."""
    x = np.random.default_rng(0).standard_normal((4, 300, 64))
    return "4x300x64 float64", lambda threads, _: regard.scaled_dot_product_attention(
        x, x, x, threads=threads
    )


def attention(random, number):
    what, problem = _problem(random, number)
    extra = {"return_weights": bool(random.random() < 0.3), "return_lse": random.random() < 0.5}
    if random.random() < 0.3:
        plain = problem.attend(threads=1)[0]

        def run(threads, _):
            out = np.full_like(plain, np.nan)
            return problem.attend(threads=threads, out=out, **extra)

        return what, run
    return what, lambda threads, _: problem.attend(threads=threads, **extra)


def long(random, number):
    """Make a call that is long enough to be stopped halfway."""
    q_len = int(random.integers(1000, 3000))
    x = drawn((1, 8, q_len, 64), np.float32, number)
    return f"8x{q_len}x64", lambda threads, _: regard.scaled_dot_product_attention(
        x, x, x, is_causal=True, threads=threads
    )


def int8(random, number):
    what, problem = _drawn_problem(random, number, "single_or_half")
    options = _some(problem, WEIGHT_OPTIONS) | {"precision": "int8", "return_lse": True}
    return what, lambda threads, _: regard.scaled_dot_product_attention(
        *problem.arrays, threads=threads, **options
    )


def backward(random, number):
    what, problem = _problem(random, number)
    state = problem.attend(threads=1)
    return what, lambda threads, _: problem.gradients(state, threads=threads)


def jvp(random, number):
    what, problem = _problem(random, number)
    along = [drawn(x.shape, x.dtype, number) for x in problem.arrays]
    options = _some(problem, BACKWARD_OPTIONS) | {"return_lse": True}
    return what, lambda threads, _: regard.scaled_dot_product_attention_jvp(
        *problem.arrays, *along, threads=threads, **options
    )


def _packed(random, number):
    """Draw sequences one after another, and options for them."""
    count = int(random.integers(1, 9))
    q_lengths = (np.exp(random.uniform(0, 6, count)) - 1).astype(int)
    k_lengths = (np.exp(random.uniform(0, 7, count)) - 1).astype(int)
    starts = [np.concatenate([[0], np.cumsum(n)]) for n in (q_lengths, k_lengths)]
    dtype = type_named(_type(random, "storage"))
    head_dim, value_dim = (int(random.choice(DIMS[:8])) for _ in range(2))
    shapes = (
        (starts[0][-1], 4, head_dim),
        (starts[1][-1], 2, head_dim),
        (starts[1][-1], 2, value_dim),
    )
    arrays = [drawn(shape, dtype, number + i) for i, shape in enumerate(shapes)]
    table = [{}, {"is_causal": True, "query_offset": "end"}, {"window": (50, 3)}]
    table += [{"softcap": 2.0, "sinks": np.array([0.5, -np.inf, 3, -2])}]
    table += [{"alibi_slopes": np.array([0.5, 0.1, -0.2, 0.0]), "query_offset": 3}]
    what = f"{q_lengths.tolist()} {k_lengths.tolist()} {head_dim} {value_dim} {dtype}"
    return what, (*arrays, *starts), table[random.integers(len(table))]


def ragged(random, number):
    what, arguments, options = _packed(random, number)
    return what, lambda threads, _: regard.scaled_dot_product_attention_ragged(
        *arguments, return_lse=True, threads=threads, **options
    )


def ragged_backward(random, number):
    what, arguments, options = _packed(random, number)
    state = regard.scaled_dot_product_attention_ragged(
        *arguments, return_lse=True, threads=1, **options
    )
    grad = drawn(state[0].shape, state[0].dtype, number)
    return what, lambda threads, _: regard.scaled_dot_product_attention_ragged_backward(
        grad, *arguments, *state, threads=threads, **options
    )


def summary(random, number):
    what, problem = _problem(random, number)
    options = _some(problem, WEIGHT_OPTIONS)
    return what, lambda threads, _: regard.summarize_attention(
        problem.query, problem.key, statistics=STATISTICS, threads=threads, **options
    )


def ragged_summary(random, number):
    what, (query, key, _value, *starts), options = _packed(random, number)
    return what, lambda threads, _: regard.summarize_attention_ragged(
        query, key, *starts, statistics=STATISTICS, threads=threads, **options
    )


def attention_map(random, number):
    what, problem = _problem(random, number)
    options = _some(problem, WEIGHT_OPTIONS)
    more = {"reduce": random.choice(["max", "mean"]).item(), "shape": (7, 60)}
    return what, lambda threads, _: regard.attention_map(
        problem.query, problem.key, threads=threads, **more, **options
    )


def stream(random, number):
    what, problem = _problem(random, number)
    options = _some(problem, BACKWARD_OPTIONS)
    length = int(random.integers(1, problem.key.shape[-2] + 2))
    length = max(length, problem.key.shape[-2] // 40)

    def run(threads, _):
        chunks = regard.KeyValueChunks(problem.key, problem.value, length=length)
        return regard.attend_stream(
            problem.query, chunks, return_lse=True, threads=threads, **options
        )

    return what, run


def merge(random, number):
    parts, rows, dim = (int(random.integers(*n)) for n in ((1, 5), (1, 3000), (1, 100)))
    dtype = type_named(TYPES["dtype"][number % 2])
    outputs = [drawn((2, rows, dim), dtype, number + i) for i in range(parts)]
    lses = [9 * drawn((2, rows), dtype, number + 9 + i) for i in range(parts)]
    lses[0][:, : rows // 3] = -np.inf
    return f"{parts} parts, {rows} x {dim}", lambda threads, _: regard.merge_attention_states(
        outputs, lses, threads=threads
    )


def merge_backward(random, number):
    parts, rows, dim = (int(random.integers(*n)) for n in ((1, 5), (1, 900), (1, 100)))
    outputs = [drawn((2, rows, dim), np.float64, number + i) for i in range(parts)]
    lses = [9 * drawn((2, rows), np.float64, number + 9 + i) for i in range(parts)]
    merged = regard.merge_attention_states(outputs, lses, threads=1)
    grad = drawn((2, rows, dim), np.float64, number)
    what = f"{parts} parts, {rows} x {dim}"
    return what, lambda threads, _: regard.merge_attention_states_backward(
        grad, outputs, lses, *merged
    )


def matmul(random, number):
    m, n, k = (int(np.exp(random.uniform(0, 7.5))) for _ in range(3))
    m = max(1, min(m, int(2 * MOST_WORK / (n * k))))
    dtype = type_named(TYPES["dtype"][number % 2])
    a, b = drawn((2, m, k), dtype, number), drawn((k, n), dtype, number + 1)
    if random.random() < 0.3:
        b = np.asfortranarray(b)
    return f"{m}x{k}x{n} {dtype}", lambda threads, _: regard.matmul(a, b, threads=threads)


def rows(random, number):
    """Call the stages that work on rows of scores."""
    shape = tuple(int(np.exp(random.uniform(0, 7))) for _ in range(2))
    dtype = type_named(TYPES["dtype"][number % 2])
    x = drawn((2, *shape), dtype, number)
    shown = drawn(shape, np.float64, number + 1) < 0.5

    def run(threads, _):
        scaled = regard.scale(x, 0.3, threads=threads)
        masked = regard.apply_mask(scaled, shown, threads=threads)
        return [regard.softmax(each, axis=axis, threads=threads)
                for each, axis in itertools.product((x, masked), (-1, 0))]  # fmt: skip

    return f"{shape} {dtype}", run


def self_attention(random, number):
    length, d_in, d_out = (int(random.integers(1, n)) for n in (400, 200, 128))
    dtype = type_named(TYPES["dtype"][number % 2])
    x, grad = drawn((2, length, d_in), dtype, number), drawn((2, length, d_out), dtype, number + 1)

    def run(threads, _):
        layer = regard.SelfAttention(d_in, d_out, rng=number, dropout=0.1, dtype=dtype).train()
        output = layer(x, is_causal=True, dropout_seed=number, threads=threads)
        of_x = layer.backward(grad, threads=threads)
        return output, of_x, dict(layer.grads)

    return f"{length} {d_in} {d_out} {dtype}", run


def multi_head(random, number):
    length, heads, dim = int(random.integers(1, 300)), 4, int(random.choice([8, 16, 32]))
    dtype = type_named(TYPES["dtype"][number % 2])
    table = [{}, {"rotary": True, "num_kv_heads": 2, "qk_norm": "rms"}]
    table += [{"alibi": True, "window": (30, 0)}, {"qkv_bias": True, "out_bias": True}]
    options = table[random.integers(len(table))]
    x = drawn((2, length, heads * dim), dtype, number)
    grad = drawn(x.shape, dtype, number + 1)

    def run(threads, _):
        layer = regard.MultiHeadAttention(
            heads * dim, heads, is_causal=True, rng=number, dtype=dtype, **options
        ).train()
        output = layer(x, threads=threads)
        of_x = layer.backward(grad, threads=threads)
        return output, of_x, dict(layer.grads)

    return f"{length} {heads} x {dim} {dtype} {options}", run


def cache(random, number):
    """Use a cache from creation to end: appends, undone appends, beams, attention, its file."""
    kind = list(cache_kinds.KINDS)[random.integers(len(cache_kinds.KINDS))]
    steps = [list(cache_kinds.CHANGES)[i] for i in random.integers(5, size=6)]
    steps = ["prompt" if step == "undo" else step for step in steps]

    def run(threads, folder):
        path = folder()
        made, _ = cache_kinds.make(kind, path)
        seen = []
        for place, step in enumerate(steps):
            cache_kinds.CHANGES[step](made, number % 1000 + place)
            if made.lengths.max() == 0:
                continue
            query = drawn((made.batch, 4, 1, made.head_dim), np.float32, number + place)
            offset = np.maximum(made.lengths - 1, 0)
            seen.append(made.attend(query, query_offset=offset, return_lse=True, threads=threads))
        forked = made.fork()
        cache_kinds.token(forked, number % 1000)
        seen += [forked.keys, forked.values, made.keys, made.values, made.lengths]
        made.save(path)
        with type(made).load(path, mmap=True) as loaded:
            seen += [loaded.keys, loaded.values, loaded.lengths]
        path.unlink()
        return seen

    return f"{kind}: {', '.join(steps)}", run


def growing_text(random, number):
    """Generate token by token from a prompt of some thousand keys, including eviction."""
    window = [None, None, 300][random.integers(3)]
    dtype = ["float32", "float16", "int8"][random.integers(3)]
    prompt = int(random.integers(1, 3000))
    key = drawn((2, 2, prompt + 20, 64), np.float32, number)
    query = drawn((2, 8, prompt + 20, 64), np.float32, number + 1)

    def run(threads, _):
        made = regard.KVCache(
            2, 2, 64, keep_last=window, keep_first=4 if window else 0, dtype=dtype
        )
        made.append(key[:, :, :prompt], key[:, :, :prompt])
        seen = []
        for at in range(prompt, prompt + 20):
            one = np.s_[:, :, at : at + 1]
            made.append(key[one], key[one])
            seen.append(made.attend(query[one], threads=threads))
        return seen

    return f"{prompt} {dtype} window {window}", run


def explain(random, number):
    """Return the contents of a plan that do not depend on threads."""
    what, problem = _problem(random, number)
    options = _some(problem, BACKWARD_OPTIONS)

    def run(threads, _):
        said = regard.explain(*problem.arrays, threads=threads, **options)
        return [said.kernel, said.scores_computed, said.flops]

    return what, run


KINDS = (
    guide, attention, attention, attention, long, int8, backward, backward, jvp,
    ragged, ragged_backward, summary, ragged_summary, attention_map, stream, merge, merge_backward,
    matmul, rows, self_attention, multi_head, cache, cache, growing_text, explain,
)  # fmt: skip


def call_of(number, seed=0):
    """Return the call of a number, which is the same in every process."""
    kind = KINDS[number % len(KINDS)]
    random = np.random.default_rng([seed, number, zlib.crc32(kind.__name__.encode())])
    what, run = kind(random, number)
    return Call(number, kind.__name__, what, run)
