"""Models of GGUF files: their tokens, and their queries and keys, by the book."""

import itertools
import re

import numpy as np
import pytest

from llama_models import DIM, WIDTH, as_gguf, assert_close, computed, write_gguf
from llama_models import parameters as parameters_of
from regard.models import load

gguf = pytest.importorskip("gguf", reason='pip install ".[models]"')
pytest.importorskip("tokenizers", reason='pip install ".[models]"')

SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
TEXT = "wd wb we wb wf wj wc wg"
# "Ġ" is what a byte-pair encoding writes for a space.
LETTERS = ["w", *"abcdefghij", "Ġ"]
BYTE_PAIRS = [f"w{i}" for i in "abcdefghij"] + [f"Ġw{i}" for i in "abcdefghij"]


def vocabulary():
    """Return tokens, merges and the numbers of the text's tokens."""
    tokens = [*LETTERS, *BYTE_PAIRS, "<begin>"]
    merges = [f"w {i}" for i in "abcdefghij"] + [f"Ġ w{i}" for i in "abcdefghij"]
    return tokens, merges


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a model, with changes to its metadata and its tensors."""

    def write(architecture="llama", changes=(), tensors=(), kind=None, window=None):
        path = tmp_path / f"{architecture}.gguf"
        tokens, merges = vocabulary()
        own = parameters_of(np.random.default_rng(0), architecture)
        rng = np.random.default_rng(1)
        own["model.embed_tokens.weight"] = rng.standard_normal((len(tokens), WIDTH), np.float32)
        facts, stored = as_gguf(own, architecture)
        if window is not None:
            facts[f"{architecture}.attention.sliding_window"] = window
        facts |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [NORMAL] * (len(tokens) - 1) + [CONTROL],
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": len(tokens) - 1,
        }
        facts.update(changes)
        architecture = facts.pop("general.architecture", architecture)
        stored.update(tensors)
        stored = {name: array for name, array in stored.items() if array is not None}
        write_gguf(path, architecture, facts, stored, kind)
        return path, own

    return write


def columns(array, architecture):
    """Return queries or keys in the order of the columns of Hugging Face's files."""
    if architecture != "llama":
        return array
    return array.reshape(*array.shape[:-1], DIM // 2, 2).swapaxes(-1, -2).reshape(array.shape)


@pytest.mark.parametrize(
    ("architecture", "window"), [("llama", None), ("llama", 3), ("qwen2", None), ("qwen3", None)]
)
def test_queries_and_keys(written, architecture, window):
    path, own = written(architecture, window=window)
    model = load(path, in_memory=False)
    numbers, texts = model.tokens(TEXT)
    tokens, _ = vocabulary()
    assert [tokens[number].replace("Ġ", " ") for number in numbers] == texts
    assert "".join(texts) == TEXT
    assert len(texts) == 8
    layers, logits = computed(own, numbers, window)
    for layer, exact in zip(model.record(TEXT), layers, strict=True):
        assert_close(columns(layer.query, architecture), exact[0])
        assert_close(columns(layer.key, architecture), exact[1])
    caches = model.caches()
    parts = [model.logits(model([part], caches)) for part in np.split(np.array(numbers), [5, 6])]
    assert_close(np.concatenate(parts, axis=1)[0], logits)


@pytest.mark.parametrize("kind", ["linear", "of llama 3"])
def test_scaled_frequencies(written, kind):
    """A file has the factor, or what each frequency is divided by."""
    if kind == "linear":
        factors = np.float32(4)
        changes = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
        path, own = written(changes=changes)
    else:
        factors = np.array([1, 1, 2, 8], np.float32)
        path, own = written(tensors={"rope_freqs.weight": factors})
    query = load(path).record(TEXT, layers=[0])[0].query
    angles = np.arange(8)[:, None] * 500.0 ** -(np.arange(4) / 4)
    # Turning back by all of the angle, and forward by the part that the factors leave.
    ((exact, _), *_), _ = computed(own, load(path).tokens(TEXT)[0])
    turned = (exact[..., :4] + 1j * exact[..., 4:]) * np.exp(1j * (angles / factors - angles))
    assert_close(columns(query, "llama"), np.concatenate([turned.real, turned.imag], axis=-1))


@pytest.mark.parametrize(
    ("pre", "begins", "parts"),
    [
        ("llama-bpe", True, ["<s>", "123", "4"]),
        ("qwen2", False, ["1", "2", "3", "4"]),
        ("smollm", False, ["1", "2", "3", "4"]),
        ("gpt-2", False, ["1234"]),
    ],
)
def test_how_numbers_are_split(written, pre, begins, parts):
    tokens = [*"1234 ", "12", "123", "1234", "<s>"]
    changes = {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * (len(tokens) - 1) + [CONTROL],
        "tokenizer.ggml.merges": ["1 2", "12 3", "123 4"],
        "tokenizer.ggml.bos_token_id": len(tokens) - 1,
    }
    for told in (None, not begins):
        more = {} if told is None else {"tokenizer.ggml.add_bos_token": told}
        numbers, texts = load(written(changes=changes | more)[0], in_memory=False).tokens("1234")
        wanted = [part for part in parts if part != "<s>"]
        wanted = ["<s>", *wanted] if (begins if told is None else told) else wanted
        assert texts == [tokens[number] for number in numbers] == wanted


def merged_by_score(text, scores):
    """SentencePiece's rule: merge the two neighbors with the best token, the left one of equals."""
    parts = list(text)
    while True:
        pairs = [
            (scores[a + b], -at)
            for at, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in scores
        ]
        if not pairs:
            return parts
        at = -max(pairs)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]


