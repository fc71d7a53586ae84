"""Handle the calls that the compiled module does not take as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from regard._arrays import as_masks, as_stored_arrays
from regard._device import is_on_cuda
from regard._hints import layout_hint
from regard._options import DEFAULTS
from regard._translations import ATTENTION, refuse_keywords

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import ArrayLike

_ARRAYS = ("query", "key", "value", "mask")


def check_options(
    name: str,
    options: Mapping[str, Any],
    known: Collection[str] = DEFAULTS.keys(),
    arrays: tuple[str, ...] = _ARRAYS,
) -> None:
    """Raise TypeError, with advice, where a call has no such option."""
    unknown = [option for option in options if option not in known]
    if unknown:
        refuse_keywords(name, unknown, (*arrays, *known), kind=ATTENTION)


def raise_with_hint(error: ValueError, query: ArrayLike, key: ArrayLike) -> NoReturn:
    """Raise the error of a call again, with a hint if heads and lengths look exchanged."""
    hint = layout_hint(np.shape(query), np.shape(key)) if "heads" in str(error) else ""
    raise (ValueError(f"{error}{hint}") if hint else error) from None


def converted(
    name: str,
    call: Callable[..., Any],
    arrays: tuple[ArrayLike, ArrayLike, ArrayLike],
    between: tuple[Any, ...],
    mask: ArrayLike | None,
    options: dict[str, Any],
) -> Any:
    """Call the module again, with arrays that the kernels can read, or compute on a GPU.

    It returned NotImplemented before: an array must be converted or lies on a GPU, the call asks
    for a device, or an option is unknown.
    """
    check_options(name, options)
    options = dict(options)
    device = options.pop("device", None)
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"device must be None, 'cpu' or 'cuda', got {device!r}")
    if any(map(is_on_cuda, arrays)):
        if device == "cpu":
            raise ValueError(
                "device must be None or 'cuda' for arrays on a GPU, got 'cpu': copy them to the "
                "host first"
            )
        from regard.cuda._host import attend_on_device

        return attend_on_device(name, arrays, between, mask, options)
    if device == "cuda":
        from regard.cuda._host import attend_from_host

        return attend_from_host(name, arrays, between, mask, options)
    query, key, value = arrays
    native = as_stored_arrays(query=query, key=key, value=value)
    return call(*native, *between, as_masks(mask), options)
