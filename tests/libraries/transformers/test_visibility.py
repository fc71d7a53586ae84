"""Test what tokens see in whole models: users' masks, packed texts, parts of a text, and edits."""

import inspect

import pytest

from outcomes import assert_close, in_float64
from zoo import PADDING, build, inputs_of, masking_utils, result_of, torch, transformers

# No other axis of the models has this length.
LENGTH = 53


def tokens(length, batch=2):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, 40, (batch, length), generator=generator)


def results(model, *implementations, **inputs):
    for implementation in implementations:
        model.set_attn_implementation(implementation)
        with in_float64(), torch.no_grad():
            yield result_of(model(**inputs))


class NoSquares(torch.utils._python_dispatch.TorchDispatchMode):
    """Check that no operator returns a tensor whose last two axes are both the length."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            assert result.shape[-2:] != (LENGTH, LENGTH), operator
        return result


OTHERS = ["gemma2", "gemma3_text", "gpt_oss", "opt"]
PATTERNS = [
    *("llama", "mistral", "bert", "bart"),
    *(pytest.param(model_type, marks=pytest.mark.slow) for model_type in OTHERS),
]


@pytest.mark.parametrize("model_type", PATTERNS)
@pytest.mark.parametrize("side", ["left", "right", None])
def test_no_square(model_type, side):
    model = build(model_type)
    model.set_attn_implementation("regard")
    inputs = {"input_ids": tokens(LENGTH)}
    if side is not None:
        mask = torch.ones(2, LENGTH, dtype=torch.int64)
        mask[1, slice(5) if side == "left" else slice(-5, None)] = 0
        inputs["attention_mask"] = mask
    if model_type == "bart":
        inputs["decoder_input_ids"] = tokens(LENGTH)
    with NoSquares():
        result_of(model(**inputs)).sum().backward()


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("beams", [1, 2])
def test_no_mask_while_writing(model_type, beams, monkeypatch):
    monkeypatch.delattr(masking_utils, "sdpa_mask")
    model = build(model_type)
    inputs = inputs_of(model_type, model.config)
    model.set_attn_implementation("regard")
    model.generate(**inputs, num_beams=beams, min_new_tokens=6, max_new_tokens=6)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gpt_oss", "bert"])
@pytest.mark.parametrize("heads", [1, 4])
def test_bool_masks_of_users(model_type, heads):
    """All tokens see the first three tokens, and the tokens up to themselves. Eager attention needs
    the masks as floats."""
    model, mask = build(model_type), torch.ones(2, heads, 11, 11, dtype=torch.bool).tril()
    mask[..., :3] = True
    mask[:, -1:, 7, 1:4] = False
    (actual,) = results(model, "regard", input_ids=tokens(11), attention_mask=mask)
    added = torch.zeros(mask.shape, dtype=torch.float64)
    added = added.masked_fill(~mask, torch.finfo(torch.float64).min)
    for wanted in results(model, "eager", "regard", input_ids=tokens(11), attention_mask=added):
        assert_close(actual, wanted)


@pytest.mark.parametrize(
    "model_type", ["llama", "mistral", "gemma3_text", "gpt_oss", "llama4_text"]
)
@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
def test_a_text_in_parts(model_type, kind):
    """The text comes in parts of 5, 3, 1 and 8 tokens. The first entry begins with padding."""
    model, ids = build(model_type), tokens(17)
    mask = torch.ones(2, 17, dtype=torch.int64)
    mask[0, :PADDING] = 0
    written = {}
    # transformers 5.24 renamed the argument.
    names = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in names else "past_key_values"
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        words = {"max_cache_len": 24} if kind == "StaticCache" else {}
        cache = getattr(transformers, kind)(config=model.config, **words)
        parts = []
        for start, stop in [(0, 5), (5, 8), (8, 9), (9, 17)]:
            with in_float64(), torch.no_grad():
                part = model(ids[:, start:stop], attention_mask=mask[:, :stop], **{name: cache})
            parts.append(part.logits)
        written[implementation] = torch.cat(parts, dim=1)[mask.bool()]
    assert_close(written["regard"], written["eager"])


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@pytest.mark.parametrize("words", [{}, {"is_causal": False}, {"is_causal": True}], ids=str)
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "gpt2"])
def test_modules_that_are_not_causal(model_type, cache, is_padded, words):
    """An attribute of modules makes a decoder an encoder, exactly where "sdpa" reads it."""
    model = build(model_type)
    changed = [module for module in model.modules() if hasattr(module, "is_causal")]
    inputs = inputs_of(model_type, model.config) | words
    if not is_padded:
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    where = inputs["attention_mask"].bool()
    found = []
    for implementation in ("sdpa", "regard"):
        for is_causal in (True, False):
            for module in changed:
                module.is_causal = is_causal
            # "sdpa" would see the unused entries of the cache.
            if cache is not None and (implementation == "regard" or is_padded):
                inputs["past_key_values"] = transformers.StaticCache(model.config, max_cache_len=40)
            found += results(model, implementation, **inputs)
    causal, free, *actual = (each[where] for each in found)
    for one, other in zip(actual, (causal, free), strict=True):
        assert_close(one, other)
    if not (is_padded or words or cache) and model_type != "mistral":  # its windows are masks
        assert (causal - free).abs().max() > 1e-3
