"""Report the compiled targets, the active target, and the reason for it."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from regard import _core
from regard._runtime.public import public


@public
def cpu_targets() -> tuple[str, ...]:
    """Return the names of the compiled targets that this CPU supports, best first.

    Returns
    -------
    tuple of str
        ``"baseline"`` is last, unless regard was built without it.

    Notes
    -----
    A build from source compiles the best target of the machine that builds it, and the baseline.
    Wheels contain every target. If this CPU supports a better target than the compiled ones,
    `show_config` and `explain` say so.

    Examples
    --------
    >>> import regard
    >>> regard.active_target() in regard.cpu_targets()
    True
    """
    return tuple(row["name"] for row in _core.target_rows() if row["runnable"])


@public
def active_target() -> str:
    """Return the name of the active target.

    This is the best target that this CPU supports, unless the environment variable
    ``REGARD_TARGET`` named another target when regard was imported.

    Examples
    --------
    >>> import regard
    >>> regard.active_target() in regard.cpu_targets()
    True
    """
    return _core.active_target()


@public
def show_config(mode: Literal["stdout", "dicts"] = "stdout") -> dict[str, Any] | None:
    """Show how regard was built and what it uses on this machine.

    Parameters
    ----------
    mode : {"stdout", "dicts"}, default "stdout"
        Print the report of ``python -m regard info``, or return it as a dictionary, as
        `numpy.show_config` does.

    Returns
    -------
    dict or None
        With ``mode="dicts"``: version, compiler, build_type, python, numpy, cpu_features,
        l2_cache_bytes, targets, active_target, active_reason, better_target, threads,
        threads_reason, threading_layer, cuda. better_target is the best target that this CPU
        supports if it was not compiled, else None. cuda is a dictionary with the keys available,
        status, toolkit, driver, devices, kernels. cpu_features is a dictionary with the keys found,
        and disabled for features that the environment variable ``REGARD_DISABLE_CPU_FEATURES``
        disables.

    Raises
    ------
    ValueError
        If `mode` is unknown, or if an environment variable names an unknown target or CPU feature,
        or is not a number of bytes.

    Examples
    --------
    >>> import regard
    >>> sorted(regard.show_config(mode="dicts"))[:3]
    ['active_reason', 'active_target', 'better_target']
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f"mode must be 'stdout' or 'dicts', got {mode!r}")
    from regard.cuda._status import describe  # Imported here because few programs need it.

    config: dict[str, Any] = {
        **_core.build_info(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cpu_features": _cpu_features(),
        "l2_cache_bytes": _core.l2_cache_bytes(),
        "targets": _core.target_rows(),
        "active_target": _core.active_target(),
        "active_reason": _core.active_target_reason(),
        "better_target": _core.better_target() or None,
        "threads": _core.num_threads(),
        "threads_reason": _core.num_threads_reason(),
        "threading_layer": _core.threading_layer(),
        "cuda": describe(),
    }
    if mode == "dicts":
        return config
    print("\n".join(report_of(config)))
    return None


def report_of(
    config: dict[str, Any], bold: Callable[[str], str] = str, dim: Callable[[str], str] = str
) -> Iterator[str]:
    """Yield the lines of a report; `bold` and `dim` style its results and its reasons."""

    def row(name: str, what: str, why: str = "") -> str:
        return f"  {name:<8}  {what}  {dim(why) if why else ''}".rstrip()

    yield f"{bold('regard')} {config['version']}"
    yield ""
    yield row("compiler", f"{config['compiler']}, {config['build_type']}")
    yield row("python", f"{config['python']}, NumPy {config['numpy']}")
    features = config["cpu_features"]
    yield row("cpu", " ".join(features["found"]) or "nothing beyond the architecture's baseline")
    if features["disabled"]:
        yield row("disabled", " ".join(features["disabled"]), "REGARD_DISABLE_CPU_FEATURES")
    size, source = config["l2_cache_bytes"], "REGARD_L2_CACHE"
    shown = f"{size} bytes" if size % 1024 else f"{size // 1024} KiB"
    yield row("l2 cache", shown, source if os.environ.get(source) else "of one CPU core")
    targets = config["targets"]
    width = max(len(target["name"]) for target in targets)
    for number, target in enumerate(targets):
        runs = "runs here" if target["runnable"] else "does not run here"
        why = "" if target["runnable"] else f"needs {target['missing']}"
        yield row("" if number else "targets", f"{target['name']:<{width}}  {runs}", why)
    yield row("active", bold(config["active_target"]), config["active_reason"])
    if note := better_target_note():
        yield row("", note)
    yield row("threads", bold(str(config["threads"])), config["threads_reason"])
    layer = config["threading_layer"]
    yield row("layer", bold(layer["name"]), layer["reason"])
    if layer["runtime"]:
        yield row("", f"{layer['runtime']}, OpenMP {layer['version']}", layer["path"])
    cuda = config["cuda"]
    found = [bold("available")] if cuda["available"] else textwrap.wrap(cuda["status"], 76)
    for number, line in enumerate(found):
        yield row("" if number else "cuda", line)
    if cuda["toolkit"] is None:
        return
    driver = cuda["driver"] or "none"
    yield row("", f"built with toolkit {cuda['toolkit']}; CUDA version of the driver: {driver}")
    for number, device in enumerate(cuda["devices"]):
        major, minor = device["compute_capability"]
        memory = f"{device['memory_bytes'] / 2**30:.0f} GiB"
        yield row("", f"device {number}: {device['name']}, sm_{major}{minor}, {memory}")
    width = max((len(kernel["name"]) for kernel in cuda["kernels"]), default=0)
    for number, kernel in enumerate(cuda["kernels"]):
        yield row("" if number else "kernels", f"{kernel['name']:<{width}}", kernel["proof"])


def better_target_note() -> str:
    """Return which better target was not compiled and how to get it, or an empty text."""
    name = _core.better_target()
    return name and (
        f"this CPU supports {name}, which was not compiled: run pip install . in a clone on this "
        "machine, or build with -Ccmake.define.REGARD_TARGETS=all"
    )


def _cpu_features() -> dict[str, list[str]]:
    features = _core.cpu_features().items()
    return {
        "found": [name for name, (present, disabled) in features if present and not disabled],
        "disabled": [name for name, (_, disabled) in features if disabled],
    }
