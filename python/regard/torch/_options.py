"""The options of a call, in the operators' words and in NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.torch._memory import as_array

_MAX_SEED = 2**64 - 1


def operator_words(options: dict[str, Any], device: torch.device) -> tuple[Any, ...]:
    """Return the arguments of the operators from `alibi_slopes` on, less the bool mask.

    `options` are those that are not the defaults. An argument of the wrong kind raises TypeError;
    all that depends on values is left to the kernels.
    """
    slopes, sinks = (
        None if options.get(name) is None else _tensor(name, options[name], device, torch.float64)
        for name in ("alibi_slopes", "sinks")
    )
    offset, offsets = None, None
    given = options.get("query_offset", 0)
    if given is None:
        raise TypeError('query_offset must be integers or "end", got None')
    if not (isinstance(given, str) and given == "end"):
        offset, offsets = _number_or_tensor("query_offset", given, device)
    length, lengths = _number_or_tensor("key_lengths", options.get("key_lengths"), device)
    padding, paddings = _number_or_tensor("left_padding", options.get("left_padding"), device)
    seed = options.get("dropout_seed")
    return (
        *(slopes, sinks, offsets, lengths, paddings),
        None if seed is None else _seed_tensor(seed),
        options.get("is_causal", False),
        offset,
        *_sides(options.get("window")),
        *(length, padding),
        *(options.get("scale"), options.get("softcap")),
        options.get("dropout_p", 0.0),
        _origin(options.get("dropout_origin", (0, 0, 0))),
        options.get("threads"),
    )


def numpy_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with arrays in place of tensors."""
    arrays: dict[str, Any] = {}
    for name, option in options.items():
        if isinstance(option, Tensor):
            if not option.is_cpu:
                raise ValueError(f"{name} must be on the device of query, cpu, got {option.device}")
            arrays[name] = as_array(option)
        else:
            arrays[name] = option
    if isinstance(options.get("dropout_seed"), Tensor):
        arrays["dropout_seed"] = int(_seed_tensor(options["dropout_seed"])) % 2**64
    return arrays


def _number_or_tensor(
    name: str, given: Any, device: torch.device
) -> tuple[int | None, Tensor | None]:
    """Return an integer option, which may be one number or one for each batch entry."""
    if given is None:
        return None, None
    if isinstance(given, (int, torch.SymInt)) and not isinstance(given, bool):
        return given, None
    return None, _tensor(name, given, device)


def _tensor(
    name: str, given: Any, device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return an option as a tensor; `dtype` is that of lists."""
    if not isinstance(given, Tensor):
        is_array = isinstance(given, (np.ndarray, np.generic))
        try:
            given = torch.as_tensor(given, dtype=None if is_array else dtype, device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name} must be a tensor or numbers, got {given!r}: {error}") from None
    if given.device != device:
        raise ValueError(f"{name} must be on the device of query, {device}, got {given.device}")
    return given


def _sides(window: Any) -> tuple[int | None, int | None]:
    """Return how far a window reaches to both sides, or raise TypeError or ValueError."""
    if window is None:
        return None, None
    if not isinstance(window, (tuple, list)):
        raise TypeError(f"window must be a pair (left, right) of integers or None, got {window!r}")
    if len(window) != 2:
        raise ValueError(f"window must be a pair (left, right), got {len(window)} elements")
    for side in window:
        if side is not None and not isinstance(side, (int, torch.SymInt)):
            raise TypeError(f"window must be a pair of integers or None, got {window!r}")
    return window[0], window[1]


def _origin(given: Any) -> list[int]:
    """Return the origin of dropout, or raise TypeError."""
    is_whole = isinstance(given, (tuple, list)) and len(given) == 3
    if not is_whole or any(
        isinstance(n, bool) or not isinstance(n, (int, torch.SymInt)) for n in given
    ):
        raise TypeError(
            f"dropout_origin must be three integers (entry, head, position), got {given!r}"
        )
    return list(given)


def _seed_tensor(seed: Any) -> Tensor:
    """Return a seed as a tensor, whose 64 bits are those of the number."""
    if isinstance(seed, Tensor):
        if seed.ndim or seed.dtype.is_floating_point or seed.dtype == torch.bool:
            raise TypeError(
                "dropout_seed must be an integer or a tensor of one without axes, got a tensor of "
                f"{seed.dtype} and shape {tuple(seed.shape)}"
            )
        return seed
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer, torch.SymInt)):
        raise TypeError(f"dropout_seed must be an integer, got {type(seed).__name__}")
    if not 0 <= seed <= _MAX_SEED:
        raise ValueError(f"dropout_seed must be from 0 to 2**64 - 1, got {seed}")
    signed = seed if seed < 2**63 else seed - 2**64
    return torch.full((), signed, dtype=torch.int64)
