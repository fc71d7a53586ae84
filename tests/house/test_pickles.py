"""What regard writes: pickles name only public modules, so that the source may move, and contain
what they copy; files never follow a link to nothing."""

import copy
import pickle
import pickletools

import numpy as np
import pytest

import regard

X = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
OUTPUT, LSE = regard.scaled_dot_product_attention(X, X, X, return_lse=True)


def trained(layer, x):
    """Return a layer after a call, its gradients, and another call."""
    layer.train()
    layer.backward(layer(x, dropout_seed=1))
    layer(x, dropout_seed=2)
    return layer


def gradients_of_inputs(layer):
    layer.train()(X, X)
    return layer.backward(X)


THINGS = {
    "AttentionGradients": lambda: regard.scaled_dot_product_attention_backward(
        OUTPUT, X, X, X, OUTPUT, LSE
    ),
    "AttentionSummary": lambda: regard.summarize_attention(X, X, statistics=("max", "top_k")),
    "Explanation": lambda: regard.explain(X, X, X, is_causal=True),
    "Explorer": lambda: regard.explore(X, X),
    "InputGradients": lambda: gradients_of_inputs(regard.MultiHeadAttention(8, 2, rng=0)),
    "KeyValueChunks": lambda: regard.KeyValueChunks(X, X),
    "RecordedLayer": lambda: regard.SelfAttention(8, 4, rng=0).record(X[0])[0],
    "Recording": lambda: regard.MultiHeadAttention(8, 2, rng=0).record(
        X, mask=regard.masks.sliding(3, window=(1, 0))
    ),
    "Blocks": lambda: regard.masks.random_blocks(9, blocks_per_row=2, block=(2, 3), rng=0),
    "Ranges": lambda: regard.masks.sliding(9, window=(2, 0)),
    "QuantizedWeight": lambda: regard.QuantizedWeight(X[0]),
    "QuantizedWeight.T": lambda: regard.QuantizedWeight(X[0]).T,
    "ShownWeights": lambda: regard.show(np.full((2, 3), 1 / 3), (["a", "b"], ["a", "b", "c"])),
    "TorchGenerator": lambda: regard.TorchGenerator(3),
    "MultiHeadAttention": lambda: regard.MultiHeadAttention(
        8, 2, rng=0, rotary={"scaling": {"rope_type": "linear", "factor": 2.0}}, qk_norm="rms"
    ),
    "MultiHeadAttention trained": lambda: trained(
        regard.MultiHeadAttention(8, 2, rng=0, rotary=True, dropout=0.1), X
    ),
    "SelfAttention": lambda: regard.SelfAttention(8, 4, rng=0, init="uniform"),
    "SelfAttention trained": lambda: trained(regard.SelfAttention(8, 4, rng=0, dropout=0.1), X[0]),
}


def named_in(data):
    """Yield the modules and names in a pickle."""
    texts = []
    for code, argument, _ in pickletools.genops(data):
        if code.name in ("SHORT_BINUNICODE", "BINUNICODE"):
            texts.append(argument)
        elif code.name == "STACK_GLOBAL":
            yield tuple(texts[-2:])
        elif code.name == "GLOBAL":
            yield tuple(argument.split(" "))


@pytest.mark.parametrize("name", THINGS)
def test_pickles_name_public_modules_only(name):
    thing = THINGS[name]()
    data = pickle.dumps(thing)
    named = [each for each in named_in(data) if each[0].split(".")[0] == "regard"]
    public = ("regard", "regard.layers", "regard.masks")
    assert ("regard", name.split()[0].partition(".")[0]) in named or type(
        thing
    ).__module__ in public
    assert not [each for each in named if "._" in ".".join(each)], named
    again = pickle.loads(data)
    assert type(again) is type(thing)
    assert repr(again) == repr(thing) or isinstance(thing, regard.TorchGenerator | regard.Explorer)


@pytest.mark.parametrize("copied", [copy.copy, lambda it: pickle.loads(pickle.dumps(it))])
@pytest.mark.parametrize("name", [name for name in THINGS if "Attention " in name])
def test_a_copy_of_a_layer_goes_on_by_itself(name, copied):
    layer = THINGS[name]()
    x = X[0] if "Self" in name else X
    twin = copied(layer)
    assert twin.training == layer.training
    assert {name: array.tobytes() for name, array in twin.grads.items()} == {
        name: array.tobytes() for name, array in layer.grads.items()
    }
    if not layer.training:
        assert twin(x).tobytes() == layer(x).tobytes()
        return
    with pytest.raises(RuntimeError, match="a copy of a layer has none: call the copy"):
        twin.backward(x)
    outputs = [each(x, dropout_seed=3) for each in (layer, twin)]
    assert outputs[0].tobytes() == outputs[1].tobytes()
    inputs = [each.backward(outputs[0]) for each in (layer, twin)]
    assert inputs[0].tobytes() == inputs[1].tobytes()
    for name, gradient in layer.grads.items():
        assert twin.grads[name] is not gradient
        assert twin.grads[name].tobytes() == gradient.tobytes()


WRITERS = {
    "cache": lambda path: regard.KVCache(1, 2, 8).save(path),
    "recording": lambda path: regard.SelfAttention(8, 4, rng=0).record(X).save(path),
    "page": lambda path: regard.explore(X, X).save(path, overwrite=True),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_to_nothing_creates_nothing(name, tmp_path):
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    with pytest.raises((FileExistsError, FileNotFoundError), match="link"):
        WRITERS[name](link)
    assert link.is_symlink()
    assert not target.exists()
