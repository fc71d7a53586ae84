"""FlexAttention's `BlockMask` as a sparse mask."""

from __future__ import annotations

import sys
from typing import Any

_MODULE = "torch.nn.attention.flex_attention"


def is_block_mask(given: Any) -> bool:
    """Return whether an argument is a `BlockMask`."""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(given, module.BlockMask)
