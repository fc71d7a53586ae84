"""A mask stored as a pattern, which becomes an array only when its elements are used."""

from __future__ import annotations

from typing import Any

from regard.transformers._lazy_tensor import LazyTensor


class PatternMask(LazyTensor):
    """A mask of shape ``(batch, 1, q_len, kv_len)``, without its elements.

    Its meaning is the equivalent options of `regard.torch.scaled_dot_product_attention`. The
    elements are bool, or of a floating type if the array is added to scores. Models pass masks from
    layer to layer, and some slice them, combine them with other masks or write to them.
    """

    def options_or_array(self) -> tuple[dict[str, Any], Any]:
        """Return the equivalent options and None, or {} and the equivalent array."""
        options, array = self.meaning_or_array()
        return ({} if options is None else options), array
