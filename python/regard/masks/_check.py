"""Recognize masks that are most likely mistakes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from regard._arguments.arrays import compute_type
from regard._arguments.keywords import refuses_unknown
from regard._arguments.masks import as_mask
from regard._arguments.numbers import flag
from regard.masks import _cells
from regard.masks._combine import of_rows
from regard.masks._ranges import Ranges
from regard.masks._sparse import SparseMask

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Bools = NDArray[np.bool_]

Mask = TypeVar("Mask", bound="ArrayLike | SparseMask")

# Many programs use a large negative number in place of -inf: -1e4, -1e9 or the type's minimum.
_MEANT_AS_HIDDEN = -1e4
_SWAPPED_BOOLS = "True means may attend here (nn.MultiheadAttention's True hides): pass ~mask"


@refuses_unknown
def check(mask: Mask, *, allow_empty_rows: bool = False) -> Mask:
    """Return a mask unchanged, or raise an error if it looks like a mistake.

    Attention accepts any mask without question. To check a mask, pass it through this function:
    ``scaled_dot_product_attention(query, key, value, check(mask))``. The function rejects

    1. an inverted causal mask: in every matrix of the last two axes, query ``i`` sees only the keys
       ``j > i + c`` (the `nn.MultiheadAttention` mask, in which True hides), or only the keys
       ``j >= i + c`` (``np.triu`` in place of ``np.tril``), where ``c`` is 0 or ``kv_len - q_len``;
       in addition, all queries may see some other keys, as with inverted padding;
    2. a float mask of zeros and ones, which would be added to the scores and hide nothing;
    3. a float mask with NaN, the result of ``0 * -inf``, or with +inf;
    4. a float mask with a row whose numbers are all -10000 or less, but not all -inf: such a number
       hides a key only if the row also contains larger numbers, and the row's output is a mean of
       values instead of 0;
    5. a fully masked row, unless `allow_empty_rows`: its output is 0.

    Parameters
    ----------
    mask : array_like of bool or float, or sparse mask
        As for `regard.scaled_dot_product_attention`. A sparse mask is not made dense.
    allow_empty_rows : bool, default False
        Accept fully masked rows, as for padding queries and sequences of length 0.

    Returns
    -------
    array_like or sparse mask
        `mask` itself.

    Raises
    ------
    TypeError
        If `mask` is neither bool nor float: an integer mask could mean either.
    ValueError
        If the mask looks like a mistake. The message describes the mistake and its correction.

    Notes
    -----
    Masks that may be intended are accepted: inverted padding by itself, which looks like padding on
    the other side; masks of a single query; and numbers such as -1e9 in a row with larger numbers.
    A number such as -1e9 is added like any other number. The key then has weight 0, but a NaN in
    the key still reaches the output, and no block of keys is skipped.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> regard.masks.check(np.tril(np.ones((3, 3), bool))).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    >>> regard.masks.check(np.triu(np.ones((3, 3), bool), 1))
    Traceback (most recent call last):
    ...
    ValueError: mask looks inverted: it shows query i the keys j > i and hides earlier keys; True \
