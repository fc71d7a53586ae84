"""Test precision="bfloat16". If the CPU has the instruction, results are compared with attention to
rounded arrays in float64. Otherwise they have the bits of float32, and a note says so."""

import numpy as np
import pytest

import regard
from reference import assert_same_bits

BFLOAT16 = {"precision": "bfloat16"}
sdpa = regard.scaled_dot_product_attention
sdpa_backward = regard.scaled_dot_product_attention_backward
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (40, 3), "sinks": np.array([0.5, -1.0])},
    "softcap": {"softcap": 2.0, "alibi_slopes": np.array([0.1, 0.0])},
    "weights": {"return_weights": True},
}


def rounded(array):
    """Return float32 numbers rounded to bfloat16, to nearest even."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def arrays(q_len=100, kv_len=300, head_dim=33, value_dim=20):
    generator = np.random.default_rng(0)
    shapes = (2, q_len, head_dim), (1, kv_len, head_dim), (1, kv_len, value_dim)
    return [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]


def has_instruction(*given):
    return regard.explain(*given, **BFLOAT16).kernel == "bfloat16"


def results_of(*given, **options):
    results = sdpa(*given, **options)
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("case", CASES)
def test_rounded_arrays_or_the_bits_of_float32(case, target):
    given, options = arrays(), CASES[case]
    got = results_of(*given, **options, **BFLOAT16)
    if has_instruction(*given):
        exact = [rounded(array).astype(np.float64) for array in given]
        allowed = np.abs(given[2]).max() * 2**-8
    else:
        exact, allowed = given, 0
    for array, wanted in zip(got, results_of(*exact, **options), strict=True):
        assert np.abs(array - wanted).max() <= allowed


@pytest.mark.parametrize("case", [case for case in CASES if case != "weights"])
def test_gradients_of_rounded_arrays_or_the_bits_of_float32(case, target):
    given, options = arrays(), {**CASES[case], **BFLOAT16}
    output, lse = sdpa(*given, **options, return_lse=True)
    grad_output = np.random.default_rng(1).standard_normal(output.shape, dtype=np.float32)
    got = sdpa_backward(grad_output, *given, output, lse, **options)
    if has_instruction(*given):
        exact = [rounded(array).astype(np.float64) for array in (grad_output, *given)]
        # Weights and the gradients of scores are each rounded by at most 2^-8. In NumPy, this
        # changed these gradients by at most 0.7 * 2^-8 of the largest.
        allowed = [2 * np.abs(array).max() * 2**-8 for array in got[:3]]
    else:
        exact, allowed = [grad_output, *given], [0, 0, 0]
    wanted = sdpa_backward(*exact, output.astype(exact[0].dtype), lse, **CASES[case])
    for array, expected, error in zip(got[:3], wanted[:3], allowed, strict=True):
        assert np.abs(array - expected).max() <= error


def test_layers_are_trained_with_it():
    given = np.random.default_rng(0).standard_normal((40, 16), dtype=np.float32)
    layer = regard.MultiHeadAttention(16, 2, rng=0).train()
    with pytest.raises(ValueError, match=r"'bfloat16' in train.. mode, got 'int8'"):
        layer(given, precision="int8")
    output = layer(given, **BFLOAT16)
    gradient = layer.backward(output)
    if not has_instruction(*arrays()):
        assert np.array_equal(output, layer(given))
        assert np.array_equal(gradient, layer.backward(output))


def test_explain_says_what_happens(target):
    given = arrays()
    explained = regard.explain(*given, **BFLOAT16)
    if explained.kernel == "bfloat16":
        # The target for tests has no such instruction and uses plain arithmetic.
        assert explained.instruction == ("avx2" if target == "wide" else "avx512_bf16")
        assert explained.notes == (
            "blocks of keys and values are copied: they are multiplied as pairs of bfloat16",
        )
        assert f"multiplied by {explained.instruction}" in str(explained)
    else:
        assert (explained.kernel, explained.instruction) == ("forward", None)
        assert any("'bfloat16' has no effect" in note for note in explained.notes)


@pytest.mark.parametrize("returns_weights", [False, True])
def test_few_queries_are_computed_in_float32(returns_weights, target):
    """This holds whatever is returned, since a backward call does not know what was returned."""
    given, options = arrays(q_len=1), {"return_weights": returns_weights}
    explained = regard.explain(*given, **options, **BFLOAT16)
    assert explained.kernel == ("forward" if returns_weights else "decode")
    assert (
        "precision 'bfloat16' has no effect: memory bandwidth limits calls with few queries"
        in explained.notes
    )
    assert_same_bits(sdpa(*given, **options, **BFLOAT16), sdpa(*given, **options))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_prompt_in_a_cache(dtype, target):
    """The result has the bits of the dense call on the keys and values as the cache stores them."""
    query, key, value = (array[None] for array in arrays(q_len=40, kv_len=40, head_dim=32))
    key, value = key.astype(dtype), value.astype(dtype)
    cache = regard.KVCache(1, 1, 32, 20, dtype=dtype, page_size=16)
    cache.append(key, value)
    wanted = sdpa(query, key, value, is_causal=True, **BFLOAT16)
    assert np.array_equal(cache.attend(query, **BFLOAT16), wanted)
    assert cache.explain(query, **BFLOAT16).kernel in ("bfloat16", "forward")
