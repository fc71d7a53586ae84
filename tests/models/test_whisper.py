"""Whisper on regard: self attention with a cache, cross attention to 1500 frames."""

import numpy as np
import pytest

import oracle

START, NO_TIMES = 50257, 50362


@pytest.fixture(scope="module")
def model(whisper):
    from models.whisper import Whisper

    return Whisper(whisper)


@pytest.fixture(scope="module")
def heard():
    """Return a spectrogram of noise, and some words for it."""
    rng = np.random.default_rng(4)
    spectrogram = rng.standard_normal((80, 3000), dtype=np.float32) / 2
    return spectrogram, np.array([START, NO_TIMES, *rng.integers(0, 50_000, 18)])


def test_logits(model, whisper, heard):
    spectrogram, tokens = heard
    keys_and_values, caches = model.listen(spectrogram[None]), model.caches()
    parts = np.split(tokens, [2, 3, 4, 9])
    logits = [model.write(part[None], caches, keys_and_values)[0] for part in parts]
    oracle.check_rounding(np.concatenate(logits), oracle.whisper, whisper, *heard)


def test_the_recording(model, whisper, whisper_path, recording):
    """Each word must be the word that the oracle picks there."""
    from tokenizers import Tokenizer

    from models.spectrogram import log_mel
    from transcribe import sound_of, transcribe

    sound = sound_of(recording)
    said = transcribe(whisper_path, sound)
    assert said == "Ever tried, ever failed. No matter, try again. Fail again. Fail better."
    tokenizer = Tokenizer.from_file(str(whisper_path / "tokenizer.json"))
    tokens = np.array(tokenizer.encode(f" {said}").ids)
    assert tokens[0] == START
    exact = oracle.whisper(whisper, log_mel(sound), tokens, np.float64)
    assert np.array_equal(exact[1:-1].argmax(1), tokens[2:])
    caches = model.caches()
    logits = model.write(tokens[None], caches, model.listen(log_mel(sound)[None]))[0]
    assert np.array_equal(logits[1:-1].argmax(1), tokens[2:])


def test_a_tone_is_heard_where_it_is():
    from models.spectrogram import RATE, log_mel

    seconds = np.arange(RATE) / RATE
    loudest = [
        log_mel(np.sin(2 * np.pi * hertz * seconds))[:, 50].argmax() for hertz in (250, 1000, 4000)
    ]
    # Bands are 45.2 / 81 mel wide: 3.75, 15 and 35.2 mel are in the middle of these.
    assert loudest == [6, 26, 62]
