"""Build sparse masks of random blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
from numpy.random import Generator, default_rng

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count
from regard.masks._blocks import DEFAULT_BLOCK, Blocks, block_of
from regard.masks._rows import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence


@refuses_unknown
def random_blocks(
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    blocks_per_row: SupportsIndex,
    heads: SupportsIndex | None = None,
    block: Sequence[SupportsIndex] = DEFAULT_BLOCK,
    rng: Generator | SupportsIndex | None = None,
) -> Blocks:
    """Let each block of queries attend to some random blocks of keys.

    Parameters
    ----------
    q_len : int
        Number of queries.
    kv_len : int, optional
        Number of keys; `q_len` when not given.
    blocks_per_row : int
        The number of different blocks of keys for each block of queries.
    heads : int, optional
        Number of heads, each of which has its own blocks. By default, the mask has no heads axis.
    block : pair of int, default (128, 128)
        The queries and keys of a block.
    rng : numpy.random.Generator or int, optional
        The random generator or its seed. By default, every call returns a different mask.

    Returns
    -------
    Blocks
        The shape is ``(q_len, kv_len)``, or ``(heads, q_len, kv_len)`` with `heads`.

    Raises
    ------
    TypeError
        If a number is not an integer, or `rng` has the wrong type.
    ValueError
        If a number is negative, or `blocks_per_row` exceeds the number of blocks of keys.

    Examples
    --------
    The mask of BigBird, in which the first and the last block are global:

    >>> import numpy as np
    >>> import regard
    >>> n, size = 4096, 64
    >>> ends = np.r_[0:size, n - size : n]
    >>> bigbird = (
    ...     regard.masks.random_blocks(n, blocks_per_row=3, block=(size, size), rng=0)
    ...     | regard.masks.sliding(n, window=(size, size))
    ...     | regard.masks.global_tokens(ends, n)
    ... )
    >>> bigbird.shape, bigbird.block
    ((4096, 4096), (64, 64))
    """
    queries = count("q_len", q_len)
    keys = queries if kv_len is None else count("kv_len", kv_len)
    size = block_of(block)
    columns, rows = -(-keys // size[1]), -(-queries // size[0])
    per_row = count("blocks_per_row", blocks_per_row, 0, columns)
    planes = () if heads is None else (count("heads", heads),)
    generator = _generator(rng)
    Layout(planes, queries, keys, size).check(math.prod(planes) * rows * per_row)
    drawn = [
        np.sort(generator.choice(columns, per_row, replace=False, shuffle=False))
        for _ in range(rows * int(np.prod(planes, dtype=int)))
    ]
    indices = np.array(drawn, np.int64).ravel()
    plane = np.arange(int(np.prod(planes, dtype=int))).reshape(*planes, 1)
    indptr = (plane * rows + np.arange(rows + 1)) * per_row
    return Blocks(indptr, indices, shape=(*planes, queries, keys), block=size)


def _generator(rng: Generator | SupportsIndex | None) -> Generator:
    if rng is None or isinstance(rng, Generator):
        return default_rng(rng)
    if not hasattr(rng, "__index__"):
        raise TypeError(
            f"rng must be a numpy.random.Generator, an int or None, got {type(rng).__name__}"
        )
    return default_rng(count("rng", rng))
