"""Find which module of a model is running."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


class ModulePaths:
    """Names the calls of a model by the modules that make them.

    The innermost running module is found on the stack, because hooks would disable the fast paths
    of some modules, and would affect the modules of other threads.
    """

    def __init__(self, module: Any) -> None:
        # The wrapper of a compiled module is not part of the path.
        self._paths: dict[int, str] = {
            id(each): path.replace("_orig_mod.", "").removesuffix("_orig_mod")
            for path, each in module.named_modules()
        }
        self._root = type(getattr(module, "_orig_mod", module)).__name__
        self._counts: Counter[str] = Counter()

    def next_name(self) -> str:
        """Return the name of a new call: the path of its module, with a number from the second on.

        The first call in the module ``a.b`` has the name ``"a.b"``, and the second ``"a.b:2"``.
        """
        path = self._running(sys._getframe(1)) or self._root
        self._counts[path] += 1
        count = self._counts[path]
        return path if count == 1 else f"{path}:{count}"

    def _running(self, frame: FrameType | None) -> str:
        while frame is not None:
            # Names of arguments come first; a snapshot of the locals is needed only for methods.
            if frame.f_code.co_varnames[:1] == ("self",):
                path: str | None = self._paths.get(id(frame.f_locals.get("self")))
                if path is not None:
                    return path
            frame = frame.f_back
        return ""
