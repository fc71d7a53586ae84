"""Report what a call of `scaled_dot_product_attention` would compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from regard import _core
from regard._arguments.arrays import as_stored_arrays, is_aligned
from regard._arguments.foreign import readable, with_arrays
from regard._arguments.hints import raise_with_hint
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks, as_mask, is_sparse, parts_of
from regard._arguments.options import ExplainOptions, names_of, takes_options
from regard._attention.explanation import FLOAT_MASK, Explanation, distinct_bytes
from regard._runtime.public import public

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array


@public
@takes_options(ExplainOptions)
def explain(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    query_starts: ArrayLike | None = None,
    key_starts: ArrayLike | None = None,
    **options: Unpack[ExplainOptions],
) -> Explanation:
    """Report what `scaled_dot_product_attention` would compute with these arguments, and how.

    The report is the plan that the call itself would follow. Masks are read to count visible keys;
    keys and values are not read.

    Parameters
    ----------
    query, key, value, mask
        As in `scaled_dot_product_attention`.
    query_starts, key_starts : array_like of int, shape (sequences + 1,), optional
        As in `scaled_dot_product_attention_ragged`. If both are given, the arrays are packed
        sequences, and a call of that function is explained.
    {options}

    Returns
    -------
    Explanation
        Its attributes are numbers; ``print`` shows them as text.

    Raises
    ------
    TypeError, ValueError
        As `scaled_dot_product_attention`; also TypeError if only one of `query_starts` and
        `key_starts` is given.

    Examples
    --------
    Causal attention to 4096 tokens computes about half of the scores:

    >>> import numpy as np
    >>> import regard
    >>> x = np.zeros((8, 4096, 64), np.float32)
    >>> whole = regard.explain(x, x, x)
    >>> causal = regard.explain(x, x, x, is_causal=True)
    >>> round(causal.flops / whole.flops, 1)
    0.5
    """
    check_options("explain", options, names_of(ExplainOptions))
    if (query_starts is None) != (key_starts is None):
        missing = "query_starts" if query_starts is None else "key_starts"
        raise TypeError(f"{missing} must be given too: packed sequences need both starts")
    options = with_arrays(options)
    starts = readable("query_starts", query_starts), readable("key_starts", key_starts)
    packed = None
    given = {"query": query, "key": key, "value": value}
    arrays = query, key, value = as_stored_arrays(**given)
    given_masks = parts_of(mask)
    native_masks = tuple(map(as_mask, given_masks))
    masks = Masks.of_parts(native_masks)
    if query_starts is None:
        try:
            plan = _core.attention_plan(query, key, value, masks.argument, options)
        except ValueError as error:
            raise_with_hint(error, query, key)
    else:
        plan = _core.attention_ragged_plan(query, key, value, *starts, masks.argument, options)
        packed = np.asarray(starts[0]), np.asarray(starts[1])
    read = [*arrays, *masks.arrays]
    notes = [*_conversions(given, arrays), *_mask_notes(given_masks, native_masks)]
    precision, read_bytes = options.get("precision"), sum(map(distinct_bytes, read))
    return Explanation.of_plan(plan, key, value, precision, read_bytes, notes, masks, packed)


def _conversions(given: dict[str, ArrayLike], arrays: tuple[Array, ...]) -> Iterator[str]:
    """Yield a note for each array that must be converted for the kernels, with the reason."""
    for (name, before), array in zip(given.items(), arrays, strict=True):
        if before is not array and (why := _why(before)):
            yield f"{name} was converted to a {array.dtype} array: {why}"


def _mask_notes(given: Any, masks: tuple[Array | None, ...]) -> Iterator[str]:
    """Yield the costs of masks in addition to their memory."""
    for before, mask in zip(given, masks, strict=True):
        if mask is None or is_sparse(mask):
            continue
        if before is not mask and (why := _why(before)):
            yield f"mask was converted: {why}"
        if mask.dtype.kind == "f":
            yield FLOAT_MASK


def _why(value: ArrayLike) -> str | None:
    """Return why the kernels cannot read a value directly, or None if they can."""
    if not isinstance(value, np.ndarray):
        return f"it is a {type(value).__name__}"
    if type(value) is not np.ndarray:
        return f"it is a {type(value).__name__}, a subclass of ndarray"
    if not value.dtype.isnative:
        return "its byte order is not native"
    if value.dtype.kind in "biu" or value.dtype.itemsize == 2:
        return f"its dtype is {value.dtype}"
    return None if is_aligned(value) else "its memory is not aligned to its elements"
