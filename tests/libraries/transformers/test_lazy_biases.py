"""Biases of T5-like models are made as tables: models make no array of all pairs of tokens, and any
other code that reads a bias gets the elements and the gradients of the array."""

import pytest

from outcomes import errors, outcome
from zoo import build, inputs_of, regard, torch, transformers

TYPES = "t5", "mt5", "umt5", "switch_transformers"
OF_DISTANCES, NOTHING, ALL = "distance_bias", "nothing", "float mask"
LazyTensor = regard.transformers._lazy_tensor.LazyTensor
DistanceBias = regard.transformers._lazy_bias.DistanceBias
# No other axis of the models has these lengths.
LENGTH, TARGETS = 53, 59


class NoSquares(torch.utils._python_dispatch.TorchDispatchMode):
    """Check that no operator returns as many elements as pairs of tokens that attend to each
    other."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not isinstance(result, LazyTensor):
            assert sorted(result.shape[-2:]) not in ([LENGTH] * 2, [TARGETS] * 2), operator
            assert sorted(result.shape[:2]) not in ([LENGTH] * 2, [TARGETS] * 2), operator
        return result


def long_inputs(model_type, padding):
    generator = torch.Generator().manual_seed(3)
    ids, targets = (
        torch.randint(3, 40, (2, length), generator=generator) for length in (LENGTH, TARGETS)
    )
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[0, :padding] = 0
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": targets}


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("model_type", TYPES)
def test_no_square(model_type, padding, biases, monkeypatch):
    """This covers tokens that see each other: the model itself makes the zeros of cross
    attention."""
    model = build(model_type)
    inputs = long_inputs(model_type, padding)
    wanted = outcome(model, "eager", inputs)
    if model_type == "switch_transformers":
        # Its encoder makes its own mask. Only the decoder's mask shows which model it is.
        outcome(model, "regard", inputs)
        biases.clear()

    def refuse(self):
        raise AssertionError("the elements of a bias were made")

    monkeypatch.setattr(LazyTensor, "array", refuse)
    with NoSquares():
        actual = outcome(model, "regard", inputs)
    assert max(errors(actual, wanted)) <= 1e-10
    assert ALL not in biases


def test_squares_are_found():
    with NoSquares(), pytest.raises(AssertionError, match=r"aten\."):
        outcome(build("t5"), "eager", long_inputs("t5", 0))


DECODERS = {
    "pix2struct": ("Pix2StructTextModel", "Pix2StructTextConfig"),
    "pop2piano": ("Pop2PianoForConditionalGeneration", "Pop2PianoConfig"),
    "longt5": ("LongT5ForConditionalGeneration", "LongT5Config"),
}


@pytest.mark.parametrize("name", DECODERS)
def test_other_decoders(name, biases):
    kind, config = (getattr(transformers, each) for each in DECODERS[name])
    words = {"vocab_size": 99, "hidden_size": 32, "d_model": 32, "d_kv": 8, "d_ff": 48}
    words |= {"num_layers": 2, "num_heads": 4, "initializer_factor": 2.0, "is_decoder": True}
    words |= {"initializer_range": 0.2}
    if name != "pix2struct":
        words |= {"is_encoder_decoder": True, "decoder_start_token_id": 1} | {"is_decoder": False}
    torch.manual_seed(0)
    model = kind._from_config(config(**words), attn_implementation="eager").double().eval()
    ids = torch.randint(3, 40, (2, 9))
    states = torch.randn(2, 6, 32, dtype=torch.float64)
    inputs = {"decoder_input_ids": ids, "encoder_outputs": (states,)}
    if name == "pix2struct":
        inputs = {"input_ids": ids, "encoder_hidden_states": states, "use_cache": False}
    wanted = outcome(model, "eager", inputs)
    assert max(errors(outcome(model, "regard", inputs), wanted)) <= 1e-10
    assert biases == [OF_DISTANCES, NOTHING] * 2


def self_attention():
    """Return the module of an encoder that computes the bias."""
    return build("t5").encoder.block[0].layer[0].SelfAttention


def lazily(module, q_len=7, kv_len=7, offset=0):
    """Return what a module computes if regard reads it, and what it computes otherwise."""
    regard.transformers._lazy_bias.compute_lazily(type(module.config))
    found = []
    for name in ("regard", "eager"):
        module.config._attn_implementation = name
        found.append(module.compute_bias(q_len, kv_len, past_seen_tokens=offset))
    assert isinstance(found[0], DistanceBias)
    assert type(found[1]) is torch.Tensor
    return found


@pytest.mark.parametrize("shape", [(7, 7, 0), (2, 9, 7), (5, 3, 0), (3, 12, 4), (4, 2, 30)])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_elements(stack, shape):
    module = getattr(build("t5"), stack).block[0].layer[0].SelfAttention
    actual, wanted = lazily(module, *shape)
    assert actual.shape == wanted.shape
    assert actual.dtype == wanted.dtype
    assert actual.requires_grad
    assert torch.equal(actual.clone(), wanted)
    assert "DistanceBias(Distances(table=" in repr(actual)


USES = {
    "sum of squares": lambda bias: bias.square().sum(),
    "part": lambda bias: bias[:, 1, 2:].exp().sum(),
    "with a mask": lambda bias: torch.softmax(bias + torch.eye(7, dtype=bias.dtype), -1)[
        ..., 3
    ].sum(),
    "detached": lambda bias: (bias.detach().square() * bias).sum(),
    "written to": lambda bias: bias.mul_(bias.detach().clone()).sin().sum(),
    "table and elements": lambda bias: bias.sin().sum() + bias.transpose(2, 3).cos().sum(),
}


@pytest.mark.parametrize("use", USES)
def test_gradients_of_elements(use):
    """A model may use the bias for anything."""
    module = self_attention()
    weight = module.relative_attention_bias.weight
    found = [torch.autograd.grad(USES[use](bias), weight)[0] for bias in lazily(module)]
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_gradients_of_gradients_of_elements():
    module = self_attention()
    weight = module.relative_attention_bias.weight
    found = []
    for bias in lazily(module):
        (first,) = torch.autograd.grad(bias.exp().sum(), weight, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), weight)[0])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def add(bias):
    return bias + torch.arange(7.0, dtype=bias.dtype)


def write(bias):
    bias[:, :, 2, 3] -= 1
    return bias


def detach(bias):
    return bias.detach()


def new_leaf(bias):
    return bias.detach().requires_grad_()


EDITS = {add: ALL, write: ALL, detach: OF_DISTANCES, new_leaf: ALL}


@pytest.mark.parametrize("edit", EDITS)
def test_a_lazy_bias_that_is_changed(edit, biases):
    """The lazy bias has the same gradients as the array."""
    module = self_attention()
    hidden = torch.randn(2, 7, 32, dtype=torch.float64)
    outcomes = []
    for name, bias in zip(("regard", "eager"), map(edit, lazily(module)), strict=True):
        module.config._attn_implementation = name
        module.zero_grad()
        result = module(hidden, position_bias=bias)[0]
        result.square().sum().backward()
        weight = module.relative_attention_bias.weight.grad
        leaf = bias.grad if bias.is_leaf else None
        outcomes.append([result, module.q.weight.grad.clone(), weight, leaf])
    for actual, wanted in zip(*outcomes, strict=True):
        assert (actual is None) == (wanted is None)
        if wanted is not None:
            torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-10)
    assert biases == [EDITS[edit]]


def test_what_transforms_gets_the_array():
    module = self_attention()
    lazily(module)
    module.config._attn_implementation = "regard"
    kinds = []

    def of_weight(weight):
        name = "relative_attention_bias.weight"
        call = torch.func.functional_call(Computing(module), {f"module.{name}": weight}, ())
        kinds.append(type(call))
        return call.sum()

    torch.func.grad(of_weight)(module.relative_attention_bias.weight.detach())
    with torch.autograd.forward_ad.dual_level():
        kinds.append(type(module.compute_bias(7, 7)))
    assert DistanceBias not in kinds
    assert type(module.compute_bias(1, 7)) is torch.Tensor
    assert type(module.to("meta").compute_bias(7, 7)) is torch.Tensor


class Computing(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self):
        return self.module.compute_bias(7, 7)


def test_a_bias_of_more_than_distances():
    """A class that computes something else keeps its method."""
    lazy = regard.transformers._lazy_bias._lazy

    class Other(type(self_attention())):
        pass

    module = self_attention()
    original = Other.compute_bias.__wrapped__

    def of_positions(self, query_length, key_length, device=None, past_seen_tokens=0):
        bias = original(self, query_length, key_length, device, past_seen_tokens)
        return bias * torch.arange(1, key_length + 1)

    Other.compute_bias = lazy(of_positions)
    module.__class__ = Other
    module.config._attn_implementation = "regard"
    assert type(module.compute_bias(5, 6)) is torch.Tensor
    assert torch.equal(module.compute_bias(5, 6), of_positions(module, 5, 6))


def test_models_of_others_are_not_changed():
    """Only transformers classes are known to compute their biases from distances."""

    class Config(transformers.T5Config):
        pass

    class Attention(torch.nn.Module):
        def compute_bias(self, query_length, key_length, device=None, past_seen_tokens=0):
            raise NotImplementedError

    class Model(transformers.T5PreTrainedModel):
        config_class = Config

    before = Attention.compute_bias
    globals()["Attention"] = Attention
    try:
        regard.transformers._lazy_bias.compute_lazily(Config)
    finally:
        del globals()["Attention"]
    assert Model in regard.transformers._models.models_of(Config)
    assert Attention.compute_bias is before


@pytest.mark.slow
def test_compiled(biases):
    torch._dynamo.reset()
    model = build("t5")
    inputs = inputs_of("t5", model.config)
    wanted = outcome(model, "regard", inputs)
    model.compile(backend="aot_eager")
    assert max(errors(outcome(model, "regard", inputs), wanted)) <= 1e-10
