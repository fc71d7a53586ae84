"""Cases from shapes as text, and curves of one shape over lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regard._bench.cases import CALL, DECODE, FORWARD, Case, Group, name_of
from regard._bench.machine import available_memory
from regard._bench.problems import Attention

GRAMMAR = "batch,heads[/kv_heads],length[/kv_len],head_dim[/value_dim]"
CURVE_GRAMMAR = "batch,heads[/kv_heads],head_dim[/value_dim]"
MAX_SIZE = 1 << 31
# The default cases: a small call, BERT, GPT-2, Llama, and a decode step of Llama.
TYPICAL = (
    ("1,1,6,2", False),
    ("8,12,128,64", False),
    ("1,12,1024,64", True),
    ("1,32/8,2048,128", True),
    ("1,32/8,1/4096,128", False),
)

# With less work, the overhead of a call dominates. With fewer bytes of keys and values, a decode
# step finds them in the cache. Both are reported in us instead of a rate.
_SMALL_FLOPS = 1_000_000
_SMALL_BYTES = 4 << 20


def parse_shape(text: str, *, is_causal: bool = False) -> Case:
    """Parse a shape.

    Parameters
    ----------
    text : str
        Four sizes, such as ``"1,8,512,64"``. All but the first may be two sizes, such as
        ``"1,32/8,1/4096,128"``: heads and kv_heads, q_len and kv_len, head_dim and value_dim.
    is_causal : bool, optional
        Whether query i sees only keys 0 to i. Requires as many queries as keys.

    Returns
    -------
    Case
        The case. Its rate is in us if it is small, in bytes of keys and values per second if a
        single query reads them from memory, and in floating-point operations per second otherwise.

    Raises
    ------
    ValueError
        If the text is not a shape, or the arrays do not fit in memory.
    """
    sizes = _sizes(text, GRAMMAR, "1,32/8,1/4096,128")
    (batch, _), (heads, kv_heads), (q_len, kv_len), (head_dim, value_dim) = sizes
    if is_causal and q_len != kv_len:
        raise ValueError(f"must have as many queries as keys to be causal, got {text!r}")
    problem = Attention(
        batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim, is_causal=is_causal
    )
    if q_len == 1 and problem.bytes < _SMALL_BYTES:
        problem = replace(problem, is_resident=True)
    return Case(name_of(problem), _group(problem), _fitting(problem))


def _group(problem: Attention) -> Group:
    if problem.streams_keys:
        return DECODE
    return CALL if problem.is_resident or problem.flops < _SMALL_FLOPS else FORWARD


def parse_curve(text: str, lengths: Sequence[int], *, is_causal: bool = False) -> list[Case]:
    """Parse a shape without a length, as `parse_shape` does; return a case for each length."""
    sizes = _sizes(text, CURVE_GRAMMAR, "1,32/8,128")
    (batch, _), (heads, kv_heads), (head_dim, value_dim) = sizes
    problems = [
        Attention(batch, heads, kv_heads, n, n, head_dim, value_dim, is_causal) for n in lengths
    ]
    return [Case(name_of(problem), FORWARD, _fitting(problem)) for problem in problems]


def parse_lengths(text: str) -> list[int]:
    """Parse ``FIRST:LAST``, and return the lengths that double from the first up to the last."""
    first, colon, last = text.partition(":")
    if not colon:
        raise ValueError(f"must be FIRST:LAST, such as 128:4096, got {text!r}")
    length, end = _size(first, text), _size(last, text)
    if end < length:
        raise ValueError(f"must not end before it starts, got {text!r}")
    lengths = [length]
    while lengths[-1] * 2 <= end:
        lengths.append(lengths[-1] * 2)
    return lengths


def _fitting(problem: Attention) -> Attention:
    """Refuse a problem whose arrays, and a copy in float64 to check them, do not fit in memory."""
    queries = problem.batch * problem.heads * problem.q_len
    rows = queries + problem.batch * problem.kv_heads * problem.kv_len
    needed = 12 * rows * (problem.head_dim + (problem.value_dim or problem.head_dim))
    free = available_memory()
    if needed > free:
        raise ValueError(
            f"{name_of(problem)} needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        )
    return problem


def _sizes(text: str, grammar: str, example: str) -> list[tuple[int, int]]:
    """Parse one or two sizes between commas, with as many commas as the grammar has."""
    fields = text.split(",")
    if len(fields) != grammar.count(",") + 1:
        raise ValueError(f"must be {grammar}, such as {example}, got {text!r}")
    sizes = []
    for field in fields:
        one, slash, other = field.partition("/")
        size = _size(one, text)
        sizes.append((size, _size(other, text) if slash else size))
    if sizes[0][0] != sizes[0][1]:
        raise ValueError(f"batch must be one size, got {text!r}")
    heads, kv_heads = sizes[1]
    if heads % kv_heads:
        raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
    return sizes


def _size(field: str, text: str) -> int:
    if not field.isdecimal() or not 1 <= int(field) <= MAX_SIZE:
        raise ValueError(f"sizes must be whole numbers from 1 to {MAX_SIZE}, got {text!r}")
    return int(field)
