"""Attention for the models of Hugging Face's transformers.

`register` adds ``"regard"`` to the implementations that ``attn_implementation`` chooses from. What
is supported and what is not is in the guide, ``docs/guide/transformers.md``.

Importing this module needs the packages torch and transformers: ``pip install
'regard[transformers]'``.
"""

from regard._runtime.optional import needed as _needed
from regard._runtime.public import publish as _publish

_needed("torch", "regard.transformers", "transformers")

from regard.transformers._register import register  # noqa: E402

__all__ = ["register"]

_publish(globals())
