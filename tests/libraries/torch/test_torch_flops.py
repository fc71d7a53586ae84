"""PyTorch's counter of floating-point operations counts regard's operators as its own."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch.utils.flop_counter import (  # noqa: E402
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

import regard.torch  # noqa: E402

SHAPES = {
    "equal": ((2, 4, 5, 8), (2, 4, 9, 8), (2, 4, 9, 8)),
    "value_dim": ((2, 4, 5, 8), (2, 4, 9, 8), (2, 4, 9, 6)),
    "groups": ((2, 4, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6)),
    "no keys": ((2, 4, 5, 8), (2, 2, 0, 8), (2, 2, 0, 6)),
}


def counted(function):
    with FlopCounterMode(display=False) as counter:
        result = function()
    return counter.get_total_flops(), result


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.5}], ids=str)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_attention(shapes, options):
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    count, output = counted(
        lambda: regard.torch.scaled_dot_product_attention(*tensors, enable_gqa=True, **options)
    )
    assert count == sdpa_flop_count(*shapes)
    count, _ = counted(lambda: torch.autograd.grad(output.sum(), tensors))
    assert count == sdpa_backward_flop_count(output.shape, *shapes)


def test_packed_sequences():
    """The counts are those of separate calls."""
    starts = torch.tensor([0, 3, 7]), torch.tensor([0, 5, 6])
    tensors = [torch.randn(total, 4, 8, requires_grad=True) for total in (7, 6, 6)]
    count, output = counted(
        lambda: regard.torch.scaled_dot_product_attention_ragged(*tensors, *starts)
    )
    shapes = [[(1, 4, n, 8) for n in lengths] for lengths in ((3, 5, 5), (4, 1, 1))]
    assert count == sum(sdpa_flop_count(*each) for each in shapes)
    count, _ = counted(lambda: torch.autograd.grad(output.sum(), tensors))
    assert count == sum(sdpa_backward_flop_count(each[0], *each) for each in shapes)
