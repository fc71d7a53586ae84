"""PyTorch's own samples of its modules with attention have the same results when regard computes
it."""

import warnings

import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install '.[conformance]'"
)
pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest")

import regard.torch  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db

NAMES = (
    "MultiheadAttention",
    "Transformer",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
)
CHOSEN = [each for each in module_db if each.module_cls.__name__ in NAMES]


def outcomes(sample, module_class):
    """Return the results and all gradients of a sample, in evaluation mode and in training mode."""
    found = []
    for is_training in (False, True):
        torch.manual_seed(5)
        given = sample.constructor_input
        module = module_class(*given.args, **given.kwargs).double()
        module.train(is_training)
        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
            if isinstance(part, torch.nn.MultiheadAttention):
                part.dropout = 0.0
        call, words = sample.forward_input, {}
        if module_class is torch.nn.MultiheadAttention:
            words["need_weights"] = False  # with weights, the module does not call the function
        result = module(*call.args, **call.kwargs | words)
        outputs = [x for x in (result if isinstance(result, tuple) else (result,)) if x is not None]
        sum(x.sin().sum() for x in outputs).backward()
        found += [*outputs, *(p.grad for p in module.parameters() if p.grad is not None)]
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", CHOSEN, ids=lambda info: info.module_cls.__name__)
def test_samples(info):
    samples = [
        sample
        for is_training in (False, True)
        for sample in info.module_inputs_func(
            info,
            device="cpu",
            dtype=torch.float64,
            requires_grad=False,
            training=is_training,
        )
    ]
    assert samples
    count = 0
    for sample in samples:
        wanted = outcomes(sample, info.module_cls)
        with regard.torch.replacing_sdpa() as calls:
            actual = outcomes(sample, info.module_cls)
        assert not calls.by_pytorch
        count += calls.by_regard
        for one, other in zip(actual, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11, equal_nan=True)
    assert count


def test_all_modules_with_attention_have_samples():
    assert {each.module_cls.__name__ for each in CHOSEN} == set(NAMES)
