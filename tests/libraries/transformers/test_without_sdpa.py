"""Models that `"sdpa"` refuses have the results of eager attention, even in parts that look into
masks themselves, or that claim to be causal but are not."""

import warnings

import pytest

import zoo
from outcomes import assert_close, in_float64
from tiny import VOCABULARY, tiny_config
from zoo import LENGTH, torch, transformers

TEXTS = zoo.Kind("texts", "AutoModel", {}, "")
MODELS = {
    "align_text_model": "AlignTextModel",
    "bloom": "BloomModel",
    "bridgetower": "BridgeTowerModel",  # one mask row serves all queries; images have no mask
    "clap_text_model": "ClapTextModel",
    "gemma4_audio": "Gemma4AudioModel",  # its attention cuts blocks from a mask itself
    "git": "GitModel",  # its text part computes attention itself, and it refuses unknown names
    "megatron-bert": "MegatronBertModel",
    "mpnet": "MPNetModel",
    "mpt": "MptModel",
    "roformer": "RoFormerModel",
    "xglm": "XGLMForCausalLM",
}
SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
CHANGES = {
    "bridgetower": SIZES
    | {
        "text_config": SIZES
        | {"intermediate_size": 48, "vocab_size": VOCABULARY, "initializer_factor": 2.0}
        | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        "vision_config": SIZES | {"num_hidden_layers": 3, "patch_size": 4, "image_size": 16},
    }
}


def built(model_type, implementation):
    config = tiny_config(model_type, **CHANGES.get(model_type, {}))
    kind = getattr(transformers, MODELS[model_type])
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tiny sizes make some tensors empty.
        model = kind._from_config(config, attn_implementation=implementation)
    return model.double().eval()


def inputs_of(name, padding):
    random = torch.Generator().manual_seed(2)
    inputs = zoo.inputs_of(name, None, padding=padding, kind=TEXTS)
    if name == "gemma4_audio":
        mask = inputs.get("attention_mask", torch.ones(2, LENGTH))
        features = torch.randn(2, 64, 128, generator=random, dtype=torch.float64)
        return {"input_features": features, "attention_mask": mask.bool().repeat(1, 6)[:, :64]}
    if name == "bridgetower":
        inputs["pixel_values"] = torch.randn(2, 3, 16, 16, generator=random, dtype=torch.float64)
    return inputs


def result_of(model, inputs):
    with in_float64(), torch.no_grad():
        output = model(**inputs)
    first = [x for x in output.to_tuple() if isinstance(x, torch.Tensor) and x.ndim > 2]
    return first[:2] if isinstance(model, transformers.BridgeTowerModel) else first[:1]


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_same_as_eager(name, padding):
    inputs = inputs_of(name, padding)
    model = built(name, "eager")
    wanted = result_of(model, inputs)
    if name == "git":
        model.set_attn_implementation("regard")
    else:
        model = built(name, "regard")
    assert model.config._attn_implementation == "regard"
    for x, y in zip(result_of(model, inputs), wanted, strict=True):
        if "attention_mask" in inputs and x.shape[1] == LENGTH and name != "gemma4_audio":
            real = inputs["attention_mask"].bool()
            x, y = x[real], y[real]
        assert_close(x, y)
