"""The options of each kind of call, for type checkers, signatures and docstrings.

Below the public functions, options are passed on as the caller's dictionary of keywords, down to
`cpp/bindings/options.cpp`, which checks their values.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, SupportsIndex, TypedDict, TypeVar

from regard._arguments.option_table import OPTIONS, Subject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from regard._arguments.score_function import ScoreFunction

    # One number per head. ArrayLike would include strings.
    HeadNumbers = Sequence[float] | Sequence[Sequence[float]] | NDArray[Any]

# The type of an option that is a number or an array of numbers, which depends on the library.
Numbers = TypeVar("Numbers")


class _CausalOption(TypedDict, total=False):
    is_causal: bool


class _ScaleOption(TypedDict, Generic[Numbers], total=False):
    scale: float | Numbers | None


class _CapOption(TypedDict, Generic[Numbers], total=False):
    softcap: float | Numbers | None


class _PositionOptions(TypedDict, Generic[Numbers], total=False):
    query_offset: Numbers | Literal["end"]
    window: tuple[int | None, int | None] | None


class _LengthOptions(TypedDict, Generic[Numbers], total=False):
    key_lengths: Numbers | None
    left_padding: Numbers | None


class _GpuScoreOptions(TypedDict, Generic[Numbers], total=False):
    alibi_slopes: Numbers | None
    sinks: Numbers | None


class _ScoreOptions(_GpuScoreOptions[Numbers], Generic[Numbers], total=False):
    distance_bias: Numbers | None


class _FunctionOption(TypedDict, total=False):
    score_function: ScoreFunction | None


class PatternOptions(
    _CausalOption, _PositionOptions["ArrayLike"], _LengthOptions["ArrayLike"], total=False
):
    """The options that determine which keys a query sees."""


class SelectionOptions(PatternOptions, total=False):
    """The options of `select_keys`."""

    threads: int | None


class RecordedOptions(
    PatternOptions,
    _ScaleOption["HeadNumbers"],
    _CapOption["HeadNumbers"],
    _ScoreOptions["ArrayLike"],
    _FunctionOption,
    total=False,
):
    """The options that determine the weights before dropout, which recordings contain."""


class WeightOptions(RecordedOptions, total=False):
    """The options of the calls that compute weights before dropout."""

    threads: int | None


class _DropoutOptions(TypedDict, total=False):
    dropout_p: float
    dropout_seed: int | None
    dropout_origin: tuple[int, int, int]


class BackwardOptions(WeightOptions, _DropoutOptions, total=False):
    """The options that the backward calls share with the forward call."""


class DaskOptions(
    PatternOptions,
    _ScaleOption["HeadNumbers"],
    _CapOption["HeadNumbers"],
    _ScoreOptions["ArrayLike"],
    _DropoutOptions,
    total=False,
):
    """The options of the attention calls of `regard.dask`."""

    threads: int | None


class GradientOptions(BackwardOptions, total=False):
    """The options of the calls that compute gradients."""

    precision: Literal["bfloat16"] | None


class AttentionOptions(BackwardOptions, total=False):
    """The options of the attention calls, except the options that add results."""

    precision: Literal["int8", "bfloat16"] | None
    out: NDArray[Any] | None
    device: Literal["cpu", "cuda"] | None


class ResultOptions(TypedDict, total=False):
    """The options that add results."""

    return_weights: bool
    return_lse: bool


class ExplainOptions(BackwardOptions, ResultOptions, total=False):
    """The options of `explain`."""

    precision: Literal["int8", "bfloat16"] | None


class StreamOptions(BackwardOptions, total=False):
    """The options of `attend_stream`."""

    out: NDArray[Any] | None


class CacheExplainOptions(
    _CausalOption,
    _PositionOptions["ArrayLike | None"],
    _ScaleOption["HeadNumbers"],
    _CapOption["HeadNumbers"],
    _ScoreOptions["ArrayLike"],
    _FunctionOption,
    total=False,
):
    """The options of `KVCache.explain`."""

    threads: int | None
    precision: Literal["bfloat16"] | None


class CacheOptions(CacheExplainOptions, total=False):
    """The options of `KVCache.attend`, except the options that add results."""

    out: NDArray[Any] | None


class SelfAttentionOptions(_CausalOption, total=False):
    """The options of calls of `SelfAttention`."""

    dropout_seed: SupportsIndex | None
    threads: int | None


class LayerOptions(
    _LengthOptions["ArrayLike"],
    _ScaleOption["HeadNumbers"],
    _CapOption["HeadNumbers"],
    total=False,
):
    """The options of calls of `MultiHeadAttention`. Its constructor accepts the others."""

    query_offset: ArrayLike | Literal["end"]
    sinks: ArrayLike | None
    dropout_seed: SupportsIndex | None
    precision: Literal["int8", "bfloat16"] | None
    threads: int | None


class _ForeignOptions(
    _PositionOptions[Any],
    _LengthOptions[Any],
    _CapOption[Any],
    _GpuScoreOptions[Any],
    total=False,
):
    return_lse: bool


class CudaOptions(_ForeignOptions, _CausalOption, _ScaleOption[Any], total=False):
    """The options of the attention calls of `regard.cuda`. Arrays are on the device."""

    out: Any


class JaxOptions(
    _ForeignOptions, _ScoreOptions[Any], _CausalOption, _ScaleOption[Any], total=False
):
    """The options of the attention call of `regard.jax`."""

    dropout_p: float
    dropout_seed: Any
    dropout_origin: tuple[int, int, int]
    precision: Literal["int8", "bfloat16"] | None
    threads: int | None


class TorchOptions(_ForeignOptions, _ScoreOptions[Any], _FunctionOption, total=False):
    """The options of the attention call of `regard.torch` that are not in PyTorch's call."""

    dropout_seed: Any
    dropout_origin: tuple[int, int, int]
    precision: Literal["int8", "bfloat16"] | None
    threads: int | None


