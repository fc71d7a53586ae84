"""Every attention call has every option, or refuses it with the reason in the table of options."""

import importlib
import inspect
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import regard
from regard._arguments.keywords import table
from regard._arguments.option_table import OPTIONS
from regard._arguments.options import names_of, takes_options

X = np.ones((2, 3, 4))
LSE = np.zeros((2, 3))
STARTS = [0, 2]
CACHE = regard.KVCache(1, 2, 4)
CACHE.append(X, X)
RAGGED = (X, X, X, STARTS, STARTS)
# The calls, and the arguments that each needs.
CALLS = {
    "scaled_dot_product_attention": (X, X, X),
    "scaled_dot_product_attention_ragged": RAGGED,
    "explain": (X, X, X),
    "scaled_dot_product_attention_backward": (X, X, X, X, X, LSE),
    "scaled_dot_product_attention_ragged_backward": (
        *(X, X, X, X, STARTS, STARTS),
        *(X, np.zeros((2, 3))),
    ),
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
    "torch.scaled_dot_product_attention": (),
    "jax.scaled_dot_product_attention": (),
    "dask.scaled_dot_product_attention": (),
    "dask.scaled_dot_product_attention_backward": (),
    "cuda.scaled_dot_product_attention": (X, X, X),
    "cuda.scaled_dot_product_attention_ragged": RAGGED,
    "KVCache.attend": (CACHE, X),
    "KVCache.explain": (CACHE, X),
    "paged_attention": (X[None], *[X[:, None]] * 2, [[0, 1, 1]], [3]),
    "MultiHeadAttention.__call__": (regard.MultiHeadAttention(4, 2, rng=0), X),
    "MultiHeadAttention.record": (regard.MultiHeadAttention(4, 2, rng=0), X),
    "RecordedLayer": ("name", X, X),
    "SelfAttention.record": (regard.SelfAttention(4, 2, rng=0), X[0]),
    "SelfAttention.__call__": (regard.SelfAttention(4, 2, rng=0), X[0]),
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
    arguments = CALLS[name]
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
    taken = inspect.signature(call).parameters
    for option in OPTIONS.values():
        if option.name in taken:
            continue
        with pytest.raises(TypeError) as raised:
            call(*arguments, **{option.name: option.default})
        text = str(raised.value)
        assert f"no argument {option.name}: " in text
        assert "its arguments are" not in text, f"other_names.txt has no {option.name} of {name}"


@pytest.mark.parametrize("name", CALLS)
def test_advice_names_only_what_the_call_has(name):
    """For any keyword of other libraries, no call advises an option that it would refuse itself."""
    call, arguments = call_and_arguments(name)
    taken = inspect.signature(call).parameters
    for keyword in sorted({name for names, *_ in table() for name in names} - taken.keys()):
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


PAGE = (Path(__file__).parent.parent.parent / "docs/api/attention.md").read_text(encoding="utf-8")
REFUSED = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE, re.MULTILINE))
OF_RESULTS = inspect.signature(regard.scaled_dot_product_attention).parameters.keys() - {
    *("query", "key", "value", "mask", "out", "threads", "device")
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_page_lists_what_a_call_does_not_accept(name):
    if name == "KVCache.attend_ragged":
        call = regard.KVCache.attend_ragged
    else:
        call, _ = call_and_arguments(name)
    taken = inspect.signature(call).parameters
    dropout = "`dropout_p`, `dropout_seed`, `dropout_origin`"
    listed, _, choice = REFUSED[name].replace("dropout,", f"{dropout},").partition("; ")
    listed = listed.removesuffix("dropout") + (dropout if listed.endswith("dropout") else "")
    assert {*re.findall(r"`(\w+)`", listed)} == OF_RESULTS - taken.keys()
    is_refused = "precision" in taken and "int8" not in str(taken["precision"].annotation)
    assert choice == ('`precision="int8"`' if is_refused else "")


TOGETHER = {
    "mask": np.tri(3, dtype=bool),
    "is_causal": True,
    "query_offset": "end",
    "window": (1, 0),
    "key_lengths": 2,
    "left_padding": 1,
    "scale": 0.3,
    "softcap": 5.0,
    "alibi_slopes": [0.1, 0.2],
    "distance_bias": np.ones((2, 5)),
    "sinks": [0.0, 1.0],
    "dropout_p": 0.1,
    "dropout_seed": 1,
    "precision": "int8",
    "rows": slice(1, 2),
    "return_weights": True,
    "return_lse": True,
}


@pytest.mark.parametrize("pair", list(itertools.combinations(TOGETHER, 2)), ids=" and ".join)
def test_two_options_can_be_combined_unless_the_page_says_otherwise(pair):
    assert TOGETHER.keys() - {"mask"} >= OF_RESULTS - {"score_function", "dropout_origin"}
    options = {name: TOGETHER[name] for name in pair}
    if "dropout_p" in options:
        options["dropout_seed"] = 1
    arrays = [X.astype(np.float32)] * 3
    if "rows" in pair and "return_weights" not in pair:
        with pytest.raises(TypeError, match="rows need return_weights=True"):
            regard.scaled_dot_product_attention(*arrays, **options)
        return
    regard.scaled_dot_product_attention(*arrays, **options)
    if "precision" in pair:
        with pytest.raises(ValueError, match="needs query, key and value of float32"):
            regard.scaled_dot_product_attention(X, X, X, **options)
