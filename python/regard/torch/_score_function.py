"""Score functions as arguments of the operators: lists of addresses.

PyTorch's operators accept no objects of other libraries. An operator may run long after the call
that recorded it, and any number of times: in a backward pass, or in a compiled graph. Functions
that were given to an operator are therefore kept alive until the process ends. The kernels call
only addresses of functions that are kept, and never an address that a graph brought from another
process.
"""

from __future__ import annotations

from typing import Any

import torch

import regard
from regard._arguments.arrays import shown

_KEPT: dict[tuple[int, ...], dict[int, Any]] = {}


def addresses_of(score_function: Any) -> list[int]:
    """Return the integers that represent a score function, which is kept alive from now on."""
    if not isinstance(score_function, regard.ScoreFunction):
        raise TypeError(
            f"score_function must be a regard.ScoreFunction, got {shown(score_function)}"
        )
    if torch.compiler.is_exporting():
        raise NotImplementedError(
            "score_function has an address in this process, which an exported program must not "
            "contain: leave it out, or use torch.compile"
        )
    return list(_kept(score_function))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _kept(score_function: Any) -> tuple[int, ...]:
    """Keep a score function, and return the integers that represent it.

    A compiler calls this once, with the object, and recompiles for another object.
    """
    addresses = (
        score_function.address,
        score_function.derivative_address,
        score_function.user_data_address,
    )
    # The operators' integers have a sign.
    key = (*(each - 2**64 if each >= 2**63 else each for each in addresses),)
    key = (*key, score_function.dtype.itemsize)
    _KEPT.setdefault(key, {})[id(score_function)] = score_function
    return key


def score_function_of(addresses: list[int]) -> Any:
    """Return the score function that some integers represent, or raise RuntimeError."""
    kept = _KEPT.get(tuple(addresses))
    if kept is None:
        raise RuntimeError(
            "score_function is unknown in this process: the graph was made in another process, "
            "and the addresses of its functions have no meaning here"
        )
    return next(iter(kept.values()))
