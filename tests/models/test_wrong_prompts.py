"""Wrong calls of a language model, which leave its caches as they were."""

import pytest

from messages import check, each

pytest.importorskip("tokenizers")
pytest.importorskip("gguf")
from tiny_llama import tiny_llama

WRONG = [
    (lambda m, c: list(m.generate("")), ValueError, "prompt must have at least one token ... none"),
    (lambda m, c: list(m.generate([1.5])), TypeError, "prompt must"),
    (lambda m, c: list(m.generate(None)), TypeError, "prompt must"),
    (lambda m, c: list(m.generate([999])), ValueError, "tokens must be from 0 to 258 ... got 999"),
    (lambda m, c: list(m.generate("a", -1)), ValueError, "max_tokens must be at least 0, got -1"),
    (lambda m, c: list(m.generate("a", temperature=-1)), ValueError, "temperature ... got -1"),
    (lambda m, c: list(m.generate("a", top_p=2)), ValueError, "top_p must be at most 1, got 2"),
    (lambda m, c: list(m.generate("a", rng="x")), TypeError, "rng must be None, an int"),
    (lambda m, c: m([1, 2], m.caches()), ValueError, "tokens must have shape ... got (2,)"),
    (
        lambda m, c: m([[1, 2]], c),
        ValueError,
        "tokens must have the batch axis ... got 1",
    ),
    (lambda m, c: m([1, 2], c, [0, 2]), ValueError, "starts must be ... got shape (2,)"),
    (lambda m, c: m([1, 2], c, [0, 1, 3]), ValueError, "starts must end with the number of tokens"),
    (lambda m, c: m([1, 2], c, [0, 2, 1]), ValueError, "starts must"),
    (lambda m, c: m([[1], [2]], c[:2]), ValueError, "caches ... each of 3 layers, got 2"),
    (lambda m, c: m.record("a", layers=[3]), ValueError, "layers must be ... 2, got 3"),
    (lambda m, c: m.record(""), ValueError, "text must have at least one token, got none"),
    (lambda m, c: m.record("a", layers=[]), ValueError, "layers must name at least one layer"),
]


@each(WRONG)
def test_calls(wrong, error, parts):
    model = tiny_llama()
    caches = model.caches(2)
    check(lambda: wrong(model, caches), error, parts)
    assert caches.lengths.tolist() == [0, 0]
