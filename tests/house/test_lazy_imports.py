"""Calls do not import modules: a child that is forked while another thread imports a module may
wait for this module forever."""

import ast
import sys
import types
from pathlib import Path

import numpy as np

import regard

SOURCE = Path(regard.__file__).parent
# Packages that belong to other libraries, to pages and to the command line.
OTHERS = {
    *("torch", "transformers", "jax", "dask", "cuda", "plot"),
    *("_show", "_explore", "_bench", "_cli"),
}
# Functions that may import, each with its reason.
ALLOWED = {
    ("__init__.py", "__getattr__"): "first use of a public name",
    ("_arguments/keywords.py", "advice"): "only a call that fails",
    ("_arguments/keywords.py", "table"): "only a call that fails",
    ("_attention/dense.py", "retry_converted"): "arrays on a GPU",
    ("_attention/dense.py", "_with_weights_of_rows"): "first use of rows=",
    ("_cache/types.py", "stored_type"): "the optional package of bfloat16",
    ("_recording/recording.py", "summarize"): "the public function of this name",
    ("_recording/recording.py", "map"): "the public function of this name",
    ("_recording/recording.py", "explore"): "the public function of this name",
    ("_recording/recording.py", "rollout"): "the public function of this name",
    ("_runtime/config.py", "show_config"): "GPU diagnostics",
    ("_runtime/threads.py", "register_with_threadpoolctl"): "an optional package",
}
# Modules that NumPy imports when they are first used as its attributes.
OF_NUMPY = ["random", "linalg", "fft", "polynomial", "testing", "char", "rec", "ctypeslib"]


def places():
    """Yield the place of each import in a function, and of each lazy attribute of NumPy."""
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if place.partition("/")[0] in OTHERS:
            continue
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for node in (each for line in function.body for each in ast.walk(line)):
                    text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
                    is_import = isinstance(node, ast.Import | ast.ImportFrom)
                    if is_import or text in {f"np.{name}" for name in OF_NUMPY}:
                        yield place, function.name


def test_functions_do_not_import():
    found = {*places()}
    assert len(found) >= 5, "the search finds nothing"
    assert found <= ALLOWED.keys()


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
    sys.meta_path.remove(Refuses)
    print("nothing")
    """
    assert output_of(script) == "nothing"


def test_arrays_are_read_while_numpy_imports_its_masked_arrays(monkeypatch):
    """Another thread may import the module, which then exists without its contents."""
    monkeypatch.setitem(sys.modules, "numpy.ma", types.ModuleType("numpy.ma"))
    assert regard.positional.sinusoidal(3, 4).shape == (3, 4)
    assert regard.positional.rotary(np.ones((3, 4))).shape == (3, 4)
