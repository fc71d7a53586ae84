"""The schemas of regard's operators in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

# What has a gradient: `inputs`.
_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? float_mask, Tensor? alibi_slopes, "
    "Tensor? sinks"
)
# What follows, `options`: tensors first, then numbers. Where there is a number and a tensor for one
# option, at most one of them is given; `query_offset` is "end" where both are None.
_OPTIONS = (
    "Tensor? bool_mask, Tensor? query_offsets, Tensor? key_lengths, Tensor? left_paddings, "
    "Tensor? dropout_seed, bool is_causal, SymInt? query_offset, SymInt? window_left, "
    "SymInt? window_right, SymInt? key_length, SymInt? left_padding, float? scale, "
    "float? softcap, float dropout_p, SymInt[] dropout_origin, int? threads"
)
INPUT_COUNT = 6
TENSOR_OPTION_COUNT = 5

_SCHEMAS = (
    f"attention({_INPUTS}, {_OPTIONS}) -> (Tensor output, Tensor lse)",
    # Tensors without an element stand for gradients that are not wanted.
    "attention_backward(Tensor grad_output, Tensor? grad_lse, Tensor output, Tensor lse, "
    f"{_INPUTS}, {_OPTIONS}, bool[] wanted) -> (Tensor grad_query, Tensor grad_key, "
    "Tensor grad_value, Tensor grad_float_mask, Tensor grad_alibi_slopes, Tensor grad_sinks)",
    "attention_jvp(Tensor? tangent_query, Tensor? tangent_key, Tensor? tangent_value, "
    f"{_INPUTS}, {_OPTIONS}) -> (Tensor output, Tensor tangent_output, Tensor lse, "
    "Tensor tangent_lse)",
    "attention_double_backward(Tensor? grad_grad_query, Tensor? grad_grad_key, "
    "Tensor? grad_grad_value, Tensor grad_output, Tensor? grad_lse, Tensor output, Tensor lse, "
    f"{_INPUTS}, {_OPTIONS}) -> (Tensor grad_grad_output, Tensor grad_grad_lse, "
    "Tensor grad_query, Tensor grad_key, Tensor grad_value)",
)

library = torch.library.Library("regard", "FRAGMENT")
for _schema in _SCHEMAS:
    library.define(_schema)

attention: Any = torch.ops.regard.attention.default
attention_backward: Any = torch.ops.regard.attention_backward.default
attention_jvp: Any = torch.ops.regard.attention_jvp.default
attention_double_backward: Any = torch.ops.regard.attention_double_backward.default
