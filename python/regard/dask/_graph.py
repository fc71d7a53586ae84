"""Make graphs and arrays of Dask: the only module that knows how Dask spells a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask.array as da
from dask._task_spec import List, Task, TaskRef
from dask.highlevelgraph import HighLevelGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy as np

    Key = tuple[Hashable, ...]


class Graph:
    """Tasks that are shared by the arrays that are made of them.

    A task is named by its kind, such as ``"attention-part"``, and by numbers. The token makes the
    names differ from those of all other calls, and equal to those of an equal call.
    """

    def __init__(self, kind: str, token: str, inputs: Sequence[Any]) -> None:
        self._name, self._token, self._inputs = f"{kind}-{token}", token, inputs
        self._tasks: dict[Key, Task] = {}

    def add(self, kind: str, place: tuple[int, ...], call: Callable[..., Any], *args: Any) -> Key:
        """Add a task and return its key. See `refer` for arguments that are results of others."""
        key = (f"{kind}-{self._token}", *place)
        self._tasks[key] = Task(key, call, *args)
        return key

    def add_tree(
        self,
        kind: str,
        place: tuple[int, ...],
        call: Callable[[list[Any]], Any],
        keys: list[Key],
        split_every: int,
    ) -> list[Key]:
        """Merge neighbors, level by level, until at most `split_every` results are left.

        Which results a task merges, and in which order, follows from their number alone.
        """
        level = 0
        while len(keys) > split_every:
            groups = [keys[i : i + split_every] for i in range(0, len(keys), split_every)]
            keys = [
                self.add(kind, (*place, level, i), call, refer_all(group))
                if len(group) > 1
                else group[0]
                for i, group in enumerate(groups)
            ]
            level += 1
        return keys

    def array(
        self,
        kind: str,
        blocks: dict[tuple[int, ...], tuple[Any, ...]],
        chunks: tuple[tuple[int, ...], ...],
        dtype: np.dtype[Any],
    ) -> Any:
        """Return an array whose chunks are the results of calls on the graph's tasks.

        `blocks` has, for the index of each chunk, a function and its arguments.
        """
        name = f"{kind}-{self._token}"
        layer = {
            (name, *index): Task((name, *index), call, *args)
            for index, (call, *args) in blocks.items()
        }
        shared = HighLevelGraph.from_collections(self._name, self._tasks, self._inputs)
        graph = HighLevelGraph(
            {**shared.layers, name: layer}, {**shared.dependencies, name: {self._name}}
        )
        return da.Array(graph, name, chunks, dtype=dtype)


def refer(key: Key | None) -> Any:
    """Return what stands for the result of a task among the arguments of another; None for None."""
    return None if key is None else TaskRef(key)


def refer_all(keys: Sequence[Key | None]) -> Any:
    """Return what stands for the list of the results of tasks."""
    return List(*map(refer, keys))
