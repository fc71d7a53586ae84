"""Measure pages of `regard.explore` at several lengths: their sizes and opening times.

python benchmarks/explore_pages.py --lengths 1024 8192 32768 [--keep FOLDER]

The heads resemble heads of language models: some attend to the previous token, some to nearby
tokens, one to repeated passages, some to the first token, and some to tokens of the same kind. The
pages have no tiles. Opening times are measured in a browser, from the navigation to the first drawn
overview, and to the first head. They need Chromium and the extra `browser`; without them, only
sizes are shown.
"""

import argparse
import pathlib
import shutil
import tempfile
import time

import numpy as np

import regard

HEADS, DIM = 12, 64
WORDS = (
    "the of and to a in that it is was he for on with as his at by be this from not but have are "
    "which had they you were her all she there would their we him been has when who will more no "
    "if out so said what up its about into than them can only other new some could time these two"
)


def text_of(length, rng):
    """Return words with repeated passages, as in real texts."""
    words = WORDS.split()
    numbers = rng.choice(
        len(words), length, p=(chances := 1 / np.arange(3, 3 + len(words))) / chances.sum()
    )
    for _ in range(max(1, length // 400)):
        size = int(rng.integers(10, 60))
        if length > 4 * size:
            source, place = np.sort(rng.integers(0, length - size, 2))
            numbers[place : place + size] = numbers[source : source + size].copy()
    return numbers, [words[number] + " " for number in numbers]


def heads_of(numbers, rng):
    """Return queries and keys (12, length, 64) of heads of several kinds."""
    length = len(numbers)
    meanings = rng.standard_normal((numbers.max() + 1, DIM)).astype(np.float32)
    turns = np.arange(length)[:, None] * 10000.0 ** (-np.arange(DIM // 2) / (DIM // 2))
    places = np.concatenate([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)
    same, before = meanings[numbers], meanings[np.roll(numbers, 1)]
    previous, noise = np.roll(places, 1, axis=0), rng.standard_normal
    kinds = [
        (3.0 * previous, 5.0 * places),
        (2.2 * places, 3.0 * places),
        (1.6 * places, 2.0 * places),
        (1.1 * same, 1.1 * before),
        (0.8 * same, 0.8 * same),
        (0.5 * same, 0.6 * same),
        (1.2 * places + 0.5 * same, 1.5 * places + 0.5 * same),
        (noise((length, DIM)), noise((length, DIM))),
        (0.3 * noise((length, DIM)), 0.3 * noise((length, DIM))),
        (0.9 * same + 0.5 * places, 0.9 * before + 0.5 * places),
        (2.0 * np.roll(places, 4, axis=0), 4.0 * places),
        (0.1 * same, 0.1 * same),
    ]
    query = np.stack([pair[0] for pair in kinds]).astype(np.float32)
    key = np.stack([pair[1] for pair in kinds]).astype(np.float32)
    query += 0.2 * rng.standard_normal(query.shape, dtype=np.float32)
    key[7:, 0] += 2.0 * query[7:].mean(1) + 3.0 * np.sign(query[7:].mean(1))
    return query, key


def opened(path):
    """Return the seconds to the overview and to the first head, the best of three."""
    from playwright.sync_api import sync_playwright

    times = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for _ in range(3):
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            started = time.perf_counter()
            page.goto(path.as_uri(), wait_until="commit")
            page.wait_for_selector("html[data-overview]", state="attached")
            overview = time.perf_counter() - started
            page.wait_for_selector("html[data-shown]", state="attached")
            times.append((overview, time.perf_counter() - started))
            page.close()
        browser.close()
    return min(times)


def main():
    """Print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 8192, 32768])
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the pages")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keep = asked.keep or pathlib.Path(folder)
        for length in asked.lengths:
            rng = np.random.default_rng(0)
            numbers, tokens = text_of(length, rng)
            query, key = heads_of(numbers, rng)
            started = time.perf_counter()
            regard.scaled_dot_product_attention(query, key, key, is_causal=True)
            forward = time.perf_counter() - started
            started = time.perf_counter()
            explorer = regard.explore(query, key, tokens=tokens, is_causal=True, tile_bytes=0)
            made = time.perf_counter() - started
            path = keep / f"explorer-{length}.html"
            explorer.save(path, overwrite=True)
            line = f"{length:6} tokens: {explorer.nbytes / 1e6:6.2f} MB, made in {made:6.1f} s, "
            line += f"{made / forward:.1f} forward calls"
            try:
                overview, head = opened(path)
                line += f", overview after {overview:.2f} s, first head after {head:.2f} s"
            except Exception as error:
                line += f" (no browser: {str(error).splitlines()[0]})"
            print(line, flush=True)


if __name__ == "__main__":
    main()
