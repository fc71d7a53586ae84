"""Test tensors and arrays that share memory."""

import gc
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')

import regard.torch  # noqa: E402
from regard.torch._memory import as_array, as_tensor  # noqa: E402

SIZES = (8, 16, 32, 64)
NAMES = ["bool", *(f"{kind}{size}" for size in SIZES for kind in ("int", "uint"))]
NAMES += ["float16", "float32", "float64"]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def views(dtype):
    whole = torch.arange(24).reshape(2, 3, 4).to(dtype)
    return {
        "contiguous": whole,
        "transposed": whole.transpose(0, 2),
        "steps": whole[:, ::2, 1:3],
        "expanded": whole[:1].expand(5, 3, 4),
        "no axes": whole[1, 2, 3],
        "empty": whole[:, :0],
        "one element": whole[:1, :1, :1],
    }


@pytest.mark.parametrize("name", NAMES)
def test_arrays_are_those_of_pytorch(name):
    for view in views(getattr(torch, name)).values():
        wanted, actual = view.numpy(), regard._core.array_of_tensor(view, None)
        assert actual.dtype == wanted.dtype
        assert actual.dtype.isnative
        assert actual.shape == wanted.shape
        assert np.array_equal(actual, wanted)
        assert actual.flags.aligned
        assert actual.flags.writeable
        if actual.size:
            assert actual.strides == wanted.strides
            assert actual.ctypes.data == wanted.ctypes.data


def test_bfloat16():
    for view in views(torch.bfloat16).values():
        assert regard._core.array_of_tensor(view, None) is None
        actual = as_array(view)
        assert actual.dtype == BFLOAT16
        assert np.array_equal(actual.astype(np.float32), view.float().numpy())
    tensor = torch.zeros(4, dtype=torch.bfloat16)
    back = as_tensor(as_array(tensor))
    assert back.dtype is torch.bfloat16
    assert back.data_ptr() == tensor.data_ptr()


def test_an_array_keeps_its_tensor_and_nothing_else():
    tensor = torch.ones(3)
    count = sys.getrefcount(tensor)
    array = regard._core.array_of_tensor(tensor, None)
    assert array.base is tensor
    kept = weakref.ref(tensor)
    assert sys.getrefcount(tensor) == count + 1
    del tensor
    gc.collect()
    assert kept() is not None
    assert array.tolist() == [1, 1, 1]
    del array
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    "given",
    [
        None,
        3,
        np.ones(3),
        # A type may make any claim about its memory.
        *(type("Claims", (), {"__dlpack_c_exchange_api__": claim})() for claim in (3, None)),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, device="meta"),
        torch.eye(3).to_sparse(),
        torch.ones(2).to(torch.float8_e4m3fn),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_has_no_array(given):
    assert regard._core.array_of_tensor(given, BFLOAT16) is None


def test_a_storage_without_memory():
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    assert regard._core.array_of_tensor(tensor, None) is None
    with pytest.raises(RuntimeError, match=r"shape \(3,\) has no memory"):
        as_array(tensor)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_memory_that_is_not_aligned(is_recorded):
    """The kernels cannot read it in place, and no other result may replace theirs."""
    numbers = np.random.default_rng(0).standard_normal(3 * 2 * 5 * 4).astype(np.float32)
    memory = bytearray(b"x" + numbers.tobytes())
    odd = torch.frombuffer(memory, dtype=torch.float32, offset=1).reshape(3, 2, 5, 4)
    even = torch.tensor(numbers).reshape(3, 2, 5, 4)
    assert odd.data_ptr() % 4
    outputs = [
        regard.torch.scaled_dot_product_attention(*x.requires_grad_(is_recorded), is_causal=True)
        for x in (odd, even)
    ]
    assert torch.equal(*outputs)
