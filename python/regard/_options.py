"""The options that every overload of the attention calls has in common, for type checkers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class CacheOptions(TypedDict, total=False):
    """Keywords that do not change how many results there are, but for `key_lengths`."""

    is_causal: bool
    query_offset: ArrayLike
    window: tuple[int | None, int | None] | None
    scale: float | None
    softcap: float | None
    alibi_slopes: ArrayLike | None
    sinks: ArrayLike | None
    out: NDArray[Any] | None
    threads: int | None


class AttentionOptions(CacheOptions, total=False):
    """Keywords that do not change how many results there are."""

    key_lengths: ArrayLike | None
    precision: Literal["int8"] | None
