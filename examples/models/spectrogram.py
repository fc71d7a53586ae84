"""Whisper's spectrogram: the logarithm of the power in 80 bands, 100 times a second."""

import numpy as np

RATE = 16_000
SECONDS = 30
WINDOW, HOP = 400, 160
BANDS = 80


def log_mel(sound):
    """Convert samples (RATE a second, between -1 and 1) to (BANDS, 3000), padded to 30 seconds."""
    sound = np.asarray(sound, np.float32)[: RATE * SECONDS]
    sound = np.pad(sound, (0, RATE * SECONDS - sound.size))
    sound = np.pad(sound, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(sound, WINDOW)[::HOP][:-1]
    hann = np.hanning(WINDOW + 1)[:-1]
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    level = np.log10(np.maximum(bands() @ power.T, 1e-10))
    level = np.maximum(level, level.max() - 8)
    return ((level + 4) / 4).astype(np.float32)


def bands():
    """Return each band's weights: triangles of equal area, evenly spaced in mel (Slaney's scale).

    Below 1000 Hz a mel is 200/3 Hz; above it, 27 mel are a factor of 6.4.
    """
    top = 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4)
    mel = np.linspace(0, top, BANDS + 2)
    hertz = np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))
    low, center, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
    at = np.fft.rfftfreq(WINDOW, 1 / RATE)
    rise, fall = (at - low) / (center - low), (high - at) / (high - center)
    return np.maximum(0, np.minimum(rise, fall)) * 2 / (high - low)