means may attend here (nn.MultiheadAttention's True hides): pass ~mask
    """
    allow_empty_rows = flag("allow_empty_rows", allow_empty_rows)
    if isinstance(mask, SparseMask):
        _check_sparse(mask, allow_empty_rows)
        return mask
    given = as_mask(mask)
    if given is None:
        raise TypeError("mask must be an array of bool or float, got None")
    array, remedy = np.atleast_1d(_distinct(given)), ""
    if array.size == 0:
        return mask
    if array.dtype == np.bool_:
        _refuse_inverted(partial(_hides_up_to, array), array.shape, _SWAPPED_BOOLS)
        empty, remedy = _no(array), "pass ~mask if its True means hidden, or "
    else:
        added = array.astype(compute_type(array.dtype), copy=False)
        _refuse_numbers(added)
        meant = added > _MEANT_AS_HIDDEN
        swapped = "0 shows a key and -inf hides it: swap the two"
        _refuse_inverted(partial(_hides_up_to, meant), meant.shape, swapped)
        empty = _no(added > -np.inf)
        _refuse_pushed_down(_no(meant) & ~empty)
    if not allow_empty_rows:
        _refuse_empty(empty, remedy)
    return mask


def _distinct(array: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct matrices, without the copies that are broadcast along a leading axis."""
    leading = zip(array.shape[:-2], array.strides[:-2], strict=True)
    return array[
        tuple(slice(1) if size and not stride else slice(None) for size, stride in leading)
    ]


def _no(visible: Bools) -> Bools:
    """Return which rows are fully masked."""
    return np.asarray(~visible.any(axis=-1))


def _refuse_numbers(added: NDArray[Any]) -> None:
    if np.isnan(added).any():
        raise ValueError(
            "mask contains NaN, for example from 0 * -inf: build it with "
            "masks.as_additive(visible) or np.where(visible, 0, -np.inf)"
        )
    if (added == np.inf).any():
        raise ValueError("mask contains +inf, for which softmax is undefined: -inf hides, 0 shows")
    ones = added == 1
    if ones.any() and (ones | (added == 0)).all():
        raise ValueError(
            f"mask contains only zeros and ones in {added.dtype}, which are added to the scores "
            "and hide nothing: use mask.astype(bool) if 1 means may attend"
        )


def _check_sparse(mask: SparseMask, allow_empty_rows: bool) -> None:
    once = of_rows(mask._rows.distinct(), mask._block)  # as in _distinct
    if not once.size:
        return
    _refuse_inverted(partial(_sparse_hides_up_to, once), once.shape, _SWAPPED_BOOLS)
    if not allow_empty_rows:
        _refuse_empty(~_cells.seeing(*once._cells()), "")


def _refuse_inverted(
    hides_up_to: Callable[[int], bool], shape: tuple[int, ...], remedy: str
) -> None:
    if len(shape) < 2:
        return
    q_len, kv_len = shape[-2:]
    for offset in dict.fromkeys((0, kv_len - q_len)):
        diagonal = f"i {offset:+d}".replace("+", "+ ").replace("-", "- ") if offset else "i"
        if hides_up_to(offset):
            raise ValueError(
                f"mask looks inverted: it shows query i the keys j > {diagonal} and hides earlier "
                f"keys; {remedy}"
            )
        if hides_up_to(offset - 1):
            raise ValueError(
                f"mask looks mirrored: it shows query i the keys j >= {diagonal} and hides earlier "
                "keys; a causal mask does the opposite: use np.tril in place of np.triu, or "
                "masks.causal"
            )


def _hides_up_to(visible: Bools, last: int) -> bool:
    """Return whether the hidden keys are the keys ``j <= i + last``, except for some columns.

    The columns that the last query sees are not compared; no row may hide them.
    """
    q_len, kv_len = visible.shape[-2:]
    before = np.arange(kv_len) <= np.arange(q_len)[:, None] + last
    if not _ends_hide_up_to(last, visible[..., 0, :], visible[..., -1, :]):
        return False
    return bool((visible != (before & ~visible[..., -1:, :])).all())


def _sparse_hides_up_to(mask: SparseMask, last: int) -> bool:
    """Return the same for a sparse mask."""
    q_len, kv_len = mask.shape[-2:]
    first_query, last_query = mask[..., :1, :], mask[..., q_len - 1 :, :]
    ends = (each.to_dense(max_bytes=2**62)[..., 0, :] for each in (first_query, last_query))
    if not _ends_hide_up_to(last, *ends):
        return False
    after = Ranges(np.arange(q_len) + last + 1, kv_len, kv_len=kv_len)
    different: SparseMask = mask ^ (after | last_query)
    return different.nnz == 0


def _ends_hide_up_to(last: int, first_query: Bools, last_query: Bools) -> bool:
    """Return whether the first and the last query permit such a mask, which is quick to check."""
    before = np.arange(first_query.shape[-1]) <= last
    hidden = ~last_query
    # A triangle needs a second hidden key, and a key that is hidden only from later queries.
    is_triangle = (hidden.sum(axis=-1) >= 2) & (hidden & ~before).any(axis=-1)
    return bool(is_triangle.any() and (first_query != (before & hidden)).all())


def _refuse_pushed_down(rows: Bools) -> None:
    if rows.any():
        raise ValueError(
            f"mask hides every key of {_listed(rows)} with finite numbers, which gives a mean of "
            "values instead of 0: use -inf, as in np.where(mask <= -1e4, -np.inf, mask)"
        )


def _refuse_empty(rows: Bools, remedy: str) -> None:
    if rows.any():
        raise ValueError(
            f"mask hides all keys from {_listed(rows)}, whose output is 0: {remedy}"
            "pass allow_empty_rows=True if that is intended"
        )


def _listed(rows: Bools) -> str:
    first = ", ".join(str(i) for i in np.argwhere(rows)[0])
    return f"{rows.sum()} of {rows.size} rows (the first at [{first}])"
