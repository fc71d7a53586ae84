"""The recipe of the guide that puts regard in the place of PyTorch's attention."""

import re
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'regard[torch]'")

import regard.torch  # noqa: E402

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "torch.md"


def run_recipe(monkeypatch):
    """Return the mode of the guide, and a list that grows by one element at each call of regard."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    (block,) = (block for block in blocks if "class WithRegard" in block)
    attention, calls = regard.torch.scaled_dot_product_attention, []

    def counted(*args, **kwargs):
        calls.append(1)
        return attention(*args, **kwargs)

    monkeypatch.setattr(regard.torch, "scaled_dot_product_attention", counted)
    monkeypatch.setitem(sys.modules, "functional_with_regard", None)
    namespace = {"torch": torch}
    exec(compile(block, str(GUIDE), "exec"), namespace)
    assert calls, "the example of the recipe does not reach regard"
    calls.clear()
    return namespace["WithRegard"], calls
