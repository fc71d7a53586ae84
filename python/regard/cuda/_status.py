"""Report whether CUDA can be used, and the reason if it cannot."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

try:
    from regard import _cuda
except ImportError as error:
    _module: Any = None
    _import_error = error
else:
    _module = _cuda

if TYPE_CHECKING:
    from types import ModuleType

# The first version with bfloat16 tensor cores and asynchronous copies to shared memory.
_LEAST_CAPABILITY = (8, 0)


def is_available() -> bool:
    """Return whether `regard.cuda` can be used.

    Returns
    -------
    bool
        True if regard was built with CUDA, a suitable driver is loaded, and there is a device with
        compute capability 8.0 or newer. `status` reports the missing part.

    Examples
    --------
    >>> import regard.cuda
    >>> isinstance(regard.cuda.is_available(), bool)
    True
    """
    return _module is not None and _missing() is None


def status() -> str:
    """Describe in a sentence the devices that `regard.cuda` can use, or why there are none.

    Returns
    -------
    str
        The devices, or the missing part: the module, the driver or a device.

    Examples
    --------
    >>> import regard.cuda
    >>> "CUDA" in regard.cuda.status()
    True
    """
    if _module is None:
        return _without_module()
    missing = _missing()
    if missing is not None:
        return missing
    names = ", ".join(f"{each['name']} ({_capability(each)})" for each in devices())
    return f"CUDA is available on {names}"


def kernels() -> tuple[dict[str, str], ...]:
    """Return the compiled kernels, and how each kernel was verified.

    Returns
    -------
    tuple of dict
        One dictionary per kernel, with the keys ``"name"`` and ``"proof"``. The proof is
        ``"compiled"``, ``"emulated on the CPU"``, or ``"run on"`` a device with date and commit.
        Empty if regard was built without CUDA.

    Examples
    --------
    >>> import regard.cuda
    >>> all(set(kernel) == {"name", "proof"} for kernel in regard.cuda.kernels())
    True
    """
    return () if _module is None else tuple(_module.kernels())


def devices() -> list[dict[str, Any]]:
    """Return the properties that CUDA reports for each device."""
    if _module is None:
        return []
    found = [_module.device(number) for number in range(_module.device_count()["count"])]
    return [each | {"compute_capability": list(each["compute_capability"])} for each in found]


def describe() -> dict[str, Any]:
    """Return the complete status as a dictionary, for `regard.show_config`."""
    return {
        "available": is_available(),
        "status": status(),
        "toolkit": None if _module is None else _version(_module.toolkit_version),
        "driver": None if _module is None else _version(_module.driver_version()),
        "devices": devices(),
        "kernels": list(kernels()),
    }


def module() -> ModuleType:
    """Return the compiled module, or raise RuntimeError if there is none."""
    if _module is None:
        raise RuntimeError(_without_module())
    return _module  # type: ignore[no-any-return]


@functools.cache
def check_device(number: int) -> None:
    """Raise RuntimeError if a device is too old for the kernels."""
    capability = module().compute_capability(number)
    if capability < _LEAST_CAPABILITY:
        raise RuntimeError(
            f"device {number} has compute capability {capability[0]}.{capability[1]}, and the "
            "kernels need 8.0 or newer"
        )


@functools.cache  # an exception is not cached
def check_available() -> None:
    """Raise RuntimeError with the reason if CUDA cannot be used."""
    if not is_available():
        raise RuntimeError(status())


def _without_module() -> str:
    if isinstance(_import_error, ModuleNotFoundError) or "cannot import name" in str(_import_error):
        return (
            "regard was built without CUDA: install a CUDA toolkit, version 12.0 or newer, and "
            "build regard from source (in a clone: pip install . "
            "-Ccmake.define.REGARD_CUDA=ON)"
        )
    return f"regard's CUDA module cannot be loaded: {_import_error}"


def _missing() -> str | None:
    """Return a description of what the compiled module lacks, or None."""
    found = _module.device_count()
    toolkit, driver = _version(_module.toolkit_version), _version(_module.driver_version())
    if found["error"] == "cudaErrorInsufficientDriver":
        if driver is None:
            return "no NVIDIA driver is loaded: CUDA needs the driver and a device"
        return (
            f"the NVIDIA driver is for CUDA {driver}, and regard was built with CUDA {toolkit}: "
            "update the driver, or build regard with a toolkit that is no newer"
        )
    if found["error"] == "cudaErrorNoDevice" or (not found["error"] and not found["count"]):
        return "the NVIDIA driver is loaded, and it has no CUDA device for this process"
    if found["error"]:
        return f"CUDA cannot be used: cudaGetDeviceCount: {found['text']} ({found['error']})"
    if all(each["compute_capability"] < list(_LEAST_CAPABILITY) for each in devices()):
        names = ", ".join(f"{each['name']} ({_capability(each)})" for each in devices())
        return f"no CUDA device has compute capability 8.0 or newer: there is {names}"
    return None


def _capability(device: dict[str, Any]) -> str:
    major, minor = device["compute_capability"]
    return f"sm_{major}{minor}"


def _version(number: int) -> str | None:
    """Format a version number: 13000 becomes "13.0"."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None
