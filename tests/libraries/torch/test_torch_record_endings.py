"""Test recordings that end early or are too large, and recordings among other threads,
recordings and compilers."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')

import regard.torch  # noqa: E402
from torch_modules import (  # noqa: E402
    HEADS,
    SIZE,
    Decoder,
    by_another_name,
    drawn,
    x_of,
)

nn = torch.nn


class Counting(nn.Module):
    """Count the runs of the module, and optionally look at the elements of a tensor."""

    def __init__(self, looks):
        super().__init__()
        self.looks, self.runs, self.layer = looks, 0, nn.MultiheadAttention(SIZE, HEADS)
        self.state = torch.zeros(1)

    def forward(self, x):
        self.runs += 1
        self.state += 1
        self.made = x * 2  # a copy must leave nothing here
        if self.looks and x.sum() == 0:
            return x
        for _ in range(10):
            x = self.layer(x, x, x)[0]
        return x


def test_a_recording_that_would_not_fit_says_so_before_anything_is_computed():
    module = Counting(looks=False).double()
    size = 10 * 2 * 3 * 7 * SIZE * 8
    message = (
        rf"the recording would have {size / 1000:.3g} kB \(10 layers of query \(7, 4, 3, 4\) and "
        r"key \(7, 4, 3, 4\)\), and max_bytes is 1 kB: raise max_bytes, name fewer layers with "
        "layers=, or pass a narrower dtype="
    )
    with pytest.raises(ValueError, match=message):
        regard.torch.record(module, x_of(), max_bytes=1000)
    assert module.runs == 0
    assert not module.state.any()
    assert not hasattr(module, "made")
    with pytest.raises(ValueError, match="the recording would have"):
        regard.torch.record(module, x_of(), max_bytes=size - 1)
    assert len(regard.torch.record(module, x_of(), max_bytes=size)) == 10
    assert module.runs == 1
    assert type(module.made) is torch.Tensor
    assert len(regard.torch.record(module, x_of(), max_bytes=size // 4, dtype="float16")) == 10
    assert len(regard.torch.record(module, x_of(), max_bytes=size // 10, layers=3)) == 1


def test_where_the_size_is_not_known_in_advance_it_ends_when_it_is_too_large():
    module = Counting(looks=True).double()
    size = 10 * 2 * 3 * 7 * SIZE * 8
    with pytest.raises(ValueError, match=r"with the layer 'layer:8', after 7 others"):
        regard.torch.record(module, x_of(), max_bytes=size * 3 // 4)
    assert module.runs == 1
    assert len(regard.torch.record(module, x_of(), max_bytes=size)) == 10
    hooked = Counting(looks=False).double()
    seen = []
    hooked.layer.register_forward_hook(lambda module, args, output: seen.append(type(args[0])))
    with pytest.raises(ValueError, match="'layer:8'"):
        regard.torch.record(hooked, x_of(), max_bytes=size * 3 // 4)
    assert seen == [torch.Tensor] * 7


def test_a_large_mask_is_refused_before_it_is_copied():
    class Module(nn.Module):
        def forward(self, x):
            return by_another_name(x, x, x, torch.zeros(4, 500, 500))

    with pytest.raises(ValueError, match=r"would have 4\.06 MB with the layer 'Module'"):
        regard.torch.record(Module(), torch.zeros(4, 500, 4), max_bytes=10**6)


def test_a_model_that_catches_errors_does_not_hide_them():
    class Module(nn.Module):
        def forward(self, x):
            try:
                return by_another_name(x, x, x, torch.zeros(4, 500, 500))
            except ValueError:
                return x

    with pytest.raises(ValueError, match="would have"):
        regard.torch.record(Module(), torch.zeros(4, 500, 4), max_bytes=10**6)


def test_other_threads_are_not_recorded():
    first, second = drawn(Decoder), drawn(Decoder)
    inside, outside, results = threading.Event(), threading.Event(), {}

    class Waiting(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = first

        def forward(self, x):
            inside.set()
            assert outside.wait(60)
            return self.model(x)

    def record():
        results["recording"] = regard.torch.record(Waiting(), x_of(), max_bytes=None)

    thread = threading.Thread(target=record)
    thread.start()
    assert inside.wait(60)
    x = x_of(1, 2, 5, 8)
    by_regard = regard.torch.scaled_dot_product_attention(x, x, x)
    second(x_of())
    results["other"] = regard.torch.record(second, x_of(2, 4, SIZE))
    outside.set()
    thread.join()
    assert by_regard.shape == x.shape
    assert results["recording"].names == ("model.layer.self_attn", "model.layer.multihead_attn")
    assert results["recording"][0].query.shape == (3, 4, 7, 4)
    assert results["other"].names == ("layer.self_attn", "layer.multihead_attn")
    assert results["other"][0].query.shape == (2, 4, 4, 4)
    assert not regard.torch._recorder.OBSERVERS


def test_nothing_stays_after_an_error():
    class Failing(nn.Module):
        def forward(self, x):
            by_another_name(x, x, x)
            raise RuntimeError("broken")

    x = x_of(1, 2, 5, 8)
    with pytest.raises(RuntimeError, match="broken"):
        regard.torch.record(Failing(), x)
    assert not regard.torch._recorder.OBSERVERS
    assert torch.is_grad_enabled()
    from torch.overrides import _get_current_function_mode_stack

    assert not _get_current_function_mode_stack()


def test_a_recording_within_a_recording():
    inner = drawn(Decoder)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            self.recording = regard.torch.record(self.inner, x, max_bytes=None)
            return self.inner(x)

    outer = Outer()
    recording = regard.torch.record(outer, x_of(), max_bytes=None)
    assert recording.names == ("inner.layer.self_attn", "inner.layer.multihead_attn")
    assert outer.recording.names == ("layer.self_attn", "layer.multihead_attn")


def test_compiled_modules_are_recorded():
    module, x = drawn(Decoder), x_of()
    wanted = regard.torch.record(module, x)
    runs = []

    def backend(graph, inputs):
        runs.append(1)
        return graph

    compiled = torch.compile(module, backend=backend)
    compiled(x)
    count = len(runs)
    assert count
    recording = regard.torch.record(compiled, x)
    assert recording.names == wanted.names
    assert all(np.array_equal(a.key, b.key) for a, b in zip(recording, wanted, strict=True))
    torch._dynamo.reset()
    compiled(x)
    assert len(runs) == 2 * count  # the compiler works again
