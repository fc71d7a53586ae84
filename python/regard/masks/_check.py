"""Recognize masks that are most likely mistakes, and convert bool masks to additive masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from regard._arguments.arrays import as_array, compute_type, floating
from regard._arguments.keywords import refuses_unknown
from regard._arguments.masks import as_mask, is_pair
from regard._arguments.numbers import flag
from regard.masks import _cells
from regard.masks._ranges import Ranges
from regard.masks._rows import distinct
from regard.masks._sparse import SparseMask, of_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from regard._arguments.arrays import Bools


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
    array, remedy = distinct(np.atleast_2d(given), 2), ""
    if array.size == 0:
        return mask
    if array.dtype == np.bool_:
        _refuse_inverted(array, _SWAPPED_BOOLS)
        empty, remedy = _no(array), "pass ~mask if its True means hidden, or "
    else:
        added = array.astype(compute_type(array.dtype), copy=False)
        _refuse_numbers(added)
        meant = added > _MEANT_AS_HIDDEN
        _refuse_inverted(meant, "0 shows a key and -inf hides it: swap the two")
        empty = _no(added > -np.inf)
        _refuse_pushed_down(_no(meant) & ~empty)
    if not allow_empty_rows:
        _refuse_empty(empty, remedy)
    return mask


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
    once = of_rows(mask._rows.distinct(), mask._block)
    if not once.size:
        return
    _refuse_inverted(once, _SWAPPED_BOOLS)
    if not allow_empty_rows:
        _refuse_empty(~_cells.seeing(*once._cells()), "")


def _refuse_inverted(mask: Bools | SparseMask, remedy: str) -> None:
    q_len, kv_len = mask.shape[-2:]
    for offset in dict.fromkeys((0, kv_len - q_len)):
        diagonal = f"i {offset:+d}".replace("+", "+ ").replace("-", "- ") if offset else "i"
        if _hides_up_to(mask, offset):
            raise ValueError(
                f"mask looks inverted: it shows query i the keys j > {diagonal} and hides earlier "
                f"keys; {remedy}"
            )
        if _hides_up_to(mask, offset - 1):
            raise ValueError(
                f"mask looks mirrored: it shows query i the keys j >= {diagonal} and hides earlier "
                "keys; a causal mask does the opposite: use np.tril in place of np.triu, or "
                "masks.causal"
            )


def _hides_up_to(mask: Any, last: int) -> bool:
    """Return whether the hidden keys are the keys ``j <= i + last``, except for some columns.

    The columns that the last query sees are not compared; no row may hide them.
    """
    q_len, kv_len = mask.shape[-2:]
    ends = mask[..., :1, :], mask[..., q_len - 1 :, :]
    first_query, last_query = (
        each.to_dense(max_bytes=2**62) if isinstance(each, SparseMask) else each for each in ends
    )
    # Most masks differ in their first row already. A triangle needs a second hidden key, and a key
    # that is hidden only from later queries.
    before, hidden = np.arange(kv_len) <= last, ~last_query
    is_triangle = (hidden.sum(axis=-1) >= 2) & (hidden & ~before).any(axis=-1)
    if not is_triangle.any() or (first_query == (before & hidden)).any():
        return False
    after = Ranges(np.arange(q_len) + last + 1, kv_len, kv_len=kv_len)
    return bool((mask ^ (after | ends[1])).nnz == 0)


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


@refuses_unknown
def as_additive(mask: ArrayLike, dtype: DTypeLike = np.float32) -> NDArray[np.floating[Any]]:
    """Convert a bool mask to an additive mask, which is added to the scaled scores.

    Parameters
    ----------
    mask : array_like of bool
        True where a query may attend.
    dtype : dtype, optional
        A floating-point dtype.

    Returns
    -------
    numpy.ndarray
        An array of type `dtype` and the shape of `mask`: 0 where `mask` is True, -inf elsewhere.

    Raises
    ------
    TypeError
        If `mask` is not bool or `dtype` is not floating-point.

    Examples
    --------
    >>> import regard
    >>> regard.masks.as_additive(regard.masks.causal(3))
    array([[  0., -inf, -inf],
           [  0.,   0., -inf],
           [  0.,   0.,   0.]], dtype=float32)
    """
    if is_pair(mask):
        raise TypeError("mask must be one array of bool here, got a pair")
    allowed = as_array("mask", mask)
    if allowed.dtype != np.bool_:
        raise TypeError(f"mask must be bool (True = may attend), got {allowed.dtype}")
    to = floating("dtype", dtype)
    additive = np.zeros(allowed.shape, to)
    additive[~allowed] = -np.inf
    return additive
