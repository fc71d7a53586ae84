"""The number of threads of a call, the layer that runs them, and threadpoolctl's limits."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from regard import _core
from regard._runtime.public import public

# The attribute of threadpoolctl that stores the controller. A reimported one does not have it.
_MARK = "_regard_controller"


@public
class ThreadingLayer(NamedTuple):
    """The layer that runs the threads of a call: see `threading_layer`.

    Attributes
    ----------
    name : str
        ``"pool"``, ``"openmp"`` or ``"serial"``.
    reason : str
        ``"default"``, or the source of the choice: ``"set_threading_layer"`` or
        ``"REGARD_THREADING_LAYER"``.
    runtime : str or None
        With OpenMP, the file name of its runtime, such as ``"libgomp.so.1"``.
    path : str or None
        The path from which the runtime was loaded.
    version : str or None
        The version of the OpenMP specification that the runtime supports, judged by its functions.
    """

    name: str
    reason: str
    runtime: str | None
    path: str | None
    version: str | None


@public
def threading_layer() -> ThreadingLayer:
    """Return the threading layer that calls use.

    Returns
    -------
    ThreadingLayer
        A named tuple of `name`, `reason`, and, with OpenMP, `runtime`, `path` and `version`.

    Raises
    ------
    ValueError
        If the environment variable ``REGARD_THREADING_LAYER`` does not name a layer.
    ImportError
        If it names ``openmp``, and this build has no OpenMP or finds no runtime.

    See Also
    --------
    set_threading_layer : chooses the layer.

    Examples
    --------
    >>> import regard
    >>> regard.threading_layer().name in ("pool", "openmp", "serial")
    True
    """
    return ThreadingLayer(**_core.threading_layer())


@public
def set_threading_layer(name: str) -> None:
    """Choose the layer that runs the threads of all calls in this process.

    The choice is final once a call has used more than one thread. All layers produce the same bits.

    Parameters
    ----------
    name : {"pool", "openmp", "serial"}
        ``"pool"``, the default, is regard's own pool of threads. ``"openmp"`` uses the threads of
        an OpenMP runtime, which is loaded now: the runtime that the process has already loaded
        under the same name, or the system's runtime. ``"serial"`` computes only in the calling
        thread.

    Raises
    ------
    TypeError
        If `name` is not a string.
    ValueError
        If `name` is not a layer.
    ImportError
        If this build has no OpenMP, or its runtime cannot be loaded.
    RuntimeError
        If another layer has already run several threads.

    See Also
    --------
    threading_layer : returns the layer.
    set_num_threads : sets the number of threads.

    Notes
    -----
    The environment variable ``REGARD_THREADING_LAYER`` chooses a layer if this function is not
    called. It is read at the first call that computes.

    Examples
    --------
    >>> import regard
    >>> regard.set_threading_layer(regard.threading_layer().name)
    """
    _core.set_threading_layer(name)


@public
def set_num_threads(threads: int | None) -> None:
    """Set the number of threads of calls that do not pass `threads`.

    Parameters
    ----------
    threads : int or None
        At least 1. None restores the choice at import: ``REGARD_NUM_THREADS``, else
        ``OMP_NUM_THREADS``, else the number of CPUs that the process may use, within the quota of
        its cgroup.

    Raises
    ------
    TypeError
        If `threads` is not an integer.
    ValueError
        If `threads` is below 1.

    Examples
    --------
    >>> import regard
    >>> regard.set_num_threads(2)
    >>> regard.get_num_threads()
    2
    >>> regard.set_num_threads(None)
    """
    _core.set_num_threads(threads)


@public
def get_num_threads() -> int:
    """Return the number of threads of calls that do not pass `threads`.

    It is 1 if the threading layer is ``"serial"``.

    See Also
    --------
    set_num_threads : sets the number of threads.
    """
    return _core.num_threads()


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
