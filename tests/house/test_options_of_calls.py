"""Every attention call has every option, or refuses it with the reason in the table of options."""

import importlib
import inspect
import re

import numpy as np
import pytest

import regard
from regard._arguments import advice
from regard._arguments.option_table import OPTIONS
from regard._arguments.options import names_of, takes_options

X = np.ones((2, 3, 4))
LSE = np.zeros((2, 3))
STARTS = [0, 2]
CACHE = regard.KVCache(1, 2, 4)
CACHE.append(X, X)
RAGGED = (X, X, X, STARTS, STARTS)
# The calls, the arguments each needs, and its kind in the table.
CALLS = {
    "scaled_dot_product_attention": ((X, X, X), "attention"),
    "scaled_dot_product_attention_ragged": (RAGGED, "attention"),
    "explain": ((X, X, X), "explain"),
    "scaled_dot_product_attention_backward": ((X, X, X, X, X, LSE), "gradients"),
    "scaled_dot_product_attention_ragged_backward": (
        (X, X, X, X, STARTS, STARTS, X, np.zeros((2, 3))),
        "gradients",
    ),
    "scaled_dot_product_attention_jvp": ((X, X, X, X, X, X), "gradients"),
    "scaled_dot_product_attention_double_backward": ((X, X, X, X, X, X, X, X, LSE), "gradients"),
    "summarize_attention": ((X, X), "weights"),
    "summarize_attention_ragged": ((X, X, STARTS, STARTS), "weights"),
    "attention_map": ((X, X), "weights"),
    "rollout": ((X[None], X[None]), "weights"),
    "explore": ((X, X), "weights"),
    "attend_stream": ((X, [(X, X)]), "stream"),
    "plot.attention": (((X, X),), "weights"),
    "plot.heads": (((X, X),), "weights"),
    "plot.compare": (((X, X), (X, X)), "weights"),
    "plot.pattern": ((None, 3), "pattern"),
    "torch.scaled_dot_product_attention": ((), "torch"),
    "jax.scaled_dot_product_attention": ((), "jax"),
    "dask.scaled_dot_product_attention": ((), "dask"),
    "dask.scaled_dot_product_attention_backward": ((), "dask"),
    "cuda.scaled_dot_product_attention": ((X, X, X), "cuda"),
    "cuda.scaled_dot_product_attention_ragged": (RAGGED, "cuda"),
    "KVCache.attend": ((CACHE, X), "cache"),
    "KVCache.explain": ((CACHE, X), "cache"),
    "paged_attention": ((X[None], *[X[:, None]] * 2, [[0, 1, 1]], [3]), "pages"),
    "MultiHeadAttention.__call__": ((regard.MultiHeadAttention(4, 2, rng=0), X), "layer"),
    "MultiHeadAttention.record": ((regard.MultiHeadAttention(4, 2, rng=0), X), "layer"),
    "RecordedLayer": (("name", X, X), "recording"),
    "SelfAttention.record": ((regard.SelfAttention(4, 2, rng=0), X[0]), "self-attention"),
    "SelfAttention.__call__": ((regard.SelfAttention(4, 2, rng=0), X[0]), "self-attention"),
}
PACKAGES = {
    "plot": "matplotlib",
    "torch": "torch",
    "jax": "jax",
    "dask": "dask.array",
    "cuda": None,
}


def call_and_arguments(name):
    """Return a call, and valid arguments for it."""
    first, _, rest = name.partition(".")
    arguments, _ = CALLS[name]
    if first in PACKAGES:
        if PACKAGES[first] is not None:
            pytest.importorskip(PACKAGES[first])
        module = importlib.import_module(f"regard.{first}")
        if first == "torch":
            arguments = (importlib.import_module("torch").ones(2, 3, 4),) * 3
        if first == "jax":
            arguments = (X, X, X)
        if first == "dask":
            array = importlib.import_module("dask.array").from_array(X)
            lse = importlib.import_module("dask.array").from_array(LSE)
            is_backward = rest.endswith("backward")
            arguments = (array, array, array, array, array, lse) if is_backward else (array,) * 3
        return getattr(module, rest), arguments
    call = regard
    for part in name.split("."):
        call = getattr(call, part)
    return call, arguments


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_every_option_or_says_why_not(name):
    call, arguments = call_and_arguments(name)
    kind = CALLS[name][1]
    taken = inspect.signature(call).parameters
    for option in OPTIONS.values():
        if option.name in taken:
            continue
        reason = option.refusal(kind)
        assert reason, f"the table does not say why {name} has no {option.name}"
        with pytest.raises(TypeError) as raised:
            call(*arguments, **{option.name: option.default})
        assert f"no argument {option.name}: {reason}" in str(raised.value)


@pytest.mark.parametrize("name", CALLS)
def test_advice_names_only_what_the_call_has(name):
    """For any keyword of other libraries, no call advises an option that it would refuse itself."""
    call, arguments = call_and_arguments(name)
    taken = inspect.signature(call).parameters
    for keyword in sorted({*advice._ADVICE, *advice._RENAMED} - taken.keys()):
        with pytest.raises(TypeError) as raised:
            call(*arguments, **{keyword: 1})
        text = str(raised.value).partition(f"no argument {keyword}: ")[2]
        assert text, (keyword, str(raised.value))
        if any(other in text for other in ("constructor", "regard.KVCache", "and append with")):
            continue
        text = re.sub(r"call \w+, which accepts \w+=", "", text)
        while "(" in text:
            text = re.sub(r"\([^()]*\)", "", text)
        advised = re.findall(r"(\w+)=", text)
        assert [each for each in advised if each in taken] == advised, (keyword, text)


@pytest.mark.parametrize("name", CALLS)
def test_a_docstring_describes_the_options_of_the_call(name):
    call, _ = call_and_arguments(name)
    assert "{options}" not in call.__doc__
    parameters = call.__doc__.partition("Parameters\n")[2].partition("Returns\n")[0]
    for option in OPTIONS:
        assert (option in inspect.signature(call).parameters) == (
            re.search(rf"^ *(\w+, )*{option}(, \w+)*( :.*)?$", parameters, re.MULTILINE) is not None
        ), option


def test_an_option_of_the_table_reaches_signatures_and_docstrings():
    class Options(regard._arguments.options.PatternOptions, total=False):
        out: "int"

    @takes_options(Options, reference="as elsewhere", window=(1, 0))
    def call(query, **options):
        """Do something.

        Parameters
        ----------
        query : array
            Of some shape.
        {options}
        window : pair
            Its own words.
        """

    signature = inspect.signature(call)
    assert tuple(signature.parameters) == ("query", *names_of(Options))
    assert signature.parameters["window"].default == (1, 0)
    assert signature.parameters["query_offset"].default == 0
    assert "is_causal, query_offset, key_lengths, left_padding\n" in call.__doc__
    assert "Which keys a query sees, as elsewhere." in call.__doc__
