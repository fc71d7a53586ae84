"""The table of the options of the attention calls.

A row describes an option. It determines the signatures and docstrings of the calls, how the option
is cut with a batch entry or a head, the PyTorch schemas, the names of the option in other
libraries, and the error messages of calls without the option. The classes in `options` repeat this
for type checkers and editors, which do not run the table.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

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

# The kinds of calls with specific reasons for the options that they do not accept.
Kind = Literal[
    "attention",
    "explain",
    "gradients",
    "weights",
    "pattern",
    "recording",
    "stream",
    "cache",
    "pages",
    "layer",
    "self-attention",
    "dask",
    "jax",
    "torch",
    "cuda",
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
    aliases: tuple[str, ...] = ()
    """The names of the option in other libraries."""
    refusals: Mapping[str, str] = MappingProxyType({})
    """Messages of calls without the option, by the kind of the call; "" means all other kinds."""

    def refusal(self, kind: str) -> str | None:
        """Return the message of a call of a kind without the option, if there is one."""
        return self.refusals.get(kind, self.refusals.get(""))


_CONSTRUCTOR = "pass it to the constructor, MultiHeadAttention()"
_NO_DROPOUT = MappingProxyType(
    {
        "cuda": "leave it out: the GPU kernels drop no weights",
        "layer": "pass dropout= to the constructor, MultiHeadAttention(), and dropout_seed= here",
        "self-attention": "pass dropout= to the constructor, SelfAttention(), and dropout_seed= "
        "here",
        "": "leave it out: this call drops no weights",
    }
)
_NO_WEIGHTS_OF_GPUS = (
    "leave it out: the GPU kernels do not keep weights; copy the arrays to the host and call "
    "regard.scaled_dot_product_attention, which returns them"
)
_NO_WEIGHTS_OF_CHUNKS = (
    "leave it out: weights for all keys would need as much memory as the scores; with "
    "return_lse=True, the weights of some keys are exp(score - lse)"
)
_NO_WEIGHTS = "leave it out: regard.scaled_dot_product_attention returns weights"
_NOT_VISIBILITY = "leave it out: it does not change which keys a query sees"
_OF_THE_CACHE = "leave it out: the cache knows its lengths"
_ONE_HEAD = "leave it out: this layer has one head and no options for scores"

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
        aliases=("causal", "use_causal_mask"),
        refusals={"layer": _CONSTRUCTOR},
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
        aliases=("diagonal", "offset", "past_length"),
        refusals={
            "self-attention": "leave it out: the queries of this layer are its keys' own positions"
        },
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
        refusals={
            "layer": _CONSTRUCTOR,
            "self-attention": "pass mask=regard.masks.window(length, window=...)",
        },
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
        aliases=(
            "cache_seqlens",
            "context_lens",
            "key_value_seq_lengths",
            "kv_len",
            "lengths",
            "nonpad_kv_seqlen",
            "seq_lens",
            "seqused_k",
        ),
        refusals={
            "cache": _OF_THE_CACHE,
            "pages": "pass lengths=",
            "self-attention": "pass mask=regard.masks.padding(lengths, length)[:, 0]",
        },
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
        aliases=("cache_leftpad",),
        refusals={
            "cache": "leave it out: pad on the right, and append with lengths=",
            "pages": "leave it out: the first column of block_table contains the first tokens",
            "self-attention": 'pass mask=regard.masks.padding(lengths, length, side="left")[:, 0]',
        },
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
        aliases=("softmax_scale", "sm_scale", "scale_factor", "scaling_factor"),
        refusals={"pattern": _NOT_VISIBILITY, "self-attention": _ONE_HEAD},
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
        aliases=("attn_logit_softcapping", "attn_logits_soft_cap", "logits_soft_cap"),
        refusals={"pattern": _NOT_VISIBILITY, "self-attention": _ONE_HEAD},
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
        refusals={
            "layer": "pass alibi=True to the constructor, MultiHeadAttention()",
            "pattern": _NOT_VISIBILITY,
            "self-attention": _ONE_HEAD,
        },
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
        aliases=("relative_bias", "relative_position_bias", "position_bias"),
        refusals={
            "cuda": "leave it out: the GPU kernels do not support it; pass a float mask with the "
            "bias of each query and key",
            "layer": "pass distance_bias=n to the constructor, MultiHeadAttention()",
            "pattern": _NOT_VISIBILITY,
            "self-attention": _ONE_HEAD,
        },
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
        aliases=("score_mod",),
        refusals={
            "cuda": "leave it out: it is a CPU function",
            "dask": "leave it out: workers in other processes cannot call its address",
            "gradients": "leave it out: second-order gradients would need its second derivative",
            "jax": "leave it out: JAX does not keep the function alive",
            "layer": "leave it out: this layer calls no function of scores",
            "pattern": _NOT_VISIBILITY,
            "self-attention": _ONE_HEAD,
        },
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
        aliases=("learnable_sink", "head_sink", "s_aux"),
        refusals={"pattern": _NOT_VISIBILITY, "self-attention": _ONE_HEAD},
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
        aliases=("p",),
        refusals=_NO_DROPOUT,
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
        aliases=("seed",),
        refusals=_NO_DROPOUT,
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
        refusals=_NO_DROPOUT,
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
        refusals={
            "cuda": "leave it out: it is for the CPU only",
            "stream": "leave it out: chunks are computed in the precision of the arrays",
            "dask": "leave it out: chunks are computed in the precision of the arrays",
            "gradients": "leave it out: these derivatives are always exact",
            "self-attention": _ONE_HEAD,
            "": "leave it out: this call computes in the precision of the arrays",
        },
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
        aliases=(
            "need_weights",
            "output_attentions",
            "return_attention",
            "return_attention_scores",
            "return_attn_probs",
        ),
        refusals={"cuda": _NO_WEIGHTS_OF_GPUS, "stream": _NO_WEIGHTS_OF_CHUNKS, "": _NO_WEIGHTS},
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
        aliases=("return_residual", "return_softmax_lse"),
        refusals={"": "leave it out: regard.scaled_dot_product_attention returns lse"},
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
        refusals={
            "explain": "leave it out: nothing is computed",
            "jax": "leave it out: JAX arrays do not change",
            "torch": "leave it out: the output is a new tensor",
            "dask": "leave it out: the output is computed later; dask.array.store writes it",
            "": "leave it out: the results are new",
        },
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
        refusals={
            "cuda": "leave it out: it limits CPU threads",
            "pattern": "leave it out: a pattern is drawn by one thread",
            "recording": "pass it to the calls that read the recording",
        },
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
        refusals={
            **dict.fromkeys(
                ("cuda", "torch", "jax"), "leave it out: the arrays determine the device"
            ),
            "stream": "leave it out: chunks are computed on the CPU",
            "": "leave it out: this call computes on the CPU",
        },
    ),
)
OPTIONS = {option.name: option for option in _ROWS}
ARRAY_OPTIONS = tuple(name for name, option in OPTIONS.items() if option.axes)
PER_ENTRY = tuple(name for name, option in OPTIONS.items() if option.axes == ("batch",))
PER_HEAD = tuple(name for name, option in OPTIONS.items() if "heads" in option.axes)
DIFFERENTIABLE = tuple(name for name, option in OPTIONS.items() if option.is_differentiable)
