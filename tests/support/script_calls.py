"""Small calls of every kind, as text for scripts that run in separate processes."""

SETUP = """
import threading, time
import numpy as np, regard

class Late:
    # An object that is torn down late keeps the interpreter alive while threads request the GIL.
    def __del__(self, sleep=time.sleep):
        sleep(0.3)

class Loads:
    def __init__(self, array):
        self.array = array
    def __array__(self, dtype=None, copy=None):
        return self.array

late = Late()
rng = np.random.default_rng(0)
x = rng.standard_normal((2, 5, 8)).astype("f4")
wide = rng.standard_normal((2, 300, 64)).astype("f4")
packed, numbers = x.swapaxes(0, 1), np.array([0, 5], "u8")
sdpa, ragged = regard.scaled_dot_product_attention, regard.scaled_dot_product_attention_ragged
lengths, slopes, table = np.array([4], "u8"), np.ones(2, "f2"), np.ones((2, 9), "f2")
output, lse = sdpa(x, x, x, return_lse=True)
many = np.broadcast_to(np.array(4, "u2"), (3000,))
entries = np.broadcast_to(x, (3000, *x.shape))
cache, sparse = regard.KVCache(1, 2, 8), regard.masks.sliding(5, window=(2, 0))
"""

CALLS = {
    "small": "sdpa(x, x, x)",
    "large": "sdpa(wide, wide, wide, threads=2)",
    "foreign arrays": "sdpa(Loads(x), Loads(x), Loads(x), mask=np.ones((5, 5), bool).tolist())",
    "lengths": "sdpa(x[None], x[None], x[None], key_lengths=lengths)",
    "many lengths": "sdpa(entries, entries, entries, key_lengths=many)",
    "lists": "sdpa(x, x, x, alibi_slopes=[0.5, 1.0], sinks=[0.0, 1.0], scale=[1.0, 2.0])",
    "slopes": "sdpa(x, x, x, alibi_slopes=slopes, distance_bias=table)",
    "sparse mask": "sdpa(x, x, x, sparse)",
    "results": "sdpa(x, x, x, out=np.empty_like(x))",
    "ragged": "ragged(packed, packed, packed, numbers, numbers)",
    "backward": "regard.scaled_dot_product_attention_backward(output, x, x, x, output, lse)",
    "jvp": "regard.scaled_dot_product_attention_jvp(x, x, x, x, x, x)",
    "summary": "regard.summarize_attention(x, x)",
    "explain": "regard.explain(x, x, x)",
    "cache": "c = regard.KVCache(1, 2, 8); c.append(x, x); c.attend(x)",
    "merge": "regard.merge_attention_states([output] * 3, [lse] * 3)",
    "stages": "regard.softmax(regard.apply_mask(regard.matmul(x, x.mT), [[True]]))",
    "errors": """
        try:
            sdpa(x, x[..., :3], x)
        except ValueError:
            pass
    """,
}
