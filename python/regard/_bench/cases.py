"""Cases: problems with names, units, and the machine limits to compare them with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard._bench.problems import Attention, Problem

Limit = Literal["fma peak", "read bandwidth"]


@dataclass(frozen=True)
class Group:
    """Cases that share a unit and a limit of the machine."""

    title: str
    unit: Literal["us", "GFLOP/s", "GB/s"]
    limit: Limit | None = None


CALL = Group("a small call", "us")
FORWARD = Group("attention", "GFLOP/s", "fma peak")
DECODE = Group("decode", "GB/s", "read bandwidth")


@dataclass(frozen=True)
class Case:
    """A problem that all engines compute."""

    name: str
    group: Group
    problem: Problem
    about: str = ""
    is_quick: bool = False


def name_of(problem: Attention) -> str:
    """Name a problem by batch, heads, length and dimension, as in ``1x32/8x2048x128 causal``."""

    def pair(one: int, other: int) -> str:
        return f"{one}" if one == other else f"{one}/{other}"

    sizes = (
        f"{problem.batch}",
        pair(problem.heads, problem.kv_heads),
        pair(problem.q_len, problem.kv_len),
        pair(problem.head_dim, problem.value_dim or problem.head_dim),
    )
    return "x".join(sizes) + (" causal" if problem.is_causal else "")
