"""Record the attention of transformers models."""

from __future__ import annotations

from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any

import regard
from regard._arguments.numbers import flag, listed
from regard._runtime.public import needed
from regard.torch._recorder import MAX_BYTES, RecordRequest
from regard.torch._recording import recording_lock, run_recorded
from regard.transformers._attention import register
from regard.transformers._input_tokens import layers_with_tokens
from regard.transformers._models import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from regard import Recording

torch = needed("torch", "regard.transformers", "transformers")
transformers = needed("transformers", "regard.transformers", "transformers")

_MODEL = transformers.PreTrainedModel
_CONFIGURATION = transformers.PreTrainedConfig


def record(
    model: Any,
    *args: Any,
    layers: Any = None,
    dtype: Any = None,
    max_bytes: int | None = MAX_BYTES,
    tokenizer: Any = None,
    return_output: bool = False,
    **inputs: Any,
) -> Recording | tuple[Recording, Any]:
    """Run a transformers model once, and record the queries and keys of its attention.

    During the call, the model computes attention with regard, regardless of its
    ``attn_implementation``, which is restored afterward.

    Parameters
    ----------
    model : transformers.PreTrainedModel, or a torch.nn.Module that contains such models
        The model, which runs in its current mode: call ``model.eval()`` first to leave out dropout
        of hidden states.
    layers : int, str, or iterable of int and str, optional
        The layers to record, as numbers in the order of the calls, and as names or parts of names,
        as for `regard.Recording.select`: ``"encoder"``, or ``range(4)``. Default: all.
    dtype : dtype or str, optional
        The type in which queries and keys are stored: float16, bfloat16, float32 or float64.
        Default: the type that the model computes in.
    max_bytes : int, default 4_000_000_000
        The maximum size of the recording. None allows any size.
    tokenizer : tokenizer, optional
        Provides the texts of tokens, by its method ``decode``. Default: tokens are numbers.
    return_output : bool, default False
        Whether to also return the output of the model. The recording does not keep it.
    *args, **inputs
        The arguments of the model, such as ``input_ids`` and ``attention_mask``.

    Returns
    -------
    recording : Recording
        Its layers have the names of the model's modules, such as ``"model.layers.3.self_attn"``.
        `input_ids` and `decoder_input_ids` are the tokens of the layers that attend to them.
    output
        The output of the model; returned if `return_output`.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If the recording would be larger than `max_bytes`; if `layers` selects a layer that does not
        exist; if nothing was recorded, because the model computes attention by itself, as BLOOM and
        XLNet do.
    NotImplementedError
        If the model selects blocks of keys.
    ImportError
        If the model computes in bfloat16 and the ml_dtypes package is missing.

    See Also
    --------
    regard.torch.record : records any PyTorch module.

    Notes
    -----
    Causal masks, sliding windows and padding are recorded as options. Other threads that run the
    same model during the call compute attention with regard, too; they are not recorded. Recordings
    of several threads run one after another.

    Examples
    --------
    >>> import regard.transformers, torch, transformers
    >>> config = transformers.LlamaConfig(
    ...     hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
    ...     num_hidden_layers=2, vocab_size=100,
    ... )
    >>> model = transformers.AutoModelForCausalLM.from_config(config).eval()
    >>> recording = regard.transformers.record(model, input_ids=torch.tensor([[1, 2, 3]]))
    >>> recording
    Recording(2 layers, query (1, 4, 3, 8) float32, key (1, 2, 3, 8), 1.18 kB)
    >>> recording[0].name, dict(recording[0].options)
    ('model.layers.0.self_attn', {'is_causal': True, 'scale': 0.3535533905932738})
    """
    model = getattr(model, "_orig_mod", model)  # the module within a compiled one
    parts = _models_in(model)
    if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
        raise TypeError(f"tokenizer must have the method decode, got {type(tokenizer).__name__}")
    wants_output = flag("return_output", return_output)
    request = RecordRequest.of(layers, dtype, max_bytes)
    parameters = signature(model.forward)
    register()
    with recording_lock, _computing_by_regard(parts):
        recorded, output = run_recorded(model, args, inputs, request, _reason(parts))
    given = parameters.bind(*args, **inputs).arguments
    given |= given.get("kwargs", {})
    recording = regard.Recording(layers_with_tokens(recorded, model, given, tokenizer))
    return (recording, output) if wants_output else recording


def _models_in(model: Any) -> list[Any]:
    """Return the transformers models in a module that are not part of another such model."""
    if isinstance(model, torch.nn.Module):
        found = [each for each in model.modules() if isinstance(each, _MODEL)]
        inner = {id(part) for each in found for part in each.modules() if part is not each}
        outer = [each for each in found if id(each) not in inner]
        if outer:
            return outer
    raise TypeError(
        f"model must be a transformers model, got {type(model).__name__}: regard.torch.record "
        "records other modules"
    )


def _reason(parts: list[Any]) -> str:
    """Return why nothing might be recorded."""
    unsupported = [type(x).__name__ for x in parts if not x._can_set_attn_implementation()]
    if unsupported:
        return (
            f"{listed(unsupported)} computes attention by itself, and not with "
            "transformers.AttentionInterface"
        )
    return (
        f"{listed(type(x).__name__ for x in parts)} called no attention function for these inputs"
    )


@contextmanager
def _computing_by_regard(parts: list[Any]) -> Iterator[None]:
    """Let models compute attention with regard, and restore their implementations."""
    configurations = [config for part in parts for config in _configurations(part)]
    before = [(config, config._attn_implementation_internal) for config in configurations]
    try:
        for part in parts:
            # The others keep their own attention, and transformers would log a warning.
            if part._can_set_attn_implementation():
                part.set_attn_implementation(NAME)
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation


def _configurations(model: Any) -> list[Any]:
    """Return all configurations of the parts of a model, including nested configurations."""
    found: dict[int, Any] = {}
    waiting = [getattr(part, "config", None) for part in model.modules()]
    while waiting:
        config = waiting.pop()
        if isinstance(config, _CONFIGURATION) and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, name, None) for name in config.sub_configs]
    return list(found.values())
