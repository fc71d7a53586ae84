"""The delta rules of hybrid models, whose other layers are attention.

transformers has no interface for them: a layer calls two functions of its module, and passes on the
keywords that its model received. `replace_delta_rules` wraps the models, which add a keyword if
their ``attn_implementation`` is regard's, and the functions, which call regard if they find it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

import regard.torch
from regard._runtime.public import needed
from regard.transformers._models import NAME

if TYPE_CHECKING:
    from collections.abc import Callable

torch = needed("torch", "regard.transformers", "transformers")

# The folders of transformers.models, and the models of tokens within them.
_MODELS = {
    "bailing_hybrid": "BailingHybridModel",
    "glm5_next": "Glm5NextTextModel",
    "kimi_linear": "KimiLinearModel",
    "lara_mini": "LaraMiniModel",
    "olmo_hybrid": "OlmoHybridModel",
    "qwen3_5": "Qwen3_5TextModel",
    "qwen3_5_moe": "Qwen3_5MoeTextModel",
    "qwen3_next": "Qwen3NextModel",
}
_RULES = {
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "recurrent_kimi_delta_attention",
}
_BY_REGARD = "linear_attention_by_regard"


def replace_delta_rules() -> None:
    """Let the models whose implementation is regard's compute their delta rules with regard.

    Other models call the original functions, as before. Repeated calls have no effect.
    """
    for name, model in _MODELS.items():
        # Older versions do not have all of them.
        with suppress(ImportError):
            module = import_module(f"transformers.models.{name}.modeling_{name}")
            kind = getattr(module, model)
            if not getattr(kind.forward, "_knows_regard", False):
                for rule in _RULES & vars(module).keys():
                    setattr(module, rule, _choosing(getattr(module, rule), module.l2norm))
                kind.forward = _telling(kind.forward)


def _telling(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward pass of a model that tells its layers to use regard, if it is chosen."""

    @wraps(forward)
    def telling(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.config._attn_implementation == NAME:
            kwargs[_BY_REGARD] = True
        return forward(self, *args, **kwargs)

    telling._knows_regard = True  # type: ignore[attr-defined]
    return telling


def _choosing(rule: Callable[..., Any], normalized: Callable[..., Any]) -> Callable[..., Any]:
    """Return a delta rule that regard computes on the CPU, if the model told it to."""

    @wraps(rule)
    def choosing(query: Any, *args: Any, **kwargs: Any) -> Any:
        by_regard = kwargs.pop(_BY_REGARD, False) and query.device.type in ("cpu", "meta")
        # Packed texts raise an error there, because convolutions do not keep them apart. What
        # follows beta has a name.
        if not by_regard or len(args) > 4 or kwargs.get("cu_seqlens") is not None:
            return rule(query, *args, **kwargs)
        return _delta_rule(normalized, query, *args, **kwargs)

    return choosing


def _delta_rule(
    normalized: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    *,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Any, Any]:
    """Compute a delta rule in float32, as models do.

    Tensors have the shape (batch, length, heads, ...). Several heads of value, decay and beta, and
    of the state, may share a head of query and key.
    """
    dtype, heads, group = query.dtype, key.shape[2], value.shape[2] // key.shape[2]
    query, key, *of_values = (
        x.transpose(1, 2).to(torch.float32) for x in (query, key, value, g, beta)
    )
    if use_qk_l2norm_in_kernel:
        query, key = normalized(query), normalized(key)
    # Query heads become batch entries, which have as many heads as the group.
    query, key = (x[:, :, None].expand(-1, -1, group, -1, -1) for x in (query, key))
    value, decay, beta = (x.unflatten(1, (heads, group)) for x in of_values)
    if initial_state is not None:
        initial_state = initial_state.unflatten(1, (heads, group))
    output, state = regard.torch.linear_attention(
        query, key, value, decay=decay, beta=beta, state=initial_state, return_state=True
    )
    output = output.flatten(1, 2).transpose(1, 2).to(dtype)
    return output, state.flatten(1, 2) if output_final_state else None
