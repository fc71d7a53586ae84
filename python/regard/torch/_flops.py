"""The operators' floating-point operations, as `torch.utils.flop_counter.FlopCounterMode` counts.

As for PyTorch's own attention, these are the operations of matrix products over all pairs of a
query and a key, whether masked or not.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.utils.flop_counter import register_flop_formula

from regard.torch._operators import (
    Layout,
    Operator,
    attention_double_backward,
    attention_jvp,
    dense,
    ragged,
)

# Products over head_dim and over value_dim. The backward pass computes the scores again.
_FORWARD, _BACKWARD = (1, 1), (3, 2)
_JVP, _DOUBLE_BACKWARD = (3, 3), (7, 5)


def _flops(
    layout: Layout, operator: Operator, products: tuple[int, int], *given: Any, **_: Any
) -> int:
    call = layout.call_of(operator.arguments(*given))
    shape = layout.shape_of(call)
    if layout is ragged:
        pairs = shape[-2] * _pairs_within_sequences(call)
    else:
        pairs = prod(shape[:-1]) * call.key.shape[-2]
    over_head_dim, over_value_dim = products
    columns: int = over_head_dim * call.query.shape[-1] + over_value_dim * shape[-1]
    return 2 * pairs * columns


def _pairs_within_sequences(call: Any) -> int:
    starts = call.query_starts, call.key_starts
    if any(isinstance(each, FakeTensor) or each.is_meta for each in starts):
        return len(call.query) * len(call.key)  # an upper bound
    queries, keys = (each.diff() for each in starts)
    return int(torch.dot(queries.long(), keys.long()))


for _layout, _operator, _products in (
    *((layout, layout.attention, _FORWARD) for layout in (dense, ragged)),
    *((layout, layout.attention_backward, _BACKWARD) for layout in (dense, ragged)),
    (dense, attention_jvp, _JVP),
    (dense, attention_double_backward, _DOUBLE_BACKWARD),
):
    register_flop_formula(getattr(torch.ops.regard, _operator.name), get_raw=True)(
        partial(_flops, _layout, _operator, _products)
    )
