"""Determine which masks a model expects, from its transformers classes.

A mask is made only from a configuration. Models that ``"sdpa"`` supports read bool masks. Parts of
other models may compute attention themselves, and add a mask to their scores as eager attention
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from regard._runtime.public import needed

torch = needed("torch", "regard.transformers", "transformers")
transformers = needed("transformers", "regard.transformers", "transformers")


NAME = "regard"
"""The attention implementation."""


# The kinds of masks that models read. Strings can be constants in a graph.
BOOL = "the mask of sdpa"
ADDED = "the mask of eager attention; a part of the model may use the interface"
OWN = "the mask of eager attention; no part of the model uses the interface"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def expected_masks(config: Any) -> str:
    """Return the kind of masks that models with this configuration expect; it may be None."""
    kind: Any = type(config)
    return _expected(kind)


@cache
def _expected(kind: type) -> str:
    models = models_of(kind)
    choosing = [model for model in models if model._can_set_attn_implementation()]
    if not models or any(model._supports_sdpa for model in choosing):
        return BOOL
    return ADDED if choosing else OWN


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def takes_rows_of_keys(config: Any) -> bool:
    """Return whether models with this configuration accept the masks of flash attention."""
    models = models_of(type(config))
    return bool(models) and all(getattr(each, "_supports_flash_attn", False) for each in models)


def models_of(kind: Any) -> list[Any]:
    """Return the model classes that have configurations of a class."""
    return [
        model for model in _subclasses(transformers.PreTrainedModel) if model.config_class is kind
    ]


def _subclasses(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
