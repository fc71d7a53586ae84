"""Read and write the parameters of multi-head attention in the layouts of other libraries.

A layer's own parameters are ``W_query``, ``W_key``, ``W_value`` and ``W_out`` of shape (d_out,
d_in), their biases ``b_...``, the weights ``norm_query`` and ``norm_key`` of qk_norm,
``distance_bias`` and ``head_gates``. A layout maps the name of each array of a state to the
parameters that are stacked in it, from the top down.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from regard._arguments.arrays import as_array, is_floating, shown
from regard._arguments.numbers import listed, mapping, text

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard.layers._linear import FloatArray

    Shapes = Mapping[str, tuple[int, ...]]


# Parameters that a layout may have no name for, with the value that changes nothing.
_NEUTRAL = {"b_key": 0.0, "head_gates": 1.0}
# The option of a layer that has a parameter.
_OPTION_OF = {"b_query": "qkv_bias=True", "b_out": "out_bias=True", "norm_query": "qk_norm"}


class StateLayout(NamedTuple):
    """Names and shapes of the parameters in a library."""

    title: str
    arrays: dict[str, tuple[str, ...]]
    transposed: bool = False  # weights are (d_in, d_out)
    grouped: bool = True  # whether there may be fewer key heads than query heads
    without: frozenset[str] = frozenset({"head_gates"})  # parameters that have no name
    others: str = ""  # a pattern of other names in a state: buffers and other layers
    sums: bool = False  # whether norms that multiply by 1 + weight are stored as this sum

    def fits(self, parameters: Shapes) -> bool:
        """Return whether the layout has a place for each of `parameters`."""
        placed = {part for parts in self.arrays.values() for part in parts}
        if not self.grouped and parameters["W_query"][0] != parameters["W_key"][0]:
            return False
        together = [
            {parameters[part] for part in parts if part in parameters}
            for parts in self.arrays.values()
        ]
        return parameters.keys() <= placed | self.without and all(len(s) <= 1 for s in together)

    def parts(self, parameters: Shapes) -> dict[str, tuple[str, ...]]:
        """Return the arrays of a layer with these parameters, with their parts."""
        named = parameters.keys() - self.without
        return {name: parts for name, parts in self.arrays.items() if parts[0] in named}

    def knows(self, name: str) -> bool:
        """Return whether a name of another part of a model is expected in a state."""
        return re.fullmatch(self.others, name) is not None

    def shapes(self, parameters: Shapes) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array."""
        result = {}
        for name, parts in self.parts(parameters).items():
            rows, *columns = parameters[parts[0]]
            shape = (rows * len(parts), *columns)
            result[name] = shape[::-1] if self.transposed else shape
        return result


def _apart(query: str, key: str, value: str, out: str) -> dict[str, tuple[str, ...]]:
    modules = {"query": query, "key": key, "value": value, "out": out}
    return {
        f"{module}.{part}": (f"{letter}_{name}",)
        for name, module in modules.items()
        for part, letter in (("weight", "W"), ("bias", "b"))
    }


