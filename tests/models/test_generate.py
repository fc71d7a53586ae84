"""Language models continue texts: the API and the command, with models of random numbers."""

import numpy as np
import pytest

import regard
from llama_models import assert_close, computed, parameters, tiny_llama, write_folder
from regard._cli import main

pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")
pytest.importorskip("gguf")


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes a model's folder."""
    return lambda own, parts=1, **changes: write_folder(
        tmp_path / "model", own, parts, **{"eos_token_id": []} | changes
    )


def own_parameters(head=False):
    own = parameters(np.random.default_rng(0), "llama")
    if head:
        shape = own["model.embed_tokens.weight"].shape
        own["lm_head.weight"] = np.random.default_rng(1).standard_normal(shape, np.float32)
    return own


def by_the_book(own, tokens, count):
    """Return the most likely continuation."""
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(computed(own, tokens)[1][-1].argmax()))
    return tokens[-count:]


@pytest.mark.parametrize(("parts", "head"), [(1, False), (1, True), (3, True)])
def test_the_most_likely_tokens(folder, parts, head):
    own = own_parameters(head)
    path = folder(own, parts)
    wanted = [f"w{token}" for token in by_the_book(own, [3, 1, 4], 12)]
    for in_memory in (True, False):
        model = regard.models.load(path, in_memory=in_memory)
        assert "".join(model.generate("w3 w1 w4", 12)).split() == wanted
        assert "".join(model.generate([3, 1, 4], 12, dtype="float64")).split() == wanted
    assert model.num_parameters == sum(array.size for array in own.values())
    assert repr(model) == "Model('model', num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8)"


def test_a_text_ends_with_an_end_token(folder):
    own = own_parameters()
    written = by_the_book(own, [3, 1, 4], 8)
    model = regard.models.load(folder(own, eos_token_id=written[4]))
    before = written[: written.index(written[4])]
    assert "".join(model.generate([3, 1, 4], 8)).split() == [f"w{token}" for token in before]
    assert list(model.generate([3, 1, 4], 0)) == []


@pytest.mark.parametrize("weight_dtype", ["float16", "bfloat16", "int8"])
def test_weights_in_fewer_bits(folder, weight_dtype):
    """Logits are those of the rounded weights in float32."""
    own = own_parameters()
    path = folder(own)
    stored, _ = regard.checkpoints.load_safetensors(
        path / "model.safetensors", weight_dtype=weight_dtype
    )
    model = regard.models.load(path, weight_dtype=weight_dtype)
    rounded = {
        name: array.dequantize() if weight_dtype == "int8" and array.ndim == 2 else array
        for name, array in stored.items()
    }
    logits = model.logits(model([[3, 1, 4, 1, 5]], model.caches()))[0]
    exact = computed(rounded, [3, 1, 4, 1, 5])[1]
    assert_close(logits, exact)


def test_characters_come_whole():
    model = tiny_llama()
    tokens = model.tokenizer.encode("naïve 日本 🙂!").ids
    parts = list(model.decode_stream(tokens, after=model.tokenizer.encode("Say: ").ids))
    assert "".join(parts) == "naïve 日本 🙂!"
    assert "🙂" in parts


@pytest.mark.parametrize("layer", range(3))
def test_a_call_that_fails_leaves_the_caches_unchanged(layer, monkeypatch):
    model = tiny_llama()
    caches = model.caches()
    model([[1, 2, 3]], caches)
    fork = caches.fork()
    monkeypatch.setitem(model._layers[layer], "feed_norm", np.ones(1, np.float32))
    with pytest.raises(ValueError, match="weight must be"):
        model([[4, 5]], caches)
    monkeypatch.undo()
    assert caches.lengths.tolist() == [3]
    np.testing.assert_array_equal(model([[4]], caches), model([[4]], fork))


def test_the_command_prints_the_text(folder, capsys):
    own = own_parameters()
    path = folder(own)
    command = ["generate", str(path), "w3", "w1 w4", "--tokens", "6", "--weights", "float32"]
    assert main(command) == 0
    wanted = [f"w{token}" for token in by_the_book(own, [3, 1, 4], 6)]
    assert capsys.readouterr().out.split() == ["w3", "w1", "w4", *wanted]
    drawn = []
    for seed in ("0", "0", "1"):
        assert main([*command, "--temperature", "3", "--seed", seed, "--window", "4"]) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda m, c: list(m.generate("")), "prompt must have at least one token"),
        (lambda m, c: list(m.generate([999])), "tokens must be from 0 to 258"),
        (lambda m, c: list(m.generate("a", top_p=2)), "top_p must be at most 1"),
        (lambda m, c: m([[1, 2]], c), "tokens must have the batch axis"),
        (lambda m, c: m([1, 2], c, [0, 1, 3]), "starts must end with the number of tokens"),
        (lambda m, c: m([[1], [2]], c[:2]), "caches .* each of 3 layers, got 2"),
        (lambda m, c: m.record("a", layers=[3]), "layers must be"),
    ],
)
def test_wrong_calls_leave_the_caches_unchanged(call, reason):
    model = tiny_llama()
    caches = model.caches(2)
    with pytest.raises(ValueError, match=reason):
        call(model, caches)
    assert caches.lengths.tolist() == [0, 0]