def test_tokens_by_score(written):
    rng = np.random.default_rng(2)
    letters = [SPACE, *"abcd"]
    words = {*letters}
    while len(words) < 60:
        first, second = rng.choice(sorted(words), 2)
        words.add(first + second)
    words = [*letters, *sorted(words - {*letters})]
    scores = dict(zip(words, (-rng.permutation(len(words))).tolist(), strict=True))
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", *bytes_, *words]
    changes = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 258 + [float(score) for score in scores.values()],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words),
        "tokenizer.ggml.bos_token_id": 1,
    }
    model = load(written(changes=changes)[0], in_memory=False)
    for _ in range(200):
        text = "".join(rng.choice([*"abcd "], rng.integers(1, 30)))
        numbers, texts = model.tokens(text)
        wanted = merged_by_score((" " + text).replace(" ", SPACE), scores)
        assert [tokens[number] for number in numbers] == ["<s>", *wanted], text
        assert "".join(texts[1:]).strip() == text.strip()
    numbers, texts = model.tokens("aé")
    assert [tokens[number] for number in numbers][-2:] == ["<0xC3>", "<0xA9>"]
    assert texts[-1] == "é"
    plain = {
        **changes,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    numbers, _ = load(written(changes=plain)[0], in_memory=False).tokens("a")
    assert [tokens[number] for number in numbers] == ["a"]


TOKENIZER = "tokenizer.ggml."
REFUSED = [  # changes of metadata, changes of tensors, what the message names
    ({"general.architecture": "gemma"}, {}, "architecture"),
    ({"llama.expert_count": 8}, {}, "experts"),
    ({"llama.rope.scaling.type": "longrope"}, {}, "longrope"),
    ({f"{TOKENIZER}pre": "tekken"}, {}, "tokenizer.ggml.pre"),
    ({f"{TOKENIZER}merges": ["w x"]}, {}, "merges"),
    ({}, {"rope_freqs.weight": np.ones(3, np.float32)}, "rope_freqs.weight"),
    ({}, {"blk.1.ffn_up.weight": None}, "layer 1"),
    ({}, {"blk.1.attn_output.bias": np.ones(WIDTH, np.float32)}, "blk.1.attn_output.bias"),
    ({}, {"token_embd.weight": np.ones((4, WIDTH), np.float32)}, "different models"),
]


@pytest.mark.parametrize(("changes", "tensors", "named"), REFUSED)
def test_files_that_are_refused(written, changes, tensors, named):
    path, _ = written(changes=changes, tensors=tensors)
    with pytest.raises(ValueError, match=re.escape(named)):
        load(path).record(TEXT)
