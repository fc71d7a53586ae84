"""What the examples with real models print, and the padding of sentences."""

import numpy as np


def test_generate(run_example, smollm2_path):
    text, said = run_example("generate.py", "Once upon a time", "--tokens", "8")
    assert text == "Once upon a time, the city of Nova Haven was a\n"
    lines = [line.split() for line in said.splitlines()]
    assert [line[:2] for line in lines[:2]] == [["prefill", "4"], ["decode", "8"]]
    assert int(lines[3][1]) < 300


def test_similar(run_example, minilm_path):
    text, said = run_example("similar.py")
    lines = text.splitlines()
    assert lines[0] == "How do I get my money back?"
    assert "You may return what you bought" in lines[1]
    assert "Refunds are paid" in lines[2]
    assert "Our shop opens" in lines[5]
    assert not said
    asked = ("A cat sleeps.", "Stocks fell.", "The kitten is asleep.")
    assert "kitten" in run_example("similar.py", *asked)[0].splitlines()[1]


def test_transcribe(run_example, whisper_path, recording):
    text, said = run_example("transcribe.py")
    assert text == "Ever tried, ever failed. No matter, try again. Fail again. Fail better.\n"
    assert not said


def test_padding_changes_no_bit(minilm):
    """Neither the content nor the amount of padding changes the sentence's own rows."""
    from models.bert import Bert, sentence_embeddings

    model, tokens = Bert(*minilm), np.arange(1000, 1012)
    lengths = np.array([len(tokens)])
    rng = np.random.default_rng(0)
    rows = [np.append(tokens, rng.integers(0, 30_000, 9)) for _ in range(2)]
    one, other = (sentence_embeddings(model(row[None], lengths), lengths) for row in rows)
    assert np.array_equal(one, other)
