"""regard computes the calls that `"sdpa"` models make of PyTorch's function."""

import pytest

from in_float64 import in_float64
from outcomes import errors, outcome
from zoo import build, inputs_of, regard, types

pytestmark = pytest.mark.skipif(
    not hasattr(regard.torch, "replacing_sdpa"), reason="regard.torch.replacing_sdpa is missing"
)


@pytest.mark.parametrize("model_type", types())
def test_zoo(model_type, calls):
    """Results and gradients equal the results of eager attention."""
    model = build(model_type)
    if not model._supports_sdpa:
        pytest.skip("the model does not call PyTorch's function")
    inputs = inputs_of(model_type, model.config)
    with in_float64():
        wanted = outcome(model, "eager", inputs)
        with regard.torch.replacing_sdpa() as replaced:
            actual = outcome(model, "sdpa", inputs)
    assert replaced.by_regard
    assert not replaced.by_pytorch
    assert not calls
    assert actual[0].isfinite().all()
    assert max(errors(actual, wanted)) <= 1e-10
