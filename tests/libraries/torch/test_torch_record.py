"""Recordings of PyTorch modules have the weights of each layer; others have nothing of it."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')

import regard.torch  # noqa: E402
from regard.torch._recording import recording_lock  # noqa: E402
from torch_modules import (  # noqa: E402
    HEADS,
    MODULES,
    PADDING,
    SIZE,
    Decoder,
    Encoder,
    Whole,
    by_another_name,
    drawn,
    keep_weights,
    weights_of,
    x_of,
)

nn, F = torch.nn, torch.nn.functional
EPS = np.finfo(np.float64).eps
# Without a recording, this module would pack the texts into a nested tensor.
PADDED = {"padded encoder": (lambda: Encoder(PADDING), MODULES["encoder"][1])}


def own_weights(layer):
    return regard.scaled_dot_product_attention(
        layer.query, layer.key, layer.key, layer.mask, **layer.options, return_weights=True
    )[1]


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", [*MODULES, *PADDED])
def test_weights(name, is_training, monkeypatch):
    make, names = (MODULES | PADDED)[name]
    module, x = drawn(make), x_of()
    explicit = keep_weights(monkeypatch)
    if name == "function":
        module.function = F.scaled_dot_product_attention
    with torch.no_grad():
        output = module(x)  # train mode has no fast path around the function
    monkeypatch.undo()
    if name == "function":
        module.function = by_another_name
    recording, again = regard.torch.record(module.train(is_training), x, return_output=True)
    assert list(recording.names) == names
    for layer, wanted in zip(recording, explicit, strict=True):
        assert np.abs(own_weights(layer) - wanted).max() <= 64 * EPS
    assert (again - output).abs().max() <= 2**10 * EPS


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("words", [{}, {"add_zero_attn": True}, {"dropout": 0.5}], ids=str)
def test_multi_head_attention_that_returns_weights(words, average):
    module = drawn(lambda: nn.MultiheadAttention(SIZE, HEADS, **words))
    x, memory = x_of(), x_of()
    torch.manual_seed(1)
    with torch.no_grad():
        wanted = module(x, memory, memory, average_attn_weights=average)
    torch.manual_seed(1)
    recording, actual = regard.torch.record(
        module, x, memory, memory, average_attn_weights=average, return_output=True
    )
    assert all(map(torch.equal, actual, wanted))
    if "dropout" not in words:
        weights = own_weights(recording[0])
        weights = weights.mean(axis=1) if average else weights
        assert np.abs(weights - wanted[1].numpy()).max() <= 64 * EPS


class Attend(nn.Module):
    """Calls of a function, given the inputs."""

    def __init__(self, function=lambda x: by_another_name(x, x, x)):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def test_two_axes_and_grouped_heads():
    def call(x):
        one = x[0, 0]
        by_another_name(one, one, one)
        by_another_name(x, x[:, :2], x[:, :2], enable_gqa=True)
        return by_another_name(x, x[:, :1], x[:, :1])  # one key head for all

    x = x_of(2, 4, 5, 8)
    recording = regard.torch.record(Attend(call), x)
    assert [layer.query.shape for layer in recording] == [(1, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)]
    for layer, heads in zip(recording[1:], (2, 1), strict=True):
        assert layer.key.shape[-3] == heads
        key = x[:, :heads].repeat_interleave(4 // heads, dim=1)
        assert np.abs(own_weights(layer) - weights_of(x, key).numpy()).max() <= 64 * EPS


def test_options_of_regard_and_masks_of_all_kinds():
    mask = regard.masks.sliding(7, window=(2, 0))
    bias = torch.randn(3, 1, 7, 7, dtype=torch.float64).expand(3, 4, 7, 7)
    options = {"window": (3, 1), "softcap": 5.0, "is_causal": True, "query_offset": "end"}
    options |= {"key_lengths": torch.tensor([7, 5, 2]), "alibi_slopes": np.linspace(0, 1, 4)}
    options["sinks"] = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def call(x):
        return regard.torch.scaled_dot_product_attention(
            x, x, x, (mask, bias), **options, dropout_p=0.5, threads=1
        )

    x = x_of(3, 4, 7, 8)
    (layer,) = regard.torch.record(Attend(call), x)
    assert layer.mask[0] is mask
    assert layer.mask[1].shape == (3, 1, 7, 7)  # broadcast data is stored once
    assert layer.options.keys() == options.keys()
    options |= {"sinks": options["sinks"].detach().numpy(), "key_lengths": [7, 5, 2]}
    wanted = regard.scaled_dot_product_attention(
        *[x.numpy()] * 3, (mask, bias.numpy()), **options, return_weights=True
    )[1]
    assert np.array_equal(own_weights(layer), wanted)


def test_what_is_recorded_are_copies():
    def call(x, mask, slopes):
        output = regard.torch.scaled_dot_product_attention(x, x, x, mask, alibi_slopes=slopes)
        for each in (x, mask, slopes):
            each.zero_()
        return output

    given = x_of(2, 4, 5, 8), torch.randn(5, 5), torch.rand(4)
    wanted = [x.numpy().copy() for x in given]
    (layer,) = regard.torch.record(Attend(call), *given)
    assert not any(x.any() for x in given)
    recorded = layer.query, layer.mask, layer.options["alibi_slopes"]
    assert all(map(np.array_equal, recorded, wanted))
    assert layer.query.flags.c_contiguous
    assert not layer.query.flags.writeable


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", torch.float16])
def test_storage(dtype):
    module, x = drawn(Decoder), x_of()
    whole, stored = regard.torch.record(module, x), regard.torch.record(module, x, dtype=dtype)
    for wide, narrow in zip(whole, stored, strict=True):
        assert np.array_equal(narrow.key, wide.key.astype(narrow.key.dtype))
    assert stored[0].key.itemsize in (2, 4)
    assert whole.nbytes == stored.nbytes * 8 // stored[0].key.itemsize


LAYERS = (0, [0]), ([2, 0], [0, 2]), ("model.decoder", [1, 2]), (np.int64(1), [1])


@pytest.mark.parametrize(("layers", "names"), LAYERS)
def test_some_layers(layers, names):
    module, x = drawn(Whole), x_of()
    whole, some = regard.torch.record(module, x), regard.torch.record(module, x, layers=layers)
    assert list(some.names) == [whole.names[i] for i in names]
    assert some.names == whole.select(layers).names
    assert all(np.array_equal(some[name].key, whole[name].key) for name in some.names)


class Scripted(nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def test_scripted_and_exported_modules_are_recorded():
    x = torch.ones(1, 2, 5, 8)
    exported = torch.export.export(Scripted(), (x,)).module()
    for module in (torch.jit.script(Scripted()), exported):
        (layer,) = regard.torch.record(module, x)
        assert np.array_equal(layer.query, x.numpy())


def test_compiled_modules_are_recorded():
    module, x, runs = drawn(Decoder), x_of(), []
    wanted = regard.torch.record(module, x)

    def backend(graph, inputs):
        runs.append(1)
        return graph

    compiled = torch.compile(module, backend=backend)
    compiled(x)
    count = len(runs)
    recording = regard.torch.record(compiled, x)
    assert recording.names == wanted.names
    assert all(np.array_equal(a.key, b.key) for a, b in zip(recording, wanted, strict=True))
    torch._dynamo.reset()
    compiled(x)
    assert len(runs) == 2 * count > 0  # the compiler works again


def test_tokens():
    texts = list("abcdefg")
    recording = regard.torch.record(drawn(Decoder), x_of(), tokens=texts)
    own, cross = recording
    assert own.query_tokens.tolist() == own.key_tokens.tolist() == texts
    assert cross.query_tokens.tolist() == texts
    assert cross.key_tokens is recording.tokens is None
    numbers = np.arange(21).reshape(3, 7)
    recording = regard.torch.record(drawn(Decoder), x_of(), tokens=numbers)
    assert recording.entry(1)[0].key_tokens.tolist() == numbers[1].tolist()


def test_a_recording_ends_when_it_becomes_too_large():
    layer, runs = nn.MultiheadAttention(SIZE, HEADS).double(), []

    def ten(x):
        for _ in range(10):
            runs.append(x)
            x = layer(x, x, x)[0]
        return x

    module = Attend(ten)
    module.layer = layer
    size = 10 * 2 * 3 * 7 * SIZE * 8
    for limit, last in ((1000, "layer"), (size * 3 // 4, "layer:8"), (size - 1, "layer:10")):
        runs.clear()
        with pytest.raises(ValueError, match=rf"would have .* '{last}', .* raise max_bytes"):
            regard.torch.record(module, x_of(), max_bytes=limit)
        assert len(runs) == int(last.partition(":")[2] or 1)
    assert len(regard.torch.record(module, x_of(), max_bytes=size)) == 10
    assert len(regard.torch.record(module, x_of(), max_bytes=size // 4, dtype="float16")) == 10
    assert len(regard.torch.record(module, x_of(), max_bytes=size // 10, layers=3)) == 1


def test_other_threads_are_not_recorded():
    first, second = drawn(Decoder), drawn(Decoder)
    inside, outside = threading.Event(), threading.Event()

    def wait(x):
        inside.set()
        assert outside.wait(60)
        return first(x)

    module = Attend(wait)
    module.model = first
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(regard.torch.record, module, x_of(), max_bytes=None)
        assert inside.wait(60)
        x = x_of(1, 2, 5, 8)
        regard.torch.scaled_dot_product_attention(x, x, x)
        second(x_of())
        outside.set()
        recording = recording.result()
    assert recording.names == ("model.layer.self_attn", "model.layer.multihead_attn")
    assert recording[0].query.shape == (3, 4, 7, 4)
    assert not regard.torch._recorder.OBSERVERS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_records_though_a_thread_of_its_parent_did():
    begun, ends = threading.Event(), threading.Event()

    def hold():
        with recording_lock:
            begun.set()
            ends.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        os._exit(not recording_lock.acquire(timeout=10))
    ends.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
