"""Give recorded layers the tokens of a model's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard import RecordedLayer

    Array = NDArray[Any]

# Parts of the paths of modules that attend to the encoder's output, or to no tokens at all.
_CROSS = ("cross", "encoder_attn", "encdecattention", "encoder_attention")
_WITHOUT_TOKENS = ("vision", "visual", "image", "audio")
# The characters that tokenizers write in place of a space before a word.
_SPACES = ("\u2581", "\u0120")


def layers_with_tokens(
    layers: list[RecordedLayer], model: Any, inputs: Mapping[str, Any], tokenizer: Any
) -> list[RecordedLayer]:
    """Return layers with the tokens that their queries and keys belong to, if known."""
    of_input, of_decoder = (
        _tokens_of(inputs.get(name), tokenizer) for name in ("input_ids", "decoder_input_ids")
    )
    has_two = of_decoder is not None or getattr(
        getattr(model, "config", None), "is_encoder_decoder", False
    )
    named = []
    for layer in layers:
        path = layer.name.lower()
        is_decoder = has_two and "decoder" in path.split(".")
        if any(word in path for word in _WITHOUT_TOKENS):
            sides: tuple[Array | None, Array | None] = None, None
        elif is_decoder:
            is_cross = any(word in path for word in _CROSS)
            sides = of_decoder, of_input if is_cross else of_decoder
        else:
            sides = of_input, of_input
        named.append(layer.with_tokens(*sides))
    return named


def _tokens_of(ids: Any, tokenizer: Any) -> Array | None:
    """Return the tokens of an input as numbers, or as texts if there is a tokenizer."""
    if ids is None:
        return None
    numbers: Array = ids.detach().cpu().numpy().astype(np.int64)
    if tokenizer is None:
        return numbers
    distinct, places = np.unique(numbers, return_inverse=True)
    texts = np.array([_text_of(int(each), tokenizer) for each in distinct], object)
    tokens: Array = texts[places.reshape(numbers.shape)]
    return tokens


def _text_of(number: int, tokenizer: Any) -> str:
    text: str = tokenizer.decode([number], skip_special_tokens=False)
    raw = getattr(tokenizer, "convert_ids_to_tokens", lambda _: [""])([number])[0]
    # Some tokenizers remove the space before the first word of a text.
    return f" {text}" if str(raw).startswith(_SPACES) and not text[:1].isspace() else text
