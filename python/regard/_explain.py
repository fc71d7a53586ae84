"""What a call of `scaled_dot_product_attention` would compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from regard import _core
from regard._arrays import as_mask, as_stored_arrays
from regard._explanation import FLOAT_MASK, Explanation, distinct_bytes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def explain(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    is_causal: bool = False,
    query_offset: ArrayLike = 0,
    window: tuple[int | None, int | None] | None = None,
    key_lengths: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    precision: Literal["int8"] | None = None,
    threads: int | None = None,
) -> Explanation:
    """Say what `scaled_dot_product_attention` would compute with these arguments, and how.

    Nothing is computed but what is visible: the mask is read, keys and values are not.

    Parameters
    ----------
    query, key, value, mask
        As in `scaled_dot_product_attention`.
    is_causal, query_offset, window, key_lengths, scale, softcap, alibi_slopes, sinks
        As in `scaled_dot_product_attention`.
    precision, threads
        As in `scaled_dot_product_attention`.

    Returns
    -------
    Explanation
        Its attributes are numbers; ``print`` shows them as text.

    Raises
    ------
    TypeError, ValueError
        As `scaled_dot_product_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> x = np.zeros((8, 4096, 64), np.float32)
    >>> whole = regard.explain(x, x, x)
    >>> causal = regard.explain(x, x, x, is_causal=True)
    >>> round(causal.flops / whole.flops, 1)
    0.5
    """
    given = {"query": query, "key": key, "value": value}
    arrays = as_stored_arrays(**given)
    readable_mask = as_mask(mask)
    plan = _core.attention_plan(
        arrays[0],
        arrays[1],
        arrays[2],
        readable_mask,
        is_causal,
        query_offset,
        window,
        key_lengths,
        scale,
        softcap,
        alibi_slopes,
        sinks,
        precision,
        threads,
    )
    notes = [
        f"{name} was converted to a {array.dtype} array: {_why(before)}"
        for (name, before), array in zip(given.items(), arrays, strict=True)
        if before is not array
    ]
    if mask is not None and mask is not readable_mask:
        notes.append(f"mask was converted: {_why(mask)}")
    if readable_mask is not None and readable_mask.dtype.kind == "f":
        notes.append(FLOAT_MASK)
    read = [*arrays] if readable_mask is None else [*arrays, readable_mask]
    return Explanation.of_plan(plan, arrays[1], arrays[2], sum(map(distinct_bytes, read)), notes)


def _why(value: ArrayLike) -> str:
    """Why the kernels cannot read what was passed."""
    if not isinstance(value, np.ndarray):
        return f"it is a {type(value).__name__}"
    if type(value) is not np.ndarray:
        return f"it is a {type(value).__name__}, a subclass of ndarray"
    if not value.dtype.isnative:
        return "its bytes are in the other order"
    if value.dtype.kind in "biu" or value.dtype.itemsize == 2:
        return f"it is of {value.dtype}"
    return "its memory is not aligned to its elements"
