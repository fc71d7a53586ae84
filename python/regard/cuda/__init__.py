"""Attention on NVIDIA GPUs, for arrays that lie there.

``import regard`` does not import this module. `is_available` tells whether it can compute here, and
`status` what is missing where it cannot.
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
