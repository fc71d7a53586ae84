"""The queries and keys that `python -m regard explore` shows equal the model's."""

import numpy as np
import pytest

import oracle
import regard

TEXT = "In 2024 the cat sat on the mat, naïve 日本 🙂."


@pytest.fixture(scope="module")
def model(smollm2):
    return regard.models.load("smollm2", in_memory=False)


def test_tokens_have_their_texts(model):
    numbers, texts = model.tokens(TEXT)
    assert numbers == model.tokenizer.encode(TEXT).ids
    assert texts[:6] == ["In", " ", "2", "0", "2", "4"]
    assert texts[6:9] == [" the", " cat", " sat"]
    assert "".join(dict.fromkeys(texts[-6:])).endswith("🙂.")
    assert model.tokens("<|im_start|>user")[1] == ["<|im_start|>", "user"]


@pytest.mark.slow
def test_every_layer_is_the_oracles(model, smollm2, monkeypatch):
    numbers, _ = model.tokens(TEXT)
    seen, attend = [], oracle.heads_of

    def recording(query, key, *others, **options):
        seen.append((query, key))
        return attend(query, key, *others, **options)

    monkeypatch.setattr(oracle, "heads_of", recording)
    oracle.llama(*smollm2, np.array(numbers), np.float64)
    steps = []
    recording = model.record(TEXT, progress=lambda *step: steps.append(step))
    assert steps == [(layer, 30) for layer in range(1, 31)]
    for layer, exact in zip(recording, seen, strict=True):
        for actual, heads, wanted in ((layer.query, 9, exact[0]), (layer.key, 3, exact[1])):
            split = wanted.reshape(len(numbers), heads, 64).swapaxes(0, 1)
            assert actual.dtype == np.float32
            assert oracle.distance(actual, split) < 1e-4 * np.sqrt(np.square(split).mean())
