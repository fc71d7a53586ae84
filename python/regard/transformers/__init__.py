"""Attention for Hugging Face transformers models.

`register` makes ``"regard"`` a value of ``attn_implementation``, and `record` records a model. The
guide, ``docs/guide/transformers.md``, lists the supported and the unsupported features.

This module requires the torch and transformers packages: ``pip install ".[transformers]"``.
"""

from regard._runtime.public import needed as _needed
from regard._runtime.public import publish as _publish

_needed("torch", "regard.transformers", "transformers")

from regard.transformers._attention import register  # noqa: E402
from regard.transformers._recording import record  # noqa: E402

__all__ = ["record", "register"]

_publish(globals())
