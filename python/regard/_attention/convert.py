"""Handle calls that the compiled module does not accept directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._arguments.arrays import as_stored_arrays
from regard._arguments.foreign import is_on_cuda
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks
from regard._arguments.numbers import choice

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike


def retry_converted(
    name: str,
    call: Callable[..., Any],
    arrays: tuple[ArrayLike, ArrayLike, ArrayLike],
    between: tuple[Any, ...],
    mask: ArrayLike | None,
    options: dict[str, Any],
) -> Any:
    """Call the module again, with arrays that the kernels can read, or compute on a GPU.

    The first call returned NotImplemented because an array must be converted or is on a GPU, the
    call requests a device, or an option is unknown.
    """
    check_options(name, options)
    options = dict(options)
    device = choice("device", options.pop("device", None), (None, "cpu", "cuda"))
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
    return call(*native, *between, Masks.of(mask).argument, options)
