"""Calls do not import modules: a child that is forked while another thread imports a module may
wait for this module forever."""

import sys
import types

import numpy as np

import regard


def test_calls_import_nothing(output_of):
    script = """
    import sys
    import numpy as np
    import regard
    for each in regard.__all__:
        if each != "plot":
            getattr(regard, each)
    x = np.ones((2, 5, 8), np.float32)
    class Refuses:
        def find_spec(name, path=None, target=None):
            raise AssertionError("a call imports " + name)
    sys.meta_path.insert(0, Refuses)
    layer = regard.MultiHeadAttention(8, 2, rng=0, rotary=True, qk_norm="rms").train()
    layer.backward(layer(x))
    layer.load_state_dict(layer.state_dict("llama"))
    regard.SelfAttention(8, 4, init="uniform")(x, is_causal=True)
    regard.models.sample(x[:, 0])
    regard.layers.rms_norm(x)
    regard.TorchGenerator(0).randn(20)
    blocks = regard.masks.random_blocks(9, blocks_per_row=1, block=(4, 4))
    regard.scaled_dot_product_attention(*[np.ones((9, 4))] * 3, ~blocks)
    regard.SelfAttention(8, 4).record(x).summarize()
    cache = regard.KVCache(2, 1, 8, dtype="int8", keep_last=3)
    cache.append(x[:, None], x[:, None], lengths=[5, 3])
    cache.attend(x[:, None, :1], window=(1, 0))
    cache.truncate([4, 3])
    cache.adopt(cache.fork([0]))
    cache.keys
    pages = np.ones((2, 16, 1, 8), np.int8)
    regard.paged_attention(
        x[:, None, :1], pages, pages, [[0], [1]], [1, 2], key_scales=1.0, value_scales=[1.0]
    )
    regard.positional.rotary(x)
    regard.positional.sinusoidal(3, 4)
    regard.rollout(x[None, :1], x[None, :1])
    regard.attention_map(x, x)
    regard.scaled_dot_product_attention_backward(x, x, x, x, x, x[..., 0])
    regard.scaled_dot_product_attention_jvp(x, x, x, x, None, None)
    list(regard.explain(x, x, x, is_causal=True).__dict__)
    regard.attend_stream(x, [(x, x)])
    regard.linear_attention_backward(x, x, x, x, beta=regard.linear_attention(x, x, x)[..., 0])
    regard.merge_attention_states([x] * 3, [x[..., 0]] * 3)
    regard.softmax(regard.apply_mask(regard.matmul(x, x.mT), [[True]]))
    packed, starts = x.swapaxes(0, 1), np.array([0, 5], "u8")
    regard.scaled_dot_product_attention_ragged(packed, packed, packed, starts, starts)
    foreign = type("Foreign", (), {"__array__": lambda self, dtype=None, copy=None: x})()
    options = {"key_lengths": 4, "alibi_slopes": [0.5, 1.0], "sinks": [0.0, 1.0], "scale": [1, 2]}
    many = {"distance_bias": np.ones((2, 9), "f2"), "mask": np.ones((5, 5), bool).tolist()}
    regard.scaled_dot_product_attention(foreign, x, x, **options, **many, out=np.empty_like(x))
    sys.meta_path.remove(Refuses)
    print("nothing")
    """
    assert output_of(script) == "nothing"


def test_arrays_are_read_while_numpy_imports_its_masked_arrays(monkeypatch):
    """Another thread may import the module, which then exists without its contents."""
    monkeypatch.setitem(sys.modules, "numpy.ma", types.ModuleType("numpy.ma"))
    assert regard.positional.sinusoidal(3, 4).shape == (3, 4)
    assert regard.positional.rotary(np.ones((3, 4))).shape == (3, 4)
