"""Other libraries behave as docs/comparison.md says. A newer version may need another page."""

import inspect
import re
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = " ".join((ROOT / "docs" / "comparison.md").read_text(encoding="utf-8").split())
RNG = np.random.default_rng(0)


def compared_with(package, pattern):
    """Skip unless the version of a package is the one that the page names."""
    named = re.search(pattern, PAGE)[1]
    try:
        installed = version(package).partition("+")[0]
    except PackageNotFoundError:
        pytest.skip(f"pip install {package}=={named}")
    if installed != named:
        pytest.skip(f"the page is about {package} {named}, and {installed} is installed")
    return named


@pytest.fixture
def torch():
    compared_with("torch", r"PyTorch (\d\S*)")
    return pytest.importorskip("torch")


@pytest.fixture
def jax():
    compared_with("jax", r"JAX (\d\S*)")
    return pytest.importorskip("jax")


def tensors(torch, *shapes, **options):
    return [torch.tensor(RNG.standard_normal(shape), **options) for shape in shapes]


def test_sdpa(torch):
    function = torch.nn.functional.scaled_dot_product_attention
    signature = function.__doc__.partition("->")[0]
    named = set(re.findall(r"(\w+)=", signature))
    assert named == {"attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"}
    query, key = tensors(torch, (1, 8, 5, 16), (1, 2, 9, 16))
    assert function(query, key, key, enable_gqa=True).dtype == torch.float64
    with pytest.raises(RuntimeError):
        function(query, key, key)
    x, value = tensors(torch, (1, 4, 6, 16), (1, 4, 6, 8))
    assert function(x, x, value).shape == (1, 4, 6, 8)
    visible = torch.ones(6, 6, dtype=torch.bool)
    visible[0] = False
    assert not function(x, x, x, visible)[..., 0, :].any()
    poisoned = x.clone()
    poisoned[..., 5, :] = torch.nan
    visible[:, 5] = False
    assert function(x, x, poisoned, visible).isnan().any()
    both = function(x, x, x, visible, is_causal=True)
    assert torch.equal(both, function(x, x, x, visible & torch.ones(6, 6).tril().bool()))


def test_flex_attention(torch):
    from torch.nn.attention.flex_attention import flex_attention

    named = inspect.signature(flex_attention).parameters
    assert {"score_mod", "block_mask", "scale", "enable_gqa", "return_lse"} <= set(named)
    assert not {"window", "sinks", "softcap", "dropout_p"} & set(named)
    (x,) = tensors(torch, (1, 4, 16, 16), dtype=torch.float32)
    with warnings.catch_warnings():  # it is not compiled here
        warnings.simplefilter("ignore")
        _, lse = flex_attention(x, x, x, return_lse=True)
    assert lse.shape == (1, 4, 16)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(x.requires_grad_(), x, x)


def test_jax(jax):
    function = jax.nn.dot_product_attention
    named = set(inspect.signature(function).parameters)
    assert {"local_window_size", "key_value_seq_lengths", "return_residual"} <= named
    assert not {"softcap", "logits_soft_cap", "sinks", "alibi_slopes", "dropout_rate"} & named
    x = jax.numpy.asarray(RNG.standard_normal((1, 6, 4, 16)), "float32")
    few = x[:, :, :2]
    assert function(x, few, few).shape == x.shape
    with pytest.raises(ValueError, match="value shape should be"):
        function(x, x, x[..., :8])
    masked = function(x, x, x, mask=jax.numpy.zeros((1, 1, 6, 6), bool))
    np.testing.assert_allclose(masked[:, 0], x.mean(axis=1), rtol=1e-5, atol=1e-6)
