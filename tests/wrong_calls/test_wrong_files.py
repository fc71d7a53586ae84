"""Wrong calls of recordings, files of weights, functions of language models and threads."""

import numpy as np
import pytest

import regard
from messages import check, each
from regard import RecordedLayer, Recording, checkpoints
from regard.layers import rms_norm
from regard.models import sample, silu, swiglu

X = np.random.default_rng(0).standard_normal((4, 6, 8))
TEXT = list("abcabc")
RECORDED = Recording(
    [RecordedLayer(f"encoder.{i}", X, X, key_tokens=TEXT) for i in range(2)]
    + [RecordedLayer("decoder.0", X[:2], X[:2])]
)
TEXTS = Recording([RecordedLayer("a", np.stack([X] * 3), np.stack([X] * 3))])
LSE = np.zeros((3, 4, 6))
PASSED = regard.summarize_attention, regard.attention_map, regard.explore

ROWS = [
    (lambda: RecordedLayer(3, X, X), TypeError, "name must be a str, got int"),
    (lambda: RecordedLayer("a", X, X[..., :3]), ValueError, "query and key must ... got 8 and"),
    (lambda: RecordedLayer("a", X[0], X[0]), ValueError, "query must have a ... got shape (6"),
    (lambda: RecordedLayer("a", X, X, threads=1), TypeError, "no argument threads ... pass it to"),
    (lambda: RecordedLayer("a", X, X, key_tokens=[1, 2]), ValueError, "key_tokens ... got shape"),
    (lambda: RecordedLayer("a", X, X, query_tokens=[1.0] * 6), TypeError, "query_tokens"),
    (lambda: Recording(3), TypeError, "layers must be an iterable of RecordedLayer, got int"),
    (lambda: Recording([X]), TypeError, "layers[0] must be a RecordedLayer, got ndarray"),
    (lambda: RECORDED[9], IndexError, "tuple index out of range"),
    (lambda: RECORDED["encoder"], KeyError, "\"no layer has the name 'encoder'"),
    (lambda: Recording([*RECORDED, *RECORDED])["decoder.0"], KeyError, '"2 layers have the name'),
    (lambda: RECORDED.select(5), ValueError, "layer must be at most 2, got 5"),
    (lambda: RECORDED.select("enc"), ValueError, "layers must name ... got 'enc' ... there are"),
    (lambda: RECORDED.select(""), ValueError, "layers must name layers, got ''"),
    (lambda: RECORDED.summarize(), ValueError, "the layers of the recording must ... got 4 heads"),
    (lambda: TEXTS.explore(), ValueError, "the recording must have one batch ... got batch axes"),
    (lambda: TEXTS.entry(3), ValueError, "the index of an entry must be at most 2, got 3"),
    (lambda: TEXTS.entry((0, 0)), ValueError, "the index of an entry must ... got 2"),
    (lambda: regard.summarize_attention(Recording([])), ValueError, "the recording ... got none"),
    (lambda: regard.summarize_attention(RECORDED[:1], lse=LSE), TypeError, "lse must be left out"),
    (lambda: checkpoints.load_safetensors(""), ValueError, "path must name a ... got an empty"),
    (
        lambda: checkpoints.load_safetensors("/nowhere/a", weight_dtype="int4"),
        ValueError,
        "weight_dtype must be None or one ... got 'int4'",
    ),
    (lambda: checkpoints.load_safetensors("/nowhere/a", prefix=3), TypeError, "prefix"),
    (lambda: rms_norm(3.0), ValueError, "x must have at least one axis, got a number"),
    (lambda: rms_norm(np.ones(4), np.ones(3)), ValueError, "weight must be (4,), got shape (3,)"),
    (lambda: rms_norm(np.ones(4), eps=-1), ValueError, "eps must be at least 0 ... got -1.0"),
    (lambda: rms_norm(np.ones(4, complex)), TypeError, "x must be an array of ... got complex128"),
    (lambda: silu(["a"]), TypeError, "x must be an array of ... got <U1"),
    (lambda: swiglu([1, 2], [1]), ValueError, "gate and up must have the ... got shapes (2,)"),
    (lambda: sample(1.0), ValueError, "logits must be (..., vocabulary), got shape ()"),
    (lambda: sample([0, np.nan]), ValueError, "logits must have a finite maximum ... got nan"),
    (lambda: sample([0, 1], -1), ValueError, "temperature must be at least 0 and finite, got"),
    (lambda: sample([0, 1], top_k=0), ValueError, "top_k must be at least 1, got 0"),
    (lambda: sample([0, 1], top_p=0), ValueError, "top_p must be positive and finite, got 0.0"),
    (lambda: sample([0, 1], rng="a"), TypeError, "rng must be None, an int ... got 'a'"),
    (lambda: regard.set_num_threads(0), ValueError, "threads must be at least 1, got 0"),
    (lambda: regard.set_threading_layer("tbb"), ValueError, "name must be 'pool' ... got 'tbb'"),
    (lambda: regard.show_config(mode="html"), ValueError, "mode must be 'stdout' ... got 'html'"),
]


@each(ROWS)
def test_calls(wrong, error, parts):
    check(wrong, error, parts)


@pytest.mark.parametrize("call", PASSED)
def test_what_a_recording_determines(call):
    one = RECORDED[:1]
    for name, value in {"key": X, "mask": X[0] > 0, "is_causal": True, "scale": None}.items():
        parts = f"{name} must be left out with a recording"
        check(lambda: call(one, **{name: value}), TypeError, parts)  # noqa: B023
    check(lambda: call(X), TypeError, "key must be an array, got None")
    call(one, threads=1)


def test_a_recorded_layer_does_not_change():
    layer = RECORDED[0]
    for array in (layer.query, layer.key, layer.key_tokens):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    for change in (lambda: setattr(layer, "name", "b"), lambda: delattr(layer, "name")):
        with pytest.raises(AttributeError, match="is immutable"):
            change()


PACKAGES = {
    "regard.plot": ("matplotlib", "plot"),
    "regard.torch": ("torch", "torch"),
    "regard.jax": ("jax", "jax"),
    "regard.dask": ("dask", "dask"),
}


def test_packages_are_imported_only_by_who_asks_and_named_where_they_are_missing(output_of):
    script = f"""
    import importlib, sys
    import regard
    for name, (package, extra) in {PACKAGES}.items():
        print(package in sys.modules or name in sys.modules)
        sys.modules[package] = None
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(error)
    """
    wanted = []
    for name, (package, extra) in PACKAGES.items():
        told = f"{name} needs the {package} package: in a clone of regard, pip install"
        wanted += ["False", f'{told} ".[{extra}]"']
    assert output_of(script).splitlines() == wanted
