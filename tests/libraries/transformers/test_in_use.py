"""Test models in training and in evaluation: dropout, checkpoints, types, weights, switches."""

import pytest

from outcomes import assert_close, in_float64
from zoo import build, inputs_of, regard, result_of, torch

attend = regard.transformers._attention.attend


def gradients(model, inputs, seed=0):
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    result = result_of(model(**inputs))
    result.square().sum().backward()
    return result.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def trained(model_type, **changes):
    model = build(model_type, **changes)
    model.set_attn_implementation("regard")
    return model.train(), inputs_of(model_type, model.config)


DROPPED = {"llama": {"attention_dropout": 0.4}, "gpt2": {"attn_pdrop": 0.4}}


@pytest.mark.parametrize("model_type", DROPPED)
def test_dropout_follows_from_the_seed(model_type):
    model, inputs = trained(model_type, **DROPPED[model_type])
    first, again = (gradients(model, inputs, seed=5) for _ in range(2))
    other, _ = gradients(model, inputs, seed=6)
    assert torch.equal(first[0], again[0])
    assert all(map(torch.equal, first[1], again[1]))
    assert not torch.equal(first[0], other)
    model.eval()
    assert not torch.equal(gradients(model, inputs)[0], first[0])


DROPPED |= {"bert": {"attention_probs_dropout_prob": 0.4}, "t5": {"dropout_rate": 0.4}}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "bert", "t5"])
def test_gradient_checkpointing(model_type, use_reentrant):
    """Recomputation drops the same weights, and adds the same position biases."""
    model, inputs = trained(model_type, **DROPPED.get(model_type, {}))
    wanted = gradients(model, inputs)
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    actual = gradients(model, inputs)
    assert torch.equal(actual[0], wanted[0])
    assert len(actual[1]) == len(wanted[1])
    for x, y in zip(actual[1], wanted[1], strict=True):
        assert_close(x, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    """The error is at most twice the error of `sdpa`."""
    pytest.importorskip("ml_dtypes", reason="pip install ml_dtypes")
    wide = build("llama")
    inputs = inputs_of("llama", wide.config)
    with in_float64():
        wanted = wide(**inputs).logits
    model = build("llama", dtype)
    errors = {}
    for implementation in ("sdpa", "regard"):
        model.set_attn_implementation(implementation)
        logits = model(**inputs).logits
        assert logits.dtype == dtype
        difference = (logits.double() - wanted)[inputs["attention_mask"].bool()]
        errors[implementation] = difference.abs().max()
    assert errors["regard"] <= 2 * errors["sdpa"] < 64 * torch.finfo(dtype).eps * wanted.abs().max()


def test_a_part_of_a_model(calls):
    model = build("llava")
    model.set_attn_implementation({"text_config": "regard", "vision_config": "sdpa"})
    model(**inputs_of("llava", model.config), pixel_values=None)
    assert calls
    assert all("Llama" in type(module).__name__ for module in calls)


@pytest.mark.parametrize("model_type", ["kimi_linear", "qwen3_next"])
def test_delta_rules(model_type, monkeypatch):
    """Linear layers call regard for a prompt and for each new token, if it is their model's."""
    model, lengths, rule = build(model_type), [], regard.torch.linear_attention

    def counted(query, *tensors, **options):
        lengths.append(query.shape[-2])
        return rule(query, *tensors, **options)

    monkeypatch.setattr(regard.torch, "linear_attention", counted)
    inputs = inputs_of(model_type, model.config)
    for name, wanted in (("eager", []), ("regard", [inputs["input_ids"].shape[1], 1, 1])):
        model.set_attn_implementation(name)
        model.generate(**inputs, min_new_tokens=3, max_new_tokens=3)
        assert lengths == wanted


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "mistral", "bert"])
def test_compiled(model_type):
    """The whole model is one graph."""
    model = build(model_type)
    model.set_attn_implementation("regard")
    inputs = inputs_of(model_type, model.config)
    wanted = gradients(model, inputs)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    actual = gradients(compiled, inputs)
    real = inputs["attention_mask"].bool()
    assert_close(actual[0][real], wanted[0][real])
    for x, y in zip(actual[1], wanted[1], strict=True):
        assert_close(x, y)
