"""Arguments of the public functions and classes: almost valid ones, or of any kind."""

import inspect
import math
import warnings

import numpy as np

import mutate
import regard

KINDS = ("f4", "f4", "f4", "f8", "f8", "f2", "i4", "i8", "?", "c8", "O", "U3", "M8[s]", ">f4", "V4")
SIZES = (0, 1, 1, 2, 3, 4, 8, 17)


def _array(chance):
    shape = [chance.choice(SIZES) for _ in range(chance.choice((0, 1, 2, 2, 3, 3, 3, 4, 5)))]
    kind = chance.choice(KINDS)
    array = np.arange(math.prod(shape)).reshape(shape)
    try:
        array = np.asarray(array % 7).astype(kind)
    except (TypeError, ValueError):
        array = array.astype("f4")
    if array.ndim and chance.random() < 0.3:
        array = array[..., ::-1] if chance.random() < 0.5 else array.swapaxes(0, -1)
    if chance.random() < 0.1:
        array.setflags(write=False)
    return array


class _Strange:
    """An object whose methods fail."""

    def __index__(self):
        raise ValueError("no index")

    def __array__(self, *_, **__):
        raise ValueError("no array")

    def __float__(self):
        raise ValueError("no float")


def _value(chance):
    kind = chance.randrange(11)
    if kind < 5:
        return _array(chance)
    if kind < 8:
        floats = (0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 1e300, 5e-324, np.float32(0.3))
        others = (None, True, False, "", "end", "int8", "\ud800", b"x", ..., int, _Strange())
        return chance.choice((mutate.number(chance), chance.choice(floats), chance.choice(others)))
    some = [_value(chance) for _ in range(chance.randrange(4))]
    return (some, tuple(some), {chance.choice(("a", "scale", 1, None)): some})[kind - 8]


def _right_arguments():
    """Return valid arguments for each public function, by its name."""
    x = np.ones((2, 3, 4), np.float32)
    lse, starts = np.ones((2, 3), np.float32), np.array([0, 1, 3])
    three = {"query": x, "key": x, "value": x}
    two = {"query": x, "key": x}
    starting = {"query_starts": starts, "key_starts": starts}
    packed = {name: np.ones((3, 2, 4), np.float32) for name in three}
    states = {"outputs": [x, x], "lses": [lse, lse]}
    forward = {"output": x, "lse": lse}
    tangents = {f"tangent_{name}": x for name in three}
    packed_state = {"output": packed["value"], "lse": np.ones((3, 2), np.float32)}
    return {
        "QuantizedWeight": {"weight": x[0]},
        "apply_mask": {"scores": x, "mask": x > 0},
        "attend_stream": {"query": x, "chunks": [(x, x), (x, x)]},
        "attention_map": two | {"shape": (2, 2)},
        "explain": three,
        "linear_attention": three | {"beta": lse},
        "linear_attention_backward": {"grad_output": x} | three | {"beta": lse},
        "matmul": {"a": x, "b": x.swapaxes(1, 2)},
        "merge_attention_states": states,
        "merge_attention_states_backward": {"grad_output": x} | states | forward,
        "scale": {"scores": x, "factor": 2.0},
        "scaled_dot_product_attention": three,
        "scaled_dot_product_attention_backward": {"grad_output": x} | three | forward,
        "scaled_dot_product_attention_jvp": three | tangents,
        "scaled_dot_product_attention_ragged": packed | starting,
        "scaled_dot_product_attention_ragged_backward": {"grad_output": packed["value"]}
        | packed
        | starting
        | packed_state,
        "set_num_threads": {"threads": None},
        "show": {"weights": x},
        "softmax": {"x": x},
        "summarize_attention": two,
        "summarize_attention_ragged": {name: packed[name] for name in two} | starting,
        "KVCache": {"batch": 2, "kv_heads": 2, "head_dim": 4},
        "KeyValueChunks": {"key": x, "value": x},
        "SelfAttention": {"d_in": 3, "d_out": 4},
        "MultiHeadAttention": {"d_model": 8, "num_heads": 2},
        "TorchGenerator": {"seed": 0},
    }


class Arguments:
    """Draw arguments for `fuzz`, and pass them to their function."""

    needs = ()
    # A result that needs too much memory does not mean that an argument is wrong.
    allowed = (TypeError, ValueError, MemoryError)
    # These may need packages that are missing, or, for a cache's file, a path outside the folder.
    left_alone = ("device", "progress", "path")

    def __init__(self, folder):
        self.right = _right_arguments()
        self.names = {}
        for name in self.right:
            parameters = inspect.signature(getattr(regard, name)).parameters.values()
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            named = [each.name for each in parameters if each.kind in kinds]
            self.names[name] = [each for each in named if each not in self.left_alone]

    def draw(self, chance):
        name = chance.choice(list(self.right))
        arguments = dict(self.right[name])
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 5))):
            arguments[chance.choice(self.names[name])] = _value(chance)
        if chance.random() < 0.05:
            arguments[chance.choice(("attn_mask", "causal", "x y", "threads"))] = _value(chance)
        if chance.random() < 0.02:
            arguments.popitem()
        return name, arguments

    def feed(self, drawn):
        name, arguments = drawn
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                getattr(regard, name)(**arguments)
        except self.allowed:
            return False
        finally:
            regard.set_num_threads(None)
        return True
