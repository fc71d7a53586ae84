"""Attention under sparse masks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from regard import masks
from regard._bench.engines import Array
from regard._bench.problems import Attention

BLOCK = 128


@dataclass(frozen=True)
class SparseAttention(Attention):
    """Attention whose queries see some blocks of 128 keys, drawn for each block of queries, or the
    document to which they belong.

    Exactly one of `blocks_per_row` and `document`, the length of the documents, is not 0.
    """

    blocks_per_row: int = 0
    document: int = 0

    @cached_property
    def visible(self) -> int:
        """The number of visible pairs of query and key per head."""
        return self.q_len * (self.document or self.blocks_per_row * BLOCK)

    def _make_mask(self, rng: np.random.Generator) -> Any:
        if self.document:
            return masks.documents(np.arange(self.q_len) // self.document)
        return masks.random_blocks(
            self.q_len,
            self.kv_len,
            blocks_per_row=self.blocks_per_row,
            block=(BLOCK, BLOCK),
            rng=rng,
        )

    def _visible_from(self, rows: list[int], mask: Any) -> Array:
        return np.concatenate([mask[row : row + 1].to_dense() for row in rows])
