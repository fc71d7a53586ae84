"""SmolLM2 on regard generates the text that the same model generates in float64 without it."""

import numpy as np
import pytest

import regard
from error_limits import expected
from llama_models import computed, from_gguf

PROMPT = "Once upon a time"
WRITTEN = (
    ", the city of Nova Haven was a thriving metropolis, with towering skyscrapers and bustling "
    "streets. But as the years went by, the city began to lose its original essence. The once-blue "
    "skies of the planet Earth began to fade, and the once-blue oceans of the ocean began to fade. "
    "The once-blue"
)
TOKENS = 64


@pytest.fixture(scope="module")
def model(smollm2):
    return regard.models.load("smollm2")


@pytest.fixture(scope="module")
def text(model):
    """Return the tokens of prompt and text."""
    tokens = np.array(model.tokenizer.encode(PROMPT + WRITTEN).ids)
    assert len(tokens) == len(model.tokenizer.encode(PROMPT)) + TOKENS
    return tokens


def by_the_book(smollm2, text, dtype=np.float64, window=None):
    """Return the logits after each token."""
    own, config = from_gguf(*smollm2)
    return computed(own, text, window, config, dtype)[1]


@pytest.fixture(scope="module")
def exact(smollm2, text):
    return by_the_book(smollm2, text)


def check_rounding(logits, exact, usual):
    """Allow twice the error of the same formula in NumPy's float32."""
    assert logits.dtype == usual.dtype == np.float32
    error, of_formula = (np.square(each - exact).mean() for each in (logits, usual))
    assert np.sqrt(error) <= 2 * np.sqrt(of_formula)


def lowest_cosine(logits, exact):
    lengths = np.linalg.norm(logits, axis=1) * np.linalg.norm(exact, axis=1)
    return ((logits * exact).sum(1) / lengths).min()


def replay(model, text, prompt=4, caches=None):
    """Read a prompt at once, then token by token; return the logits after each token."""
    caches = caches or model.caches()
    parts = [text[:prompt], *text[prompt:, None]]
    return np.concatenate([model.logits(model(part[None], caches)[0]) for part in parts])


def picks(logits, prompt=4):
    """Return the greedy choice at each place of the text after the prompt."""
    return logits[prompt - 1 : -1].argmax(1)


def test_the_oracle_writes_the_text(exact, text):
    """Each token must be the likeliest one after all previous tokens."""
    assert np.array_equal(picks(exact), text[4:])


@pytest.mark.parametrize(
    ("dtype", "prompt"),
    [("float32", 4), ("float16", 4), ("bfloat16", 4), *(("int8", n) for n in (1, 2, 4, 16, 68))],
)
def test_greedy_text_and_logits(dtype, prompt, model, text, exact, smollm2, record_property):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    caches = model.caches(dtype=dtype)
    logits = replay(model, text, prompt, caches)
    differ = np.flatnonzero(picks(logits) != text[4:])
    record_property("first difference", int(differ[0]) if differ.size else None)
    if dtype in ("float32", "float16"):
        assert not differ.size
    if dtype == "float32":
        check_rounding(logits, exact, by_the_book(smollm2, text, np.float32))
    lowest = lowest_cosine(logits, exact)
    record_property("lowest cosine", float(lowest))
    assert lowest >= 0.999


@pytest.mark.parametrize(
    ("weights", "lowest", "agreeing"), [("float16", 0.99999, 64), ("int8", 0.996, 58)]
)
def test_weights_of_fewer_bits(
    weights, lowest, agreeing, text, exact, smollm2, smollm2_path, record_property
):
    """Compare the logits' direction, and how many of 64 tokens are picked after the same previous
    tokens."""
    kept, _ = regard.checkpoints.load_gguf(smollm2_path, weight_dtype=weights)
    total = sum(weight.nbytes for weight in kept.values())
    full = sum(weight.nbytes for weight in smollm2[0].values())
    assert total < {"float16": 0.501, "int8": 0.267}[weights] * full
    logits = replay(regard.models.load("smollm2", weight_dtype=weights), text)
    cosine = lowest_cosine(logits, exact)
    same = int((picks(logits) == text[4:]).sum())
    record_property("lowest cosine", float(cosine))
    record_property("same picks", same)
    assert cosine >= lowest
    assert same >= agreeing
    # If it picks another token, the oracle's own choice was a close one.
    for place in np.flatnonzero(picks(logits) != text[4:]):
        row = exact[3 + place]
        assert row.max() - row[logits[3 + place].argmax()] < 0.05 * row.std()


def test_a_short_window_is_the_oracles(model, text, smollm2):
    logits = replay(model, text, caches=model.caches(keep_last=16))
    wide, usual = (by_the_book(smollm2, text, dtype, 16) for dtype in (np.float64, np.float32))
    check_rounding(logits, wide, usual)


TEXT = (
    "The old library stood at the end of the street, its windows dark. Nobody had read there for "
    "years, but everyone in the town remembered the smell of its books. One morning a letter came "
    "that said who owned the house, and what was to become of it: 1,200 volumes, 34 maps, and a "
    "globe. The mayor read it twice, put on her coat, and went to see for herself. "
)


class Recorder(regard.KVCache):
    """A cache that keeps the arrays that are passed to it."""

    def append_ragged(self, key, value, starts):
        self.key, self.value = (packed.swapaxes(0, 1) for packed in (key, value))
        return super().append_ragged(key, value, starts)

    def attend_ragged(self, query, starts):
        self.query = query.swapaxes(0, 1)
        return super().attend_ragged(query, starts)


@pytest.fixture(scope="module")
def blocks(model):
    """Return query, key and value (heads, length, dim) of every block."""
    tokens = np.array(model.tokenizer.encode(4 * TEXT).ids)
    caches = [Recorder(1, model.num_kv_heads, model.head_dim) for _ in range(model.num_layers)]
    model(tokens[None], caches)
    return [(cache.query, cache.key, cache.value) for cache in caches]


def cosine(a, b):
    return (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)


def test_every_head_is_near_float64(blocks, record_property):
    worst = 1.0
    for query, key, value in blocks:
        output = regard.scaled_dot_product_attention(
            query, key, value, is_causal=True, precision="int8"
        )
        exact = expected(query, key, value, is_causal=True).exact.output
        worst = min(worst, *map(cosine, output, exact))
    record_property("worst cosine", float(worst))
    assert worst >= 0.9995
