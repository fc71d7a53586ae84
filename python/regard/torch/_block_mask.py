"""FlexAttention's `BlockMask` as a sparse mask."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from regard.masks._rules import from_lists

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from regard.masks import SparseMask

    Integers = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Listed = tuple[Integers, Integers, Integers]

_MODULE = "torch.nn.attention.flex_attention"
# Larger blocks are divided, so that fewer of them are partial.
_LARGEST = 128


def is_block_mask(given: Any) -> bool:
    """Return whether an argument is a `BlockMask`."""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(given, module.BlockMask)


def block_mask(block_mask: Any) -> SparseMask:
    """Convert FlexAttention's `BlockMask` to a sparse mask, which `attn_mask` accepts.

    Full blocks are whole blocks. For each partial block, the mask_mod is called for the pairs of
    its queries and keys. Nothing is computed or stored for other blocks.

    Parameters
    ----------
    block_mask : torch.nn.attention.flex_attention.BlockMask
        Created by ``create_block_mask`` or ``BlockMask.from_kv_blocks``, or a slice of such a mask.

    Returns
    -------
    SparseMask
        Has the shape of `block_mask`, ``(batch, heads, q_len, kv_len)``, in which batch and heads
        of 1 broadcast. Create it once, and use it for all layers.

    Raises
    ------
    TypeError
        If the argument is not a ``BlockMask``, or its `mask_mod` does not return bools.
    ValueError
        If the lists of blocks do not fit the lengths.
    RuntimeError
        If the mask is a slice with partial blocks whose `mask_mod` was not set again.

    See Also
    --------
    regard.masks.from_function : Build a mask from a function without PyTorch.

    Examples
    --------
    >>> import torch
    >>> from torch.nn.attention.flex_attention import create_block_mask
    >>> import regard.torch
    >>> def causal(batch, head, query, key):
    ...     return query >= key
    >>> made = create_block_mask(causal, None, None, 300, 300, device="cpu")
    >>> mask = regard.torch.block_mask(made)
    >>> mask
    Blocks(shape=(1, 1, 300, 300), 50.167% visible, 3 whole and 3 partial blocks of 128 x 128, \
4.25 kB)
    >>> query = torch.ones(2, 4, 300, 16)
    >>> regard.torch.scaled_dot_product_attention(query, query, query, mask).shape
    torch.Size([2, 4, 300, 16])
    """
    if not is_block_mask(block_mask):
        raise TypeError(
            f"block_mask must be a BlockMask of {_MODULE}, got {type(block_mask).__name__}"
        )
    *planes, q_len, kv_len = map(int, block_mask.shape)
    given = tuple(map(int, block_mask.BLOCK_SIZE))
    lengths = q_len, kv_len
    # A block that reaches beyond the end may as well end there.
    sizes = [
        min(size, -(-length // _LARGEST) * _LARGEST or 1)
        for size, length in zip(given, lengths, strict=True)
    ]
    parts = [size // _LARGEST if size % _LARGEST == 0 else 1 for size in sizes]
    block = sizes[0] // parts[0], sizes[1] // parts[1]
    rows, columns = (-(-length // size) for length, size in zip(lengths, given, strict=True))
    lists = []
    for prefix in ("full_kv", "kv"):
        counts = getattr(block_mask, f"{prefix}_num_blocks")
        indices = getattr(block_mask, f"{prefix}_indices")
        if counts is None:
            none = np.zeros(0, np.int64)
            lists.append((none, none, none))
        else:
            listed = _listed(prefix, counts, indices, tuple(planes), rows, columns)
            lists.append(_divided(listed, parts))
    mod = _Mod(block_mask, (*(1,) * (2 - len(planes)), *planes), block)
    whole, partial = lists
    return from_lists((*planes, q_len, kv_len), block, whole, partial, mod)


def _listed(
    prefix: str, counts: Tensor, indices: Tensor, planes: tuple[int, ...], rows: int, columns: int
) -> Listed:
    """Return the plane, the row and the column of each block, or raise ValueError."""
    number = counts.detach().cpu().numpy().astype(np.int64)
    index = indices.detach().cpu().numpy().astype(np.int64)
    if number.shape[-1] < rows or index.shape[:-1] != number.shape:
        raise ValueError(
            f"block_mask must have {rows} block rows for its q_len, got {prefix}_num_blocks of "
            f"shape {number.shape} and {prefix}_indices of shape {index.shape}"
        )
    if number.min(initial=0) < 0 or number.max(initial=0) > index.shape[-1]:
        raise ValueError(
            f"block_mask.{prefix}_num_blocks must be from 0 to {index.shape[-1]}, the blocks of a "
            f"row in {prefix}_indices, got {number.min()} to {number.max()}"
        )
    used = np.arange(index.shape[-1]) < number[..., None]
    *_, row, _ = np.nonzero(used)
    plane = np.nonzero(used.reshape(math.prod(planes), -1))[0]
    column = index[used]
    if column.min(initial=0) < 0:
        raise ValueError(f"block_mask.{prefix}_indices must not be negative, got {column.min()}")
    keep = (row < rows) & (column < columns)  # a mask that was adjusted to fewer keys keeps others
    return plane[keep], row[keep], column[keep]


def _divided(listed: Listed, parts: list[int]) -> Listed:
    """Return the parts of some blocks, each of which is divided in rows and columns."""
    plane, row, column = (each[:, None, None] for each in listed)
    down, right = np.arange(parts[0])[:, None], np.arange(parts[1])
    each = plane, row * parts[0] + down, column * parts[1] + right
    shape = (len(plane), *parts)
    plane, row, column = (np.broadcast_to(numbers, shape).ravel() for numbers in each)
    return plane, row, column


class _Mod:
    """The mask_mod of a `BlockMask`, called for blocks."""

    def __init__(self, block_mask: Any, planes: tuple[int, ...], block: tuple[int, int]) -> None:
        self._mod, self._planes, self._block = block_mask.mask_mod, planes, block
        self._last = [length - 1 for length in block_mask.shape[-2:]]
        self._device = block_mask.kv_num_blocks.device

    def __call__(self, plane: Integers, query: Integers, key: Integers) -> Bools:
        """Return which keys the queries of some blocks see."""
        from torch.nn.attention.flex_attention import create_mask

        at = *np.unravel_index(plane, self._planes), query, key
        batch, head, first_query, first_key = (
            torch.as_tensor(np.asarray(numbers, np.int64), device=self._device) for numbers in at
        )
        last_query, last_key = self._last

        def shifted(number: Tensor, _: Tensor, row: Tensor, column: Tensor) -> Any:
            # The function may read arrays, which end at the last query and key.
            return self._mod(
                batch[number],
                head[number],
                (first_query[number] + row).clamp(max=last_query),
                (first_key[number] + column).clamp(max=last_key),
            )

        shown = create_mask(shifted, len(plane), 1, *self._block, device=self._device)
        if shown.dtype is not torch.bool:
            raise TypeError(
                f"block_mask.mask_mod must return bools (True = may attend), got {shown.dtype}"
            )
        visible: Bools = shown[:, 0].cpu().numpy()
        return visible