@functools.cache
def names_of(*groups: type) -> tuple[str, ...]:
    """Return the names of the options of some groups, in the order of signatures."""
    names = {name for group in groups for name in group.__annotations__}
    return tuple(name for name in OPTIONS if name in names)


Function = TypeVar("Function", bound=Callable[..., Any])


def takes_options(
    *groups: type,
    reference: str = "as in `scaled_dot_product_attention`",
    in_full: bool = False,
    **defaults: Any,
) -> Callable[[Function], Function]:
    """Add the options of some groups to a function's signature and docstring.

    In the signature, the options replace ``**options``. Other keywords, ``**imshow`` for example,
    follow them. In the docstring, they replace ``{options}``, except the options that the docstring
    already describes: `in_full`, or with a reference to the function that describes them. Defaults
    may differ from the table.
    """
    annotations = {name: kind for group in groups for name, kind in group.__annotations__.items()}
    names = names_of(*groups)

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        named, others = [], []
        for parameter in signature.parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                named.append(parameter)
            elif parameter.name != "options":
                others.append(parameter)
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, OPTIONS[name].default),
                annotation=_shown(annotations[name]),
            )
            for name in names
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*named, *options, *others]
        )
        if function.__doc__:  # absent under python -OO
            function.__doc__ = _described(function.__doc__, names, reference, in_full)
        return function

    return decorate


def _shown(annotation: Any) -> str:
    """Return an annotation in terms that NumPy users know."""
    text: str = annotation.__forward_arg__
    return re.sub(r"\bNumbers\b", "ArrayLike", text)


def _described(docstring: str, names: Iterable[str], reference: str, in_full: bool) -> str:
    """Return a docstring with the options described in place of ``{options}``."""
    place = re.search(r"^( *)\{options\}\n", docstring, re.MULTILINE)
    if not place:
        return docstring
    indent = place[1]
    own = set()
    for line in re.findall(rf"^{indent}(\S.*)$", docstring, re.MULTILINE):
        own.update(re.split(r",\s*", line.partition(" :")[0]))
    left = [name for name in names if name not in own]
    entries = _entries_in_full(left) if in_full else _entries(left, reference)
    text = "\n".join(f"{head}\n{textwrap.indent(body, '    ')}" for head, body in entries)
    shown = textwrap.indent(text, indent) + "\n"
    return docstring[: place.start()] + shown + docstring[place.end() :]


def _entries_in_full(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        option = OPTIONS[name]
        yield f"{name} : {option.declared}", textwrap.dedent(option.text).strip()


def _entries(names: list[str], reference: str) -> Iterator[tuple[str, str]]:
    for subject in Subject:
        of_subject = [name for name in names if OPTIONS[name].subject is subject]
        if of_subject == ["threads"]:
            yield from _entries_in_full(of_subject)
        elif of_subject:
            yield ", ".join(of_subject), f"{subject.value}, {reference}."
