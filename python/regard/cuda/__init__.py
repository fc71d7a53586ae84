"""Attention on NVIDIA GPUs, for arrays in GPU memory. This module is experimental.

``import regard`` does not import this module. `is_available` returns whether CUDA can be used, and
`status` reports the reason if it cannot.
"""

from regard._runtime.public import publish as _publish
from regard.cuda._attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_ragged,
)
from regard.cuda._device_array import DeviceArray, to_device
from regard.cuda._status import is_available, kernels, status

__all__ = [
    "DeviceArray",
    "is_available",
    "kernels",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_ragged",
    "status",
    "to_device",
]

_publish(globals())
