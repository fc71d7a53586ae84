"""Attention for PyTorch tensors, with gradients and without copies."""

from regard._runtime.public import needed as _needed
from regard._runtime.public import publish as _publish

_needed("torch", "regard.torch", "torch")

from regard.torch._attention import scaled_dot_product_attention  # noqa: E402
from regard.torch._block_mask import block_mask  # noqa: E402
from regard.torch._counting import ReplacedCalls  # noqa: E402
from regard.torch._linear import linear_attention  # noqa: E402
from regard.torch._ragged import scaled_dot_product_attention_ragged  # noqa: E402
from regard.torch._recording import record  # noqa: E402
from regard.torch._replacing import install, replacing_sdpa, uninstall  # noqa: E402

__all__ = [
    "ReplacedCalls",
    "block_mask",
    "install",
    "linear_attention",
    "record",
    "replacing_sdpa",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_ragged",
    "uninstall",
]

_publish(globals())
