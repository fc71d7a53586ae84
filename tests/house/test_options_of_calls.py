"""Every attention call has every option, or refuses it with the reason in the table of options."""

import importlib
import inspect
import re
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

import regard
from regard._arguments.keywords import table
from regard._arguments.option_table import OPTIONS

X, LSE, STARTS = np.ones((2, 3, 4)), np.zeros((2, 3)), [0, 2]
CACHE = regard.KVCache(1, 2, 4)
CACHE.append(X, X)
RAGGED = (X, X, X, STARTS, STARTS)
LAYER, ONE_HEAD = regard.MultiHeadAttention(4, 2, rng=0), regard.SelfAttention(4, 2, rng=0)
# The calls, and the arguments that each needs.
CALLS = {
    "scaled_dot_product_attention": (X, X, X),
    "scaled_dot_product_attention_ragged": RAGGED,
    "explain": (X, X, X),
    "scaled_dot_product_attention_backward": (X, X, X, X, X, LSE),
    "scaled_dot_product_attention_ragged_backward": (X, X, X, X, STARTS, STARTS, X, LSE),
    "scaled_dot_product_attention_jvp": (X, X, X, X, X, X),
    "summarize_attention": (X, X),
    "summarize_attention_ragged": (X, X, STARTS, STARTS),
    "attention_map": (X, X),
    "rollout": (X[None], X[None]),
    "explore": (X, X),
    "attend_stream": (X, [(X, X)]),
    "plot.attention": ((X, X),),
    "plot.heads": ((X, X),),
    "plot.compare": ((X, X), (X, X)),
    "plot.pattern": (None, 3),
    "torch.scaled_dot_product_attention": (X, X, X),
    "jax.scaled_dot_product_attention": (X, X, X),
    "dask.scaled_dot_product_attention": (X, X, X),
    "dask.scaled_dot_product_attention_backward": (X, X, X, X, X, LSE),
    "cuda.scaled_dot_product_attention": (X, X, X),
    "cuda.scaled_dot_product_attention_ragged": RAGGED,
    "KVCache.attend": (CACHE, X),
    "KVCache.explain": (CACHE, X),
    "paged_attention": (X[None], *[X[:, None]] * 2, [[0, 1, 1]], [3]),
    "MultiHeadAttention.__call__": (LAYER, X),
    "MultiHeadAttention.record": (LAYER, X),
    "RecordedLayer": ("name", X, X),
    "SelfAttention.record": (ONE_HEAD, X[0]),
    "SelfAttention.__call__": (ONE_HEAD, X[0]),
}
CONVERTED = {"torch": ("torch", "asarray"), "dask": ("dask.array", "from_array")}


def call_and_arguments(name):
    """Return a call, and valid arguments for it."""
    package, arguments = name.partition(".")[0], CALLS[name]
    if package in ("torch", "dask", "jax", "plot"):
        pytest.importorskip({"plot": "matplotlib", "dask": "dask.array"}.get(package, package))
    if package in ("torch", "dask", "jax", "plot", "cuda"):
        importlib.import_module(f"regard.{package}")
    if package in CONVERTED:
        library, convert = CONVERTED[package]
        convert = getattr(importlib.import_module(library), convert)
        arguments = [convert(each) for each in arguments]
    return attrgetter(name)(regard), arguments


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_every_option_or_says_why_not(name):
    """For keywords of other libraries, it advises no option that it would refuse itself."""
    call, arguments = call_and_arguments(name)
    taken = inspect.signature(call).parameters
    keywords = {keyword for names, *_ in table() for keyword in names}
    for keyword in sorted({*keywords, *OPTIONS} - taken.keys()):
        with pytest.raises(TypeError) as raised:
            call(*arguments, **{keyword: 1})
        text = str(raised.value).partition(f"no argument {keyword}: ")[2]
        assert text, (keyword, str(raised.value))
        assert keyword not in OPTIONS or "its arguments are" not in text, keyword
        if any(other in text for other in ("constructor", "regard.KVCache", "and append with")):
            continue
        text = re.sub(r"call \w+, which accepts \w+=", "", text)
        while "(" in text:
            text = re.sub(r"\([^()]*\)", "", text)
        assert {*re.findall(r"(\w+)=", text)} <= taken.keys(), (keyword, text)


PAGE = (Path(__file__).parent.parent.parent / "docs/api/attention.md").read_text(encoding="utf-8")
REFUSED = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE, re.MULTILINE))
OF_RESULTS = inspect.signature(regard.scaled_dot_product_attention).parameters.keys() - {
    *("query", "key", "value", "mask", "out", "threads", "device")
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_page_lists_what_a_call_does_not_accept(name):
    if name.partition(".")[0] in ("torch", "jax", "dask"):
        pytest.importorskip({"dask": "dask.array"}.get(name.split(".")[0], name.split(".")[0]))
    importlib.import_module("regard.cuda")
    taken = inspect.signature(attrgetter(name)(regard)).parameters
    listed, _, choice = REFUSED[name].partition("; ")
    names = {*re.findall(r"`(\w+)`", listed)}
    if re.search(r"(?<!`)dropout(?!`)", listed):
        names |= {"dropout_p", "dropout_seed", "dropout_origin"}
    assert names == OF_RESULTS - taken.keys()
    is_refused = "precision" in taken and "int8" not in str(taken["precision"].annotation)
    assert choice == ('`precision="int8"`' if is_refused else "")
