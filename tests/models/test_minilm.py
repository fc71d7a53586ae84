"""MiniLM on regard: padding changes no embedding, and sentences are ranked by meaning."""

import numpy as np
import pytest

import oracle

SENTENCES = [
    "How do I get my money back?",
    "Refunds are paid within five working days.",
    "Our shop opens at nine and closes at six.",
    "You may return what you bought and we pay the price again.",
    "She put the coins back into her purse.",
    "No.",
]


@pytest.fixture(scope="module")
def encoded(minilm_path):
    """Return the tokens of each sentence."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_path / "tokenizer.json"))
    tokenizer.no_padding()
    return [np.array(tokenizer.encode(sentence).ids) for sentence in SENTENCES]


@pytest.fixture(scope="module")
def embeddings(minilm_path):
    from similar import embed

    return embed(minilm_path, SENTENCES)


def test_embeddings(embeddings, minilm, encoded):
    assert len({len(tokens) for tokens in encoded}) > 2
    for embedding, tokens in zip(embeddings, encoded, strict=True):
        oracle.check_rounding(embedding, oracle.sentence_embedding, *minilm, tokens)


def test_padding_changes_no_bit(minilm, encoded):
    """Neither the content nor the amount of padding changes the sentence's own rows."""
    from models.bert import Bert, sentence_embeddings

    model, tokens = Bert(*minilm), encoded[0]
    lengths = np.array([len(tokens)])
    rng = np.random.default_rng(0)
    rows = [np.append(tokens, rng.integers(0, 30_000, 9)) for _ in range(2)]
    one, other = (sentence_embeddings(model(row[None], lengths), lengths) for row in rows)
    assert np.array_equal(one, other)
