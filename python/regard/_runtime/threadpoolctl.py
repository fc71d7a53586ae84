"""Let threadpoolctl limit regard's threads, as it does those of BLAS libraries.

threadpoolctl knows the libraries whose controllers are registered with it. The one for regard is
registered when both packages have been imported, in either order. regard never imports the other.
"""

from __future__ import annotations

import sys
from typing import Any

from regard import _core

_NAME = "threadpoolctl"


def register_when_imported() -> None:
    """Register the controller now if threadpoolctl has been imported, or else when it is."""
    module = sys.modules.get(_NAME)
    if module is None:
        sys.meta_path.insert(0, _Finder())
    else:
        _register(module)


def _register(threadpoolctl: Any) -> None:
    if not hasattr(threadpoolctl, "register"):  # before version 3.2
        return

    class RegardController(threadpoolctl.LibController):  # type: ignore[misc]
        user_api = "regard"
        internal_api = "regard"
        # Many packages have a library of this name; the symbols are regard's alone.
        filename_prefixes = ("_core.",)
        check_symbols = ("regard_get_num_threads", "regard_set_num_threads")

        def get_num_threads(self) -> int:
            threads: int = self.dynlib.regard_get_num_threads()
            return threads

        def set_num_threads(self, num_threads: int) -> None:
            self.dynlib.regard_set_num_threads(num_threads)

        def get_version(self) -> str:
            return _core.__version__

    threadpoolctl.register(RegardController)


class _Finder:
    """Finds threadpoolctl as all other finders do, and stays until it has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _NAME:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec: Any = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self)
                    return spec
        return None


class _Loader:
    """Registers the controller once the true loader, which it is otherwise, has run the module."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
            _register(module)
