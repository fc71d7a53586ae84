"""The options that every overload of the attention calls has in common, for type checkers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class AttentionOptions(TypedDict, total=False):
    """Keywords that do not change how many results there are."""

    is_causal: bool
    query_offset: ArrayLike
    window: tuple[int | None, int | None] | None
    key_lengths: ArrayLike | None
    scale: float | None
    softcap: float | None
    alibi_slopes: ArrayLike | None
    sinks: ArrayLike | None
    out: NDArray[Any] | None
    threads: int | None
