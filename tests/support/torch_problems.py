"""The problems of the tables as tensors, and calls of `regard.torch` with them.

A test module that imports this module is skipped if PyTorch is not installed.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')

from regard.torch import scaled_dot_product_attention  # noqa: E402

NAMES = ("query", "key", "value", "mask", "alibi_slopes", "distance_bias", "sinks")


def as_tensor(array):
    """Return a tensor with a copy of an array, in the same layout."""
    array = np.array(array, order="K")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(tensor):
    """Return the elements of a tensor."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def leaves_of(problem, wanted=NAMES):
    """Return the inputs by name, of which `wanted` require gradients."""
    leaves = {name: as_tensor(array) for name, array in problem.inputs.items()}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name in wanted)
    return leaves


def attend(problem, leaves, **extra):
    """Call with a problem's options and with these tensors as its inputs."""
    return scaled_dot_product_attention(**arguments_of(problem, leaves) | extra)


def arguments_of(problem, leaves):
    """Return the arguments of `attend`, by name."""
    options = {
        name: as_tensor(option) if isinstance(option, np.ndarray) else option
        for name, option in problem.options.items()
        if name not in NAMES
    }
    options |= {name: leaves[name] for name in NAMES[4:] if name in leaves}
    mask = problem.options.get("mask")
    shown = mask[0] if isinstance(mask, tuple) else mask
    masks = []
    if shown is not None and shown.dtype == bool:
        masks.append(as_tensor(shown) if isinstance(shown, np.ndarray) else shown)
    if "mask" in leaves:
        masks.append(leaves["mask"])
    if masks:
        options["attn_mask"] = tuple(masks) if len(masks) == 2 else masks[0]
    return options | {"enable_gqa": True} | {name: leaves[name] for name in NAMES[:3]}
