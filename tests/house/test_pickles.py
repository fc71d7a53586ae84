"""What regard writes: pickles name only public modules, so that the source may move, and contain
what they copy; files never follow a link to nothing."""

import pickle
import pickletools

import numpy as np
import pytest

import regard

X = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
OUTPUT, LSE = regard.scaled_dot_product_attention(X, X, X, return_lse=True)
SCALED = {"scaling": {"rope_type": "linear", "factor": 2.0}}


def gradients_of_inputs():
    layer = regard.MultiHeadAttention(8, 2, rng=0).train()
    layer(X, X)
    return layer.backward(X)


THINGS = {
    "gradients": lambda: regard.scaled_dot_product_attention_backward(OUTPUT, X, X, X, OUTPUT, LSE),
    "gradients of inputs": gradients_of_inputs,
    "summary": lambda: regard.summarize_attention(X, X, statistics=("max", "top_k")),
    "explanation": lambda: regard.explain(X, X, X, is_causal=True),
    "page": lambda: regard.explore(X, X),
    "chunks": lambda: regard.KeyValueChunks(X, X),
    "recording": lambda: regard.MultiHeadAttention(8, 2, rng=0).record(
        X, mask=regard.masks.sliding(3, window=(1, 0))
    ),
    "blocks": lambda: regard.masks.random_blocks(9, blocks_per_row=2, block=(2, 3), rng=0),
    "quantized": lambda: regard.QuantizedWeight(X[0]),
    "shown": lambda: regard.show(np.full((2, 3), 1 / 3), (["a", "b"], ["a", "b", "c"])),
    "generator": lambda: regard.TorchGenerator(3),
    "many heads": lambda: regard.MultiHeadAttention(8, 2, rng=0, rotary=SCALED, qk_norm="rms"),
}


def modules_in(data):
    """Yield the modules that a pickle names."""
    texts = []
    for code, argument, _ in pickletools.genops(data):
        if code.name in ("SHORT_BINUNICODE", "BINUNICODE"):
            texts.append(argument)
        elif code.name == "STACK_GLOBAL":
            yield texts[-2]
        elif code.name == "GLOBAL":
            yield argument.split(" ")[0]


@pytest.mark.parametrize("name", THINGS)
def test_pickles_name_public_modules_only(name):
    thing = THINGS[name]()
    data = pickle.dumps(thing)
    named = [module for module in modules_in(data) if module.split(".")[0] == "regard"]
    assert named
    assert not [module for module in named if "._" in module]
    again = pickle.loads(data)
    assert type(again) is type(thing)
    assert repr(again) == repr(thing) or isinstance(thing, regard.TorchGenerator | regard.Explorer)


@pytest.mark.parametrize("thing", [regard.KVCache(1, 2, 8), THINGS["recording"]()])
def test_a_link_to_nothing_creates_nothing(thing, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises((FileExistsError, FileNotFoundError), match="link"):
        thing.save(tmp_path / "link")
    assert not (tmp_path / "target").exists()
