"""The table of the options of the attention calls.

A row describes an option. It determines the signatures and docstrings of the calls, how the option
is cut with a batch entry or a head, and the PyTorch schemas. The classes in `options` repeat this
for type checkers and editors, which do not run the table.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    Type = Literal[
        "seed",
        "flag",
        "integer",
        "integers",
        "number",
        "numbers",
        "number_or_numbers",
        "table",
        "function",
        "sides",
        "origin",
        "choice",
        "array",
    ]


class Subject(Enum):
    """The subjects of options, in the order of signatures."""

    VISIBILITY = "Which keys a query sees"
    SCORES = "How scores are computed"
    DROPOUT = "Which weights are dropped"
    COMPUTATION = "How the call is computed"
    RESULTS = "Which results are returned"


class Option(NamedTuple):
    """One option."""

    name: str
    default: Any
    subject: Subject
    type: Type
    """The kind of value. A choice is a string or None; sides and origins are tuples of integers."""
    declared: str
    """The type and the default in a docstring."""
    text: str
    """The description in a docstring."""
    axes: tuple[str, ...] = ()
    """The axes to which an array broadcasts; () if the option is one value per call. "columns" is
    an axis that does not belong to the call."""
    is_differentiable: bool = False


_ROWS = (
    Option(
        "is_causal",
        False,
        Subject.VISIBILITY,
        "flag",
        "bool, default False",
        """
        Query ``i`` sees key ``j`` only if ``j <= i + query_offset``. With 3 queries, 3 keys and
        offset 0, the visible keys are::

            1 0 0
            1 1 0
            1 1 1
        """,
    ),
    Option(
        "query_offset",
        0,
        Subject.VISIBILITY,
        "integers",
        'int, array_like of int or "end", default 0',
        """
        Number of keys before the first query: query ``i`` is at position ``p = i + query_offset``.
        Scalar, or one per batch entry (it broadcasts to the axes before heads). 0 is the alignment
        of PyTorch and JAX. ``"end"`` is the alignment of FlashAttention: the last query is at the
        last valid key of its batch entry (see `key_lengths`).
        """,
        axes=("batch",),
    ),
    Option(
        "window",
        None,
        Subject.VISIBILITY,
        "sides",
        "(left, right), optional",
        """
        Key ``j`` is visible only if ``p - left <= j <= p + right``: neighbors are counted, and None
        on a side means no limit there.
        """,
    ),
    Option(
        "key_lengths",
        None,
        Subject.VISIBILITY,
        "integers",
        "int or array_like of int, optional",
        """
        Number of valid keys, scalar or one per batch entry (it broadcasts to the axes before
        heads). Keys from this index on are neither seen nor computed, whatever they contain.
        """,
        axes=("batch",),
    ),
    Option(
        "left_padding",
        None,
        Subject.VISIBILITY,
        "integers",
        "int or array_like of int, optional",
        """
        Number of padding keys at the start, scalar or one per batch entry (it broadcasts to the
        axes before heads). Padding is neither seen nor computed, whatever it contains. Positions
        still count from the first key.
        """,
        axes=("batch",),
    ),
    Option(
        "scale",
        None,
        Subject.SCORES,
        "number_or_numbers",
        "float or array_like of float, shape (heads,) or (..., heads), optional",
        """
        Factor of ``query . key``, scalar or one per query head. Default ``1 / sqrt(head_dim)``.
        """,
        axes=("batch", "heads"),
    ),
    Option(
        "softcap",
        None,
        Subject.SCORES,
        "number_or_numbers",
        "float or array_like of float, shape (heads,) or (..., heads), optional",
        """
        Caps the scaled scores smoothly: ``softcap * tanh(score / softcap)`` (Gemma 2). Scalar, or
        one per query head; inf means no cap.
        """,
        axes=("batch", "heads"),
    ),
    Option(
        "alibi_slopes",
        None,
        Subject.SCORES,
        "numbers",
        "array_like of float, shape (heads,) or (..., heads), optional",
        """
        Attention with linear biases (Press et al. 2022): ``slope[head] * abs(p - j)`` is subtracted
        from the capped score. One slope per query head, or one per head of each batch entry (the
        axes before heads broadcast). See `regard.positional.alibi_slopes`.
        """,
        axes=("batch", "heads"),
        is_differentiable=True,
    ),
    Option(
        "distance_bias",
        None,
        Subject.SCORES,
        "table",
        "array_like of float, shape (heads, 2 n - 1) or (..., heads, 2 n - 1), optional",
        """
        A bias for each distance of a key from its query (Raffel et al. 2020):
        ``distance_bias[head, n - 1 + j - p]`` is added to the score of key ``j``, and keys beyond
        the table use the last column on their side. -inf hides keys. One row per query head, one
        per head of each batch entry (the axes before heads broadcast), or one for all. See
        `regard.positional.t5_distance_bias`.
        """,
        axes=("batch", "heads", "columns"),
        is_differentiable=True,
    ),
    Option(
        "score_function",
        None,
        Subject.SCORES,
        "function",
        "ScoreFunction, optional",
        """
        A compiled function that changes capped scores, before any bias is added and before masks
        hide keys; see `ScoreFunction`.
        """,
    ),
    Option(
        "sinks",
        None,
        Subject.SCORES,
        "numbers",
        "array_like of float, shape (heads,), optional",
        """
        One logit per head that joins the softmax's denominator and carries no value; it is neither
        scaled nor capped. -inf means no sink.
        """,
        axes=("heads",),
        is_differentiable=True,
    ),
    Option(
        "dropout_p",
        0.0,
        Subject.DROPOUT,
        "number",
        "float, default 0.0",
        """
        Drop each weight with this probability, from 0 to less than 1, and multiply the others by
        ``1 / (1 - dropout_p)``. It acts on the output and on the returned weights, not on lse.
        """,
    ),
    Option(
        "dropout_seed",
        None,
        Subject.DROPOUT,
        "seed",
        "int, optional",
        """
        Determines which weights are dropped, from 0 to 2**64 - 1; required if `dropout_p` is not 0.
        See the notes.
        """,
    ),
    Option(
        "dropout_origin",
        (0, 0, 0),
        Subject.DROPOUT,
        "origin",
        "(entry, head, position), default (0, 0, 0)",
        """
        For a call that computes a part of a larger call, such as some of its keys: the indices, in
        the whole, of the first batch entry, query head and key of the part. The same weights are
        dropped as in the whole.
        """,
    ),
    Option(
        "precision",
        None,
        Subject.COMPUTATION,
        "choice",
        '{"int8", "bfloat16"}, optional',
        """
        Allow products with fewer bits, which are faster for long inputs and no longer exact:
        ``"int8"`` for products of queries and keys, or ``"bfloat16"`` for all products. CPUs
        without a suitable instruction compute in float32, as without this option. Caches and
        gradients accept only ``"bfloat16"``, which is experimental. See the notes of
        `scaled_dot_product_attention`. By default, everything is computed in the precision of the
        arrays.
        """,
    ),
    Option(
        "return_weights",
        False,
        Subject.RESULTS,
        "flag",
        "bool, default False",
        """
        Also return the attention weights.
        """,
    ),
    Option(
        "return_lse",
        False,
        Subject.RESULTS,
        "flag",
        "bool, default False",
        """
        Also return the natural log-sum-exp of every row's visible scores, sink included.
        """,
    ),
    Option(
        "out",
        None,
        Subject.RESULTS,
        "array",
        "ndarray, optional",
        """
        Array to which the output is written. It must have the type and shape of the result, and
        must not overlap an input. Any strides are accepted.
        """,
    ),
    Option(
        "threads",
        None,
        Subject.COMPUTATION,
        "integer",
        "int, optional",
        """
        Maximum number of threads. Default: see `set_num_threads`. The bits of the result do not
        depend on it.
        """,
    ),
    Option(
        "device",
        None,
        Subject.COMPUTATION,
        "choice",
        '{"cpu", "cuda"}, optional',
        """
        Where to compute. ``"cuda"`` copies host arrays to a GPU and the results back; see
        `regard.cuda`. By default, the call runs where the arrays are. If they are on a GPU, the
        results are too, and the call behaves like `regard.cuda.scaled_dot_product_attention`, with
        its types, options and errors.
        """,
    ),
)
OPTIONS = {option.name: option for option in _ROWS}
ARRAY_OPTIONS = tuple(name for name, option in OPTIONS.items() if option.axes)
PER_ENTRY = tuple(name for name, option in OPTIONS.items() if option.axes == ("batch",))
DIFFERENTIABLE = tuple(name for name, option in OPTIONS.items() if option.is_differentiable)
