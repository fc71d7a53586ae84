"""Models that `"sdpa"` refuses have the results of eager attention, even in parts that look into
masks themselves, or that claim to be causal but are not."""

import copy
import warnings

import pytest

from outcomes import assert_close, in_float64
from tiny import VOCABULARY, tiny_config
from zoo import torch, transformers

LENGTH = 11
TEXT = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.2,
    "initializer_factor": 2.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
IMAGE = {"hidden_size": 128, "num_hidden_layers": 3, "patch_size": 4, "image_size": 16}


def of_type(model_type, auto="AutoModel"):
    config = tiny_config(model_type)
    kind = getattr(transformers, auto)._model_mapping[type(config)]
    return kind, config


def bridgetower():
    """Return a model in which one mask row serves all queries, images have no mask, and modules
    claim to be causal."""
    config = transformers.BridgeTowerConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        text_config=TEXT,
        vision_config=IMAGE,
    )
    return transformers.BridgeTowerModel, config


def gemma4_audio():
    """Return a model whose attention cuts blocks from a mask itself."""
    config = transformers.Gemma4AudioConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    return transformers.Gemma4AudioModel, config


MODELS = {
    "splinter": lambda: of_type("splinter"),
    "align text": lambda: (transformers.AlignTextModel, transformers.AlignTextConfig(**TEXT)),
    "clap text": lambda: (transformers.ClapTextModel, transformers.ClapTextConfig(**TEXT)),
    "bridgetower": bridgetower,
    "gemma4 audio": gemma4_audio,
    "bloom": lambda: of_type("bloom"),
    "mpt": lambda: of_type("mpt"),
    "roformer": lambda: of_type("roformer"),
    "mpnet": lambda: of_type("mpnet"),
    "xglm": lambda: of_type("xglm", "AutoModelForCausalLM"),
    "megatron-bert": lambda: of_type("megatron-bert"),
    "gemma2": lambda: of_type("gemma2"),
}
# The text part of this model computes attention itself, but its configuration refuses unknown
# names.
SWITCHED = {"git": lambda: of_type("git")}


def built(make, implementation):
    kind, config = make()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tiny sizes make some tensors empty.
        model = kind._from_config(copy.deepcopy(config), attn_implementation=implementation)
    return model.double().eval()


def inputs_of(name, padding):
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY // 2, (2, LENGTH), generator=random)
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[0, {"left": slice(3), "right": slice(-3, None), None: slice(0)}[padding]] = 0
    inputs = {"input_ids": ids}
    if name == "gemma4 audio":
        features = torch.randn(2, 64, 128, generator=random, dtype=torch.float64)
        return {"input_features": features, "attention_mask": mask.bool().repeat(1, 6)[:, :64]}
    if name == "bridgetower":
        inputs["pixel_values"] = torch.randn(2, 3, 16, 16, generator=random, dtype=torch.float64)
    return inputs if padding is None else inputs | {"attention_mask": mask}


def result_of(model, inputs):
    with in_float64(), torch.no_grad():
        output = model(**inputs)
    first = [x for x in output.to_tuple() if isinstance(x, torch.Tensor) and x.ndim > 2]
    return first[:2] if isinstance(model, transformers.BridgeTowerModel) else first[:1]


def assert_same(actual, wanted, inputs, name):
    for x, y in zip(actual, wanted, strict=True):
        if "attention_mask" in inputs and x.shape[1] == LENGTH and name != "gemma4 audio":
            real = inputs["attention_mask"].bool()
            x, y = x[real], y[real]
        assert_close(x, y)


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", [*MODELS, *SWITCHED])
def test_same_as_eager(name, padding):
    inputs = inputs_of(name, padding)
    if name in SWITCHED:
        actual = built(SWITCHED[name], "eager")
        wanted = result_of(actual, inputs)
        actual.set_attn_implementation("regard")
    else:
        actual = built(MODELS[name], "regard")
        wanted = result_of(built(MODELS[name], "eager"), inputs)
    assert actual.config._attn_implementation == "regard"
    assert_same(result_of(actual, inputs), wanted, inputs, name)
