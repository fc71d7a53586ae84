"""Let threadpoolctl limit regard's threads, like the threads of BLAS libraries."""

from __future__ import annotations

import sys
from typing import Any

from regard import _core
from regard._runtime.public import public


def register_if_imported() -> None:
    """Register regard with threadpoolctl if threadpoolctl has been imported."""
    module = sys.modules.get("threadpoolctl")
    if module is not None:
        _register(module)


@public
def register_with_threadpoolctl() -> None:
    """Let threadpoolctl list regard and limit its threads.

    ``import regard`` does this if threadpoolctl has already been imported. Otherwise, call this
    function. It does nothing if regard is already registered.

    Raises
    ------
    ImportError
        If threadpoolctl is not installed, or is older than version 3.2.

    Examples
    --------
    >>> import regard
    >>> import threadpoolctl
    >>> regard.register_with_threadpoolctl()
    >>> with threadpoolctl.threadpool_limits(1):
    ...     regard.get_num_threads()
    1
    """
    import threadpoolctl

    if not hasattr(threadpoolctl, "register"):
        raise ImportError("threadpoolctl must be version 3.2 or later to accept other libraries")
    _register(threadpoolctl)


def _register(threadpoolctl: Any) -> None:
    if not hasattr(threadpoolctl, "register") or hasattr(threadpoolctl, _MARK):
        return

    class RegardController(threadpoolctl.LibController):  # type: ignore[misc]
        user_api = "regard"
        internal_api = "regard"
        # Many packages have a library of this name, but only regard has these symbols.
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
    setattr(threadpoolctl, _MARK, RegardController)


# The attribute that stores the controller. A reimported threadpoolctl does not have it.
_MARK = "_regard_controller"
