"""Test models in training and in evaluation: dropout, checkpoints, types, weights, switches."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from in_float64 import in_float64
from zoo import PADDING, build, inputs_of, regard, result_of, torch, transformers

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


def test_dropout_keeps_the_mean():
    """This tests one attention call, since a model is not linear in its weights. The mean sum of a
    row's weights is 1."""
    torch.manual_seed(1)
    query = torch.randn(1, 4, 64, 8, dtype=torch.float64)
    ones = torch.ones(1, 4, 64, 8, dtype=torch.float64)
    module = torch.nn.Module()
    module.is_causal = False
    draws = [attend(module, query, query, ones, None, dropout=0.25)[0] for _ in range(50)]
    sums = torch.stack(draws)[..., 0]
    weights = torch.softmax(query @ query.mT * 8**-0.5, dim=-1)
    variance = (weights.square().sum(-1) * (0.25 / 0.75)).mean() / sums.numel()
    assert abs(sums.mean() - 1) < 5 * variance.sqrt()
    assert sums.std() > 0.05


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "bert"])
def test_gradient_checkpointing(model_type, use_reentrant):
    """Recomputation drops the same weights."""
    changes = {"bert": {"attention_probs_dropout_prob": 0.4}}.get(
        model_type, {"attention_dropout": 0.4}
    )
    model, inputs = trained(model_type, **changes)
    wanted = gradients(model, inputs)
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    actual = gradients(model, inputs)
    assert torch.equal(actual[0], wanted[0])
    assert len(actual[1]) == len(wanted[1])
    for x, y in zip(actual[1], wanted[1], strict=True):
        assert (x - y).abs().max() <= 1e-12 * max(1, y.abs().max())


def functional(model):
    """Return the logits as a function of the parameters and one batch entry."""

    def logits(parameters, ids):
        words = {"use_cache": False}
        return torch.func.functional_call(model, parameters, (ids[None],), words).logits[0]

    return logits, dict(model.named_parameters())


def gradients_of_each_entry(model, ids):
    logits, parameters = functional(model)
    loss = torch.func.grad(lambda p, x: logits(p, x).square().mean())
    return torch.func.vmap(loss, (None, 0))(parameters, ids)


def derivative(model, ids):
    logits, parameters = functional(model)
    directions = {name: torch.ones_like(x) for name, x in parameters.items()}
    return {"": torch.func.jvp(lambda p: logits(p, ids[0]), (parameters,), (directions,))[1]}


def gradients_of_gradients(model, ids):
    parameters = dict(model.named_parameters())
    loss = model(ids, use_cache=False).logits.square().mean()
    first = torch.autograd.grad(loss, parameters.values(), create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), parameters.values())
    return dict(zip(parameters, second, strict=True))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own
@pytest.mark.parametrize("derive", [gradients_of_each_entry, derivative, gradients_of_gradients])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_other_derivatives(model_type, derive):
    model = build(model_type)
    ids = inputs_of(model_type, model.config)["input_ids"]
    found = []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        with in_float64():
            found.append(derive(model, ids))
    wanted, actual = found
    for name, x in wanted.items():
        error = (actual[name] - x).abs().max()
        assert error <= 1e-10 * max(1, x.abs().max()), name


def test_an_entry_of_padding_alone():
    """The other entry keeps its results and gradients."""
    model = build("llama")
    inputs = inputs_of("llama", model.config)
    inputs["attention_mask"][0] = 0
    found = []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        model.zero_grad(set_to_none=True)
        with in_float64():
            logits = model(**inputs).logits[1]
        logits.square().sum().backward()
        found.append([logits.detach(), *(p.grad for p in model.parameters())])
    for x, y in zip(*found, strict=True):
        assert y.isfinite().all()
        assert (x - y).abs().max() <= 1e-10 * max(1, x.abs().max())


def test_the_label_that_padding_predicts():
    """The loss depends on the last row of padding, unless the first real label is left out."""
    model = build("llama")
    inputs = inputs_of("llama", model.config)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    left_out = labels.clone()
    left_out[0, PADDING] = -100
    losses = []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        with in_float64(), torch.no_grad():
            losses.append([model(**inputs, labels=x).loss.item() for x in (labels, left_out)])
    (eager, eager_without), (ours, ours_without) = losses
    assert abs(ours - eager) > 1e-4
    assert abs(ours_without - eager_without) < 1e-12


