"""The same attention in regard, NumPy and PyTorch."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

import regard

Array = NDArray[np.float32]
Attention = Callable[[Array, Array, Array], Array]
Prepare = Callable[[int], Attention]


class NotInstalledError(Exception):
    """An engine is not on this machine."""


def engines() -> Iterator[tuple[str, Prepare]]:
    """Give the engines by name, regard first.

    Yields
    ------
    name : str
        The name of the engine.
    prepare : callable
        Takes the number of threads and gives the attention; raises `NotInstalledError` where
        there is no such engine.
    """
    yield "regard", _regard
    yield "NumPy", _numpy
    yield "PyTorch", _pytorch


def _regard(threads: int) -> Attention:
    def attention(query: Array, key: Array, value: Array) -> Array:
        return regard.scaled_dot_product_attention(query, key, value, threads=threads)

    return attention


def _numpy(_threads: int) -> Attention:
    # NumPy has no call to set its threads: the process that times it is started with them set.
    def attention(query: Array, key: Array, value: Array) -> Array:
        scale = np.float32(1 / math.sqrt(query.shape[-1]))
        weights: Array = np.matmul(query * scale, key.swapaxes(-1, -2))
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=-1, keepdims=True)
        output: Array = np.matmul(weights, value)
        return output

    return attention


def _pytorch(threads: int) -> Attention:
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise NotInstalledError from None
        raise
    torch.set_num_threads(threads)
    fused = torch.nn.functional.scaled_dot_product_attention

    def attention(query: Array, key: Array, value: Array) -> Array:
        with torch.inference_mode():
            output: Array = fused(*map(torch.from_numpy, (query, key, value))).numpy()
        return output

    return attention
