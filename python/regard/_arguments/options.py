"""The options of the attention calls, and how they appear in signatures.

Below the public functions options travel as the dictionary of keywords that the caller wrote, up to
`cpp/bindings/options.cpp`, which knows what each of them may be.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class CacheOptions(TypedDict, total=False):
    """What `KVCache.attend` takes beside the options that add results."""

    is_causal: bool
    query_offset: ArrayLike | Literal["end"]
    window: tuple[int | None, int | None] | None
    scale: float | None
    softcap: float | None
    alibi_slopes: ArrayLike | None
    sinks: ArrayLike | None
    out: NDArray[Any] | None
    threads: int | None


class AttentionOptions(CacheOptions, total=False):
    """What the attention calls take beside the options that add results."""

    key_lengths: ArrayLike | None
    left_padding: ArrayLike | None
    dropout_p: float
    dropout_seed: int | None
    dropout_origin: tuple[int, int, int]
    precision: Literal["int8"] | None
    device: Literal["cpu", "cuda"] | None


class ResultOptions(TypedDict, total=False):
    """The options that add results."""

    return_weights: bool
    return_lse: bool


class WeightOptions(TypedDict, total=False):
    """What decides the weights before dropout."""

    is_causal: bool
    query_offset: ArrayLike | Literal["end"]
    window: tuple[int | None, int | None] | None
    key_lengths: ArrayLike | None
    left_padding: ArrayLike | None
    scale: float | None
    softcap: float | None
    alibi_slopes: ArrayLike | None
    sinks: ArrayLike | None
    threads: int | None


class BackwardOptions(WeightOptions, total=False):
    """What the backward calls share with the forward call."""

    dropout_p: float
    dropout_seed: int | None
    dropout_origin: tuple[int, int, int]


class ExplainOptions(BackwardOptions, total=False):
    """What `explain` takes: the options that decide what is computed, and how."""

    precision: Literal["int8"] | None
    return_weights: bool
    return_lse: bool


class StreamOptions(BackwardOptions, total=False):
    """What `attend_stream` takes beside its own keywords."""

    out: NDArray[Any] | None


class ForeignOptions(TypedDict, total=False):
    """What decides the weights in calls on arrays of other libraries, which options may be too."""

    is_causal: bool
    query_offset: Any
    window: tuple[int | None, int | None] | None
    key_lengths: Any
    left_padding: Any
    scale: float | None
    softcap: float | None
    alibi_slopes: Any
    sinks: Any


class CudaOptions(ForeignOptions, total=False):
    """What the attention calls of `regard.cuda` take. Arrays are on the device."""

    return_lse: bool
    out: Any


# In the order of the signatures, with their defaults.
DEFAULTS: dict[str, Any] = {
    "is_causal": False,
    "query_offset": 0,
    "window": None,
    "key_lengths": None,
    "left_padding": None,
    "scale": None,
    "softcap": None,
    "alibi_slopes": None,
    "sinks": None,
    "dropout_p": 0.0,
    "dropout_seed": None,
    "dropout_origin": (0, 0, 0),
    "precision": None,
    "return_weights": False,
    "return_lse": False,
    "out": None,
    "threads": None,
    "device": None,
}

BACKWARD_OPTIONS = tuple(BackwardOptions.__annotations__)

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_options(*groups: type, **defaults: Any) -> Callable[[Function], Function]:
    """Show the options of some groups in a function's signature, in place of ``**options``.

    Other keywords, ``**imshow`` for example, stay behind them.
    `defaults` are those that differ from `DEFAULTS`.
    """
    annotations = {name: kind for group in groups for name, kind in group.__annotations__.items()}

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
                default=defaults.get(name, default),
                annotation=annotations[name].__forward_arg__,
            )
            for name, default in DEFAULTS.items()
            if name in annotations
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*named, *options, *others]
        )
        return function

    return decorate
