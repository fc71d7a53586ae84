"""Public names are in the reference, with all arguments; options are keywords."""

import inspect
import re
from pathlib import Path

import pytest

import regard

PAGES = sorted((Path(__file__).parent.parent.parent / "docs" / "api").glob("*.md"))
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
MODULES = ("checkpoints", "layers", "masks", "models", "positional")
NAMES = [
    *((name, getattr(regard, name)) for name in regard.__all__ if name != "plot"),
    *(
        (f"{module}.{name}", getattr(getattr(regard, module), name))
        for module in MODULES
        for name in getattr(regard, module).__all__
    ),
]
# The arguments that may be given by position although they have a default.
BY_POSITION = {
    *("query", "key", "value", "mask", "value_dim", "axis", "mode", "tokens", "starts"),
    "head_gates",
    *("kv_len", "key_ids", "key_segments", "indices", "positions", "base", "rotary_dim", "prefix"),
    *("weight", "eps", "temperature", "derivative", "user_data", "dtype"),
}
# Classes that only regard makes.
RESULTS = (
    regard.AttentionGradients,
    regard.AttentionSummary,
    regard.Explorer,
    regard.LinearAttentionGradients,
    regard.ShownWeights,
)


@pytest.mark.parametrize(("name", "thing"), NAMES, ids=[name for name, _ in NAMES])
def test_a_public_name_is_documented(name, thing):
    if isinstance(thing, str) or inspect.ismodule(thing):
        return
    assert (thing.__doc__ or "").strip()
    short = name.rpartition(".")[2]
    module = re.escape(f"regard.{name}".rpartition(".")[0])
    documented = rf"^\.\. auto(module:: {module}\n   :members:|\w+:: ({module}\.)?{short})$"
    assert re.search(documented, REFERENCE, re.M)
    if name.startswith("models."):
        assert "experimental" in thing.__doc__.lower()
    if not callable(thing) or thing in RESULTS or thing is regard.models.Model:
        return
    for parameter in inspect.signature(thing).parameters.values():
        assert re.search(rf"\b{parameter.name}\b", thing.__doc__), parameter.name
        has_default = parameter.default is not parameter.empty
        if has_default and parameter.kind != parameter.KEYWORD_ONLY:
            assert parameter.name in BY_POSITION, parameter.name
