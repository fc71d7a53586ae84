"""Self-attention of one sentence, stage by stage and in one fused call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import regard
from regard._cli.words import EMBEDDING_DIM, embed

Array = NDArray[np.float32]

SEED = 123
HEAD_DIM = 2
SCALE = 1 / math.sqrt(HEAD_DIM)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Stages:
    """The arrays between a sentence and its context vectors."""

    embedding: Array
    position: Array
    x: Array
    weight_query: Array
    weight_key: Array
    weight_value: Array
    query: Array
    key: Array
    value: Array
    scores: Array
    scaled_scores: Array
    masked_scores: Array
    weights: Array
    output: Array


def run_stages(
    tokens: Sequence[str], *, with_position: bool = True, is_causal: bool = True
) -> Stages:
    """Run the stages one by one."""
    length = len(tokens)
    embedding = embed(tokens)
    position = np.zeros_like(embedding)
    if with_position:
        position[:] = regard.positional.sinusoidal(length, EMBEDDING_DIM)
    x = embedding + position

    generator = regard.TorchGenerator(SEED)
    weight_query, weight_key, weight_value = (
        generator.randn(EMBEDDING_DIM, HEAD_DIM) for _ in range(3)
    )
    query = regard.matmul(x, weight_query)
    key = regard.matmul(x, weight_key)
    value = regard.matmul(x, weight_value)

    scores = regard.matmul(query, key.T)
    scaled_scores = regard.scale(scores, SCALE)
    masked_scores = scaled_scores
    if is_causal:
        masked_scores = regard.apply_mask(scaled_scores, regard.masks.causal(length))
    weights = regard.softmax(masked_scores)
    output = regard.matmul(weights, value)
    return Stages(
        embedding,
        position,
        x,
        weight_query,
        weight_key,
        weight_value,
        query,
        key,
        value,
        scores,
        scaled_scores,
        masked_scores,
        weights,
        output,
    )


@dataclass(frozen=True)
class Check:
    """The difference between the fused call and the stages."""

    output_difference: float
    weights_difference: float

    @property
    def passed(self) -> bool:
        """Whether the two agree up to rounding; NaN does not agree."""
        return self.output_difference <= TOLERANCE and self.weights_difference <= TOLERANCE


def check_fused(stages: Stages) -> Check:
    """Compare the causal stages with one call of the fused attention."""
    output, weights = regard.scaled_dot_product_attention(
        stages.query, stages.key, stages.value, is_causal=True, return_weights=True
    )
    return Check(
        output_difference=float(np.abs(output - stages.output).max()),
        weights_difference=float(np.abs(weights - stages.weights).max()),
    )


@dataclass(frozen=True)
class NotebookCheck:
    """One context vector, and the digits that the notebook of the example prints."""

    token: str
    output: list[float]
    printed: list[float]

    @property
    def passed(self) -> bool:
        """Whether every digit of the notebook is reproduced."""
        return [round(value, 4) for value in self.output] == self.printed


def check_notebook(tokens: Sequence[str]) -> NotebookCheck:
    """Compute attention without positions and mask, as the notebook does."""
    plain = run_stages(tokens, with_position=False, is_causal=False)
    output = regard.scaled_dot_product_attention(plain.query, plain.key, plain.value)
    return NotebookCheck(tokens[1], output[1].tolist(), [0.2413, 0.2311])
