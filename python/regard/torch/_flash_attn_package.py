"""A package `flash_attn` without files: its metadata, and its functions for padding."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch.nn.functional import pad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_VERSION = "2.8.3"
_FILES = {
    "METADATA": f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {_VERSION}\n",
    "top_level.txt": "flash_attn\n",
}


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Select rows, ``input[indices]``."""
    return input[indices]


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return packed rows at their indices among zeros, as (batch, seqlen, ...)."""
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Pack the rows of (batch, seqlen, ...) that a mask (batch, seqlen) selects.

    Returns the rows, their indices, the starts of sequences, the longest length, and the number of
    rows of each sequence that `attention_mask` selects. `unused_mask` selects further rows.
    """
    used = attention_mask.int()
    packed = used if unused_mask is None else used + unused_mask.int()
    lengths = packed.sum(-1, dtype=packed.dtype)
    indices = packed.flatten().nonzero().flatten()
    starts = pad(lengths.cumsum(0, dtype=lengths.dtype), (1, 0))
    rows = hidden_states.flatten(0, 1)[indices]
    return rows, indices, starts, int(lengths.max()), used.sum(-1, dtype=used.dtype)


_PADDING = {f.__name__: f for f in (index_first_axis, pad_input, unpad_input)}


class _Distribution(Distribution):
    def read_text(self, filename: str) -> str | None:
        return _FILES.get(filename)

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path


class _Finder(DistributionFinder):
    """Finds the metadata, but no modules, which are in `sys.modules`."""

    def find_spec(self, *_: Any) -> None:
        """Return None, as Python 3.11 requires."""

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        name = getattr(context, "name", None)  # of one package, or None for all
        if name is None or re.sub("[-_.]+", "-", name).lower() == "flash-attn":
            yield _Distribution()


_finder = _Finder()
_modules: dict[str, ModuleType] = {}


def install(functions: dict[str, Any]) -> None:
    """Add the modules and the metadata, or raise ImportError."""
    if _modules:
        return
    if importlib.util.find_spec("flash_attn") is not None:
        raise ImportError(
            "flash_attn is installed, and install() does not replace it: import the functions from "
            "regard.torch.flash_attn, or uninstall the package"
        )
    package = {"flash_attn_interface": _module("flash_attn_interface", functions)}
    package |= {"bert_padding": _module("bert_padding", _PADDING)}
    _module("", functions | package, __path__=[])
    sys.modules.update(_modules)
    sys.meta_path.append(_finder)


def _module(child: str, contents: dict[str, Any], **more: Any) -> ModuleType:
    name = f"flash_attn.{child}".rstrip(".")
    _modules[name] = module = ModuleType(name)
    spec = ModuleSpec(name, None, origin=__file__, is_package=not child)
    given = {"__spec__": spec, "__file__": __file__, "__version__": _VERSION}
    vars(module).update(given | contents | more)
    return module


def uninstall() -> None:
    """Remove the modules and the metadata."""
    if _modules:
        sys.meta_path.remove(_finder)
    for name in _modules:
        sys.modules.pop(name, None)
    _modules.clear()
