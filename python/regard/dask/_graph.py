"""Dask graphs and arrays. Only this module uses Dask's task classes."""

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
    """Tasks shared by the arrays that depend on them.

    The name of a task consists of its kind, such as ``"attention-part"``, a token and numbers. The
    token makes the names of different calls differ and the names of equal calls equal.
    """

    def __init__(self, kind: str, token: str, inputs: Sequence[Any]) -> None:
        self._name, self._token, self._inputs = f"{kind}-{token}", token, inputs
        self._tasks: dict[Key, Task] = {}

    def add(self, kind: str, place: tuple[int, ...], call: Callable[..., Any], *args: Any) -> Key:
        """Add a task and return its key. Use `refer` for arguments that are task results."""
        key = (f"{kind}-{self._token}", *place)
        self._tasks[key] = Task(key, call, *args)
        return key

    def add_tree(
        self,
        kind: str,
        place: tuple[int, ...],
        call: Callable[[list[Any]], Any],
        keys: list[Key | None],
        split_every: int,
    ) -> list[Key]:
        """Merge adjacent results, level by level, until at most `split_every` results remain.

        Hidden results are None. The grouping and the order depend only on the places in the list,
        so that results which are hidden, or which add nothing, change no bit.
        """
        level, groups = 0, [_present(keys)]
        while len(keys) > split_every:
            starts = range(0, len(keys), split_every)
            groups = [_present(keys[i : i + split_every]) for i in starts]
            if sum(map(bool, groups)) <= 1:
                break
            keys = [
                self.add(kind, (*place, level, i), call, refer_all(group))
                if len(group) > 1
                else next(iter(group), None)
                for i, group in enumerate(groups)
            ]
            groups = [_present(keys)]
            level += 1
        return [key for group in groups for key in group]

    def array(
        self,
        kind: str,
        blocks: dict[tuple[int, ...], tuple[Any, ...]],
        chunks: tuple[tuple[int, ...], ...],
        dtype: np.dtype[Any],
    ) -> Any:
        """Return a Dask array whose chunks are the results of calls on the graph's tasks.

        `blocks` maps the index of each chunk to a function and its arguments.
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


def _present(keys: Sequence[Key | None]) -> list[Key]:
    return [key for key in keys if key is not None]


def refer(key: Any) -> Any:
    """Return a reference to the result of a task, or anything but a key itself."""
    return TaskRef(key) if isinstance(key, tuple) else key


def refer_all(keys: Sequence[Any]) -> Any:
    """Return a reference to the list of the tasks' results."""
    return List(*map(refer, keys))
