"""The way from what callers pass to the compiled module, where it is not the shortest one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._arrays import as_masks, as_stored_arrays
from regard._options import DEFAULTS
from regard._translations import refuse_keywords

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import ArrayLike

_ARRAYS = ("query", "key", "value", "mask")


def check_options(
    name: str, options: Mapping[str, Any], known: Collection[str] = DEFAULTS.keys()
) -> None:
    """Raise TypeError, with advice, where a call has no such option."""
    unknown = [option for option in options if option not in known]
    if unknown:
        refuse_keywords(name, unknown, (*_ARRAYS, *known))


def converted(
    name: str,
    call: Callable[..., Any],
    arrays: tuple[ArrayLike, ArrayLike, ArrayLike],
    between: tuple[Any, ...],
    mask: ArrayLike | None,
    options: dict[str, Any],
) -> Any:
    """Call the module again, with arrays that the kernels can read.

    It returned NotImplemented before: an array must be converted, or there is no such option.
    """
    check_options(name, options)
    query, key, value = arrays
    native = as_stored_arrays(query=query, key=key, value=value)
    return call(*native, *between, as_masks(mask), options)