_QKV = ("query", "key", "value")
_WEIGHTS, _BIASES = tuple(f"W_{name}" for name in _QKV), tuple(f"b_{name}" for name in _QKV)
_TORCH_REST = {
    "in_proj_bias": _BIASES,
    "out_proj.weight": ("W_out",),
    "out_proj.bias": ("b_out",),
}
_NORMS = {"q_norm.weight": ("norm_query",), "k_norm.weight": ("norm_key",)}
# A block of a GGUF file, whose other tensors belong to its norms and feed-forward part.
_GGUF_OUT = {"attn_output.weight": ("W_out",), "attn_output.bias": ("b_out",)}
_GGUF_NORMS = {"attn_q_norm.weight": ("norm_query",), "attn_k_norm.weight": ("norm_key",)}
_GGUF_OTHERS = (
    r"(attn_norm(_2)?|post_attention_norm|post_ffw_norm|layer_output_norm|exp_probs_b|ffn_\w+)"
    r"\.(weight|bias)"
)
_PROJ = _apart("q_proj", "k_proj", "v_proj", "out_proj")
LAYOUTS = (
    StateLayout(
        "regard",
        _apart("W_query", "W_key", "W_value", "out_proj")
        | _NORMS
        | {"distance_bias": ("distance_bias",), "head_gates": ("head_gates",)},
        without=frozenset(),
        others="mask",
    ),
    StateLayout("torch", {"in_proj_weight": _WEIGHTS} | _TORCH_REST, grouped=False),
    StateLayout(
        "torch",
        {f"{name[0]}_proj_weight": (f"W_{name}",) for name in _QKV} | _TORCH_REST,
        grouped=False,
    ),
    StateLayout(
        "llama",
        _apart("q_proj", "k_proj", "v_proj", "o_proj") | _NORMS,
        others=r"rotary_emb\.inv_freq",
    ),
    StateLayout(
        "bert",
        _apart("self.query", "self.key", "self.value", "output.dense"),
        others=r"output\.LayerNorm\.(weight|bias|gamma|beta)",
    ),
    StateLayout(
        "gpt2",
        {
            "c_attn.weight": _WEIGHTS,
            "c_attn.bias": _BIASES,
            "c_proj.weight": ("W_out",),
            "c_proj.bias": ("b_out",),
        },
        transposed=True,
        others="(masked_)?bias",
    ),
    StateLayout("bart", _PROJ),
    StateLayout("whisper", _PROJ, without=frozenset({"b_key", "head_gates"})),
    StateLayout(
        "gguf",
        _apart("attn_q", "attn_k", "attn_v", "attn_output") | _GGUF_NORMS,
        others=_GGUF_OTHERS,
        sums=True,
    ),
    StateLayout(
        "gguf",
        {"attn_qkv.weight": _WEIGHTS, "attn_qkv.bias": _BIASES} | _GGUF_OUT | _GGUF_NORMS,
        others=_GGUF_OTHERS,
        sums=True,
    ),
)
# The modules of a block of Gemma 3. Gemma 3n and Gemma 4, which multiply by the weight, have more.
_GEMMA3_BLOCK = frozenset(
    {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
    | {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
)


def own_names(parameters: Iterable[str]) -> dict[str, str]:
    """Return the names in regard's own layout, with the names of their parameters."""
    parameters = set(parameters)
    return {name: part for name, (part,) in LAYOUTS[0].arrays.items() if part in parameters}


def read_state(
    state: Mapping[str, Any],
    prefix: str,
    parameters: Shapes,
    dtype: np.dtype[np.floating],
    norm_offset: float,
) -> dict[str, FloatArray]:
    """Return copies of a layer's parameters, under its own names, from a state in any layout.

    `norm_offset` is the number that the layer's norms add to their weight.
    """
    start = _start(prefix)
    if isinstance(state, tuple):
        raise TypeError(
            "state must be a mapping, got a tuple: pass the first entry of what load_safetensors() "
            "or load_gguf() returns"
        )
    given = {
        str(name)[len(start) :]: array
        for name, array in mapping("state", state).items()
        if str(name).startswith(start)
    }
    if not given and start:
        raise ValueError(
            f"state must have names that begin with {start!r}, got {listed(map(str, state))}"
        )
    fitting = [layout for layout in LAYOUTS if layout.fits(parameters)]
    layout = min(fitting, key=lambda one: _differences(one, given, parameters))
    shapes = layout.shapes(parameters)
    if not given.keys() & shapes.keys():
        _refuse_unknown(fitting, given, parameters)
    absent = {part for name in given for part in layout.arrays.get(name, ())} - parameters.keys()
    options = [option for part, option in _OPTION_OF.items() if part in absent]
    remedy = f"; a layer with {' and '.join(options)} has these" if options else ""
    check_names(shapes, [name for name in given if not layout.knows(name)], remedy)
    read: dict[str, FloatArray] = {
        name: np.full(shape, _NEUTRAL[name], dtype)
        for name, shape in parameters.items()
        if name in layout.without
    }
    arrays = check_arrays(shapes, given, dtype)
    for name, parts in layout.parts(parameters).items():
        array = arrays[name].T if layout.transposed else arrays[name]
        read |= zip(parts, np.split(array, len(parts)), strict=True)
    if not norm_offset and "norm_query" in parameters:
        _refuse_gemma3(state, start)
    if layout.sums and norm_offset:
        for name in read.keys() & {"norm_query", "norm_key"}:
            read[name] -= norm_offset
    return read


def write_state(
    own: Mapping[str, FloatArray], names: str, prefix: str, norm_offset: float
) -> dict[str, FloatArray]:
    """Return copies of a layer's parameters in the layout whose title is `names`."""
    titles = list(dict.fromkeys(layout.title for layout in LAYOUTS))
    if not isinstance(names, str) or names not in titles:
        raise ValueError(f"names must be one of {titles}, got {shown(names)}")
    start = _start(prefix)
    shapes = {name: array.shape for name, array in own.items()}
    layouts = [layout for layout in LAYOUTS if layout.title == names and layout.fits(shapes)]
    if not layouts:
        raise ValueError(
            f"names must be 'regard' or a layout that fits this layer, got {names!r}, which has no "
            f"place for parameters of shapes {shapes}"
        )
    for name in layouts[0].without & own.keys():
        if (own[name] != _NEUTRAL[name]).any():
            raise ValueError(
                f"names={names!r} has no place for {name} unless it is {_NEUTRAL[name]:g}"
            )
    state = {}
    for name, parts in layouts[0].parts(shapes).items():
        array = np.concatenate([own[part] for part in parts])
        if layouts[0].sums and parts[0].startswith("norm_"):
            array += norm_offset
        state[start + name] = np.ascontiguousarray(array.T) if layouts[0].transposed else array
    return state


def _refuse_gemma3(state: Mapping[str, Any], start: str) -> None:
    """Raise ValueError if the layer is in a block of Gemma 3, whose norms add 1 to the weight."""
    block = start.removesuffix("self_attn.")
    if block == start:
        return
    names = (str(name) for name in state)
    modules = {name[len(block) :].partition(".")[0] for name in names if name.startswith(block)}
    if modules == _GEMMA3_BLOCK:
        raise ValueError(
            "qk_norm must be 'rms_plus_one' for a state with the names of Gemma 3, whose norms "
            "multiply by 1 + weight, got a layer that multiplies by the weight"
        )


def _refuse_unknown(
    layouts: list[StateLayout], given: Iterable[str], parameters: Shapes
) -> NoReturn:
    """Raise a ValueError for a state that contains no name of any layout."""
    first_names = [(layout.title, next(iter(layout.shapes(parameters)))) for layout in layouts]
    prefixes = dict.fromkeys(
        name.removesuffix(f".{first}")
        for _, first in first_names
        for name in given
        if name.endswith(f".{first}")
    )
    remedy = f"; pass prefix={next(iter(prefixes))!r} for one of its layers" if prefixes else ""
    known = ", ".join(f"{title} ({first}, ...)" for title, first in first_names)
    raise ValueError(
        f"state must have the names of one of the layouts {known}, got {listed(given)}{remedy}"
    )


def _start(prefix: str) -> str:
    start = text("prefix", prefix)
    return start if not start or start.endswith(".") else start + "."


def _differences(layout: StateLayout, given: Mapping[str, Any], parameters: Shapes) -> int:
    names = {name for name in given if not layout.knows(name)}
    return len(names ^ layout.shapes(parameters).keys())


def check_names(wanted: Iterable[str], given: Iterable[str], remedy: str = "") -> None:
    """Raise a ValueError that lists the differences unless both contain the same names."""
    wanted, given = list(wanted), list(given)
    missing = [name for name in wanted if name not in given]
    unexpected = [name for name in given if name not in wanted]
    if missing or unexpected:
        raise ValueError(
            f"state must have the keys {listed(wanted)}, "
            f"got missing: {listed(missing)}, unexpected: {listed(unexpected)}{remedy}"
        )


def check_arrays(
    shapes: Mapping[str, tuple[int, ...]], state: Mapping[str, Any], dtype: np.dtype[Any]
) -> dict[str, FloatArray]:
    """Return copies of the arrays named in `shapes`, in `dtype`.

    Raise TypeError for an array that is not floating-point, and ValueError for wrong shapes.
    """
    arrays = {name: _as_array(name, state[name]) for name in shapes}
    for name, array in arrays.items():
        if not is_floating(array.dtype):
            raise TypeError(f"{name} must be floating-point, got {array.dtype}")
    wrong = [
        f"{name} must have shape {shape}, got {arrays[name].shape}"
        for name, shape in shapes.items()
        if arrays[name].shape != shape
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
    return {name: array.astype(dtype) for name, array in arrays.items()}


def _as_array(name: str, value: ArrayLike) -> NDArray[Any]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = _readable_tensor(name, value)
    return as_array(name, value)


def _readable_tensor(name: str, tensor: Any) -> Any:
    """Return a PyTorch tensor that NumPy can read, without gradients, or raise TypeError."""
    dtype = str(tensor.dtype)
    if tensor.is_meta:
        raise TypeError(
            f"{name} must have numbers, got a tensor on the meta device: load the model first"
        )
    if "float8" in dtype or "float4" in dtype:
        raise TypeError(
            f"{name} must be a tensor of at least 16 bits, got {dtype}: pass tensor.float() "
            "multiplied by the scales that belong to it"
        )
    return tensor.detach().float() if dtype == "torch.bfloat16" else tensor.detach()
