"""Register regard with transformers."""

from __future__ import annotations

from regard._runtime.public import needed
from regard.transformers._attention import attend
from regard.transformers._continuous_batching import allow_continuous_batching
from regard.transformers._masks import make_mask
from regard.transformers._models import NAME

transformers = needed("transformers", "regard.transformers", "transformers")


def register() -> None:
    """Add ``"regard"`` to the transformers attention implementations in this process.

    Afterward, ``attn_implementation="regard"`` works for any model whose attention uses
    ``transformers.AttentionInterface``, and ``model.set_attn_implementation("regard")`` switches an
    existing model. Repeated calls have no effect.

    Notes
    -----
    Two functions are registered: one computes attention, and the other makes masks. Causal masks,
    sliding windows and padding are a row of keys, as for flash attention, if all models of the
    configuration support it. All other masks are those that ``"sdpa"`` makes, or those of eager
    attention if ``"sdpa"`` does not support the model.

    The transformers method of continuous batching that refuses unknown implementations is replaced;
    it calls the original method for models with another implementation.

    The dropout seed is drawn from PyTorch's default generator, so that ``torch.manual_seed``
    reproduces it. Attention weights are not returned, as with ``"sdpa"``.

    Examples
    --------
    >>> import regard.transformers, torch, transformers
    >>> regard.transformers.register()
    >>> config = transformers.LlamaConfig(
    ...     hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
    ...     num_hidden_layers=2, vocab_size=100,
    ... )
    >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="regard")
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 100])
    """
    transformers.AttentionInterface.register(NAME, attend)
    transformers.AttentionMaskInterface.register(NAME, make_mask)
    allow_continuous_batching()