def test_threads():
    model = build("mistral")
    model.set_attn_implementation("regard")
    inputs = inputs_of("mistral", model.config)
    wanted = model(**inputs).logits
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: model(**inputs).logits, range(24))
        assert all(torch.equal(logits, wanted) for logits in found)


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


def test_autocast():
    pytest.importorskip("ml_dtypes", reason="pip install ml_dtypes")
    model = build("llama", torch.float32)
    inputs = inputs_of("llama", model.config)
    outcomes = []
    for implementation in ("sdpa", "regard"):
        model.set_attn_implementation(implementation)
        with torch.autocast("cpu", torch.bfloat16):
            outcomes.append(model(**inputs).logits[inputs["attention_mask"].bool()])
    assert outcomes[0].dtype == outcomes[1].dtype
    error = (outcomes[0] - outcomes[1]).abs().max() / outcomes[0].abs().max()
    assert error < 8 * torch.finfo(torch.bfloat16).eps


def test_saved_and_loaded(tmp_path):
    """A saved model does not record which attention it had, so it loads without regard."""
    model = build("llama")
    model.set_attn_implementation("regard")
    inputs = inputs_of("llama", model.config)
    model.save_pretrained(tmp_path)
    assert "regard" not in (tmp_path / "config.json").read_text(encoding="utf-8")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="regard", dtype=torch.float64
    )
    assert loaded.config._attn_implementation == "regard"
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)


def test_a_part_of_a_model(calls):
    model = build("llava")
    model.set_attn_implementation({"text_config": "regard", "vision_config": "sdpa"})
    model(**inputs_of("llava", model.config), pixel_values=None)
    assert calls
    assert all("Llama" in type(module).__name__ for module in calls)


def test_weights_are_not_returned():
    """As with `sdpa`, they are not returned, whether a configuration or a call requests them."""
    model = build("bert")
    inputs = inputs_of("bert", model.config)
    for implementation in ("sdpa", "regard"):
        model.set_attn_implementation(implementation)
        assert not model(**inputs, output_attentions=True).attentions
        with pytest.raises(ValueError, match="output_attentions"):
            model.config.output_attentions = True


def test_sinks_of_each_query():
    """Sinks that differ between queries are one more column of the scores."""
    torch.manual_seed(0)
    shape = 2, 4, 5, 8
    query, key, value = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    sinks = torch.randn(2, 4, 5, 1, dtype=torch.float64, requires_grad=True)
    module = torch.nn.Module()
    module.is_causal = True
    actual, _ = attend(module, query, key, value, None, sinks=sinks)
    scores = query @ key.mT * 8**-0.5
    scores = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
    weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    wanted = (weights @ value).transpose(1, 2)
    factors = torch.randn_like(wanted)
    inputs = query, key, value, sinks
    of_actual, of_wanted = (
        torch.autograd.grad((x * factors).sum(), inputs) for x in (actual, wanted)
    )
    assert (actual - wanted).abs().max() < 1e-14
    for x, y in zip(of_actual, of_wanted, strict=True):
        assert (x - y).abs().max() < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_missing_packages(missing, output_of):
    script = f"""
    import sys
    sys.modules[{missing!r}] = None
    try:
        import regard.transformers
    except ImportError as error:
        print(error)
    """
    told = output_of(script)
    assert f"needs the {missing} package" in told
    assert 'pip install ".[' in told


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


@pytest.mark.slow
def test_compiled_layers():
    """The masks are made outside the graphs."""
    model = build("llama")
    model.set_attn_implementation("regard")
    inputs = inputs_of("llama", model.config)
    with torch.no_grad():
        wanted = model(**inputs).logits
        for layer in model.model.layers:
            layer.compile(backend="aot_eager")
        assert_close(model(**inputs).logits, wanted)


@pytest.mark.slow
def test_exported():
    model = build("llama")
    model.set_attn_implementation("regard")
    inputs = inputs_of("llama", model.config) | {"use_cache": False}
    program = torch.export.export(model, (), kwargs=inputs, strict=False)
    real = inputs["attention_mask"].bool()
    assert_close(program.module()(**inputs).logits[real], model(**inputs).logits[real])


def assert_close(actual, wanted):
    assert (actual - wanted).abs().max() <= 1e-12 * max(1, wanted.abs().max())
