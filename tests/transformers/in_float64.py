"""Models that compute in float64 throughout.

Many models go to float32 for a softmax, a norm or their rotary angles, whatever type their parameters
have. A difference in the last bit of a float64 would then become one in the last bit of a float32.
"""

import torch
from torch.overrides import TorchFunctionMode

_INSTEAD = {torch.Tensor.float: torch.Tensor.double}


class InFloat64(TorchFunctionMode):
    """Whoever asks PyTorch for float32 gets float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args = tuple(map(_widened, args))
        kwargs = {name: _widened(value) for name, value in (kwargs or {}).items()}
        return _INSTEAD.get(function, function)(*args, **kwargs)


def _widened(value):
    return torch.float64 if value is torch.float32 else value
