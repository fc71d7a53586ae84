"""Models that compute in float64 throughout.

Many models use float32 for a softmax, a norm or their rotary angles, whatever type their parameters
have. A difference in the last bit of a float64 would then become a difference in the last bit of a
float32.
"""

from contextlib import contextmanager

from zoo import torch

_INSTEAD = {torch.Tensor.float: torch.Tensor.double}


@contextmanager
def in_float64():
    """Replace float32, or no type, by float64 in every request to PyTorch."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            yield
    finally:
        torch.set_default_dtype(before)


class _Widened(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        args = tuple(map(_widened, args))
        kwargs = {name: _widened(value) for name, value in (kwargs or {}).items()}
        return _INSTEAD.get(function, function)(*args, **kwargs)


def _widened(value):
    return torch.float64 if value is torch.float32 else value
