"""Texts packed into one row have the results of each text by itself."""

import pytest

from outcomes import assert_close, in_float64
from zoo import build, regard, torch, transformers

attend = regard.transformers._attention.attend
LENGTHS = [13, 1, 24, 9, 6]
# Windows of 4, soft caps, sinks, chunks of 4, grouped heads.
QUICK = ["llama", "mistral", "gemma2", "gpt_oss", "llama4_text", "modernbert-decoder"]
SLOW = ["qwen3", "gemma3_text", "olmo3", "phi3", "cohere2", "glm4", "granite"]


def texts():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, 40, (length,), generator=generator).tolist() for length in LENGTHS]


def collated(**words):
    """Return one row, as transformers packs it for training."""
    collate = transformers.DataCollatorWithFlattening(return_tensors="pt", **words)
    return dict(collate([{"input_ids": text} for text in texts()]))


# Rotary angles depend on distances, so positions may count through the whole row.
WAYS = {
    "positions": {},
    "flash": {"return_flash_attn_kwargs": True, "return_position_ids": False},
    "both": {"return_flash_attn_kwargs": True},
}


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


def loss_of(logits, labels):
    """Return the sum over all labels, so that texts add up."""
    return torch.nn.functional.cross_entropy(
        logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum"
    )


def alone(model):
    """Compute each text by itself, with eager attention."""
    model.set_attn_implementation("eager")
    logits, loss = [], 0
    for text in texts():
        ids = torch.tensor([text])
        logits.append(model(ids, use_cache=False).logits)
        loss = loss + loss_of(logits[-1], ids)
    return torch.cat(logits, dim=1), gradients(model, loss)


# transformers counts the chunks of Llama 4 by positions, and makes the masks of gpt-oss without
# positions.
IMPOSSIBLE = {("llama4_text", "flash"), ("gpt_oss", "positions")}
CASES = [
    pytest.param(model_type, way, marks=[pytest.mark.slow] if model_type in SLOW else [])
    for model_type in QUICK + SLOW
    for way in WAYS
    if (model_type, way) not in IMPOSSIBLE
]


@pytest.mark.parametrize(("model_type", "way"), CASES)
def test_texts_are_alone(model_type, way, calls):
    model = build(model_type)
    with in_float64():
        wanted, wanted_gradients = alone(model)
        model.set_attn_implementation("regard")
        inputs = collated(**WAYS[way])
        labels = inputs.pop("labels")
        logits = model(**inputs, use_cache=False).logits
        found = gradients(model, loss_of(logits, labels))
    assert calls
    assert_close(logits, wanted)
    assert found.keys() == wanted_gradients.keys()
    for name, gradient in found.items():
        assert_close(gradient, wanted_gradients[name])


def one_row():
    """Return a module that is not causal, and a row of 6 queries, keys and values."""
    module = torch.nn.Module()
    module.is_causal = False
    random = torch.Generator().manual_seed(2)
    return module, *torch.randn(3, 1, 2, 6, 4, generator=random, dtype=torch.float64)


GOOD = torch.tensor([0, 2, 2, 6])
SHOWN = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril(1)
ADDED = torch.arange(36.0, dtype=torch.float64).reshape(1, 1, 6, 6) / 36
MASKS = {"none": None, "bool": SHOWN, "of all queries": SHOWN[:, :, 4:5], "float": ADDED}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", MASKS)
def test_masks_of_users(kind, dtype):
    arguments = one_row()
    within = torch.block_diag(torch.ones(2, 2), torch.ones(4, 4)).bool()
    mask = MASKS[kind]
    if mask is not None:
        within = within & mask if mask.dtype == torch.bool else mask.where(within, -torch.inf)
    wanted = torch.nn.functional.scaled_dot_product_attention(*arguments[1:], attn_mask=within)
    texts = GOOD.to(dtype)
    actual, _ = attend(*arguments, MASKS[kind], cu_seq_lens_q=texts, cu_seq_lens_k=texts)
    assert_close(actual.transpose(1, 2), wanted)


def test_starts_that_change():
    module, query, key, value = one_row()
    texts = GOOD.clone()

    def outcome():
        return attend(module, query, key, value, None, cu_seq_lens_q=texts, cu_seq_lens_k=texts)[0]

    first = outcome()
    assert torch.equal(outcome(), first)
    texts[1:3] = 3
    second = outcome()
    assert not torch.equal(second, first)
    texts[1:3] = 2
    assert torch.equal(outcome(), first)
    with torch.inference_mode():
        texts = GOOD.clone()
        assert torch.equal(outcome(), first)
        texts[1:3] = 3
        assert torch.equal(outcome(), second)
