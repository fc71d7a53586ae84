"""Attend from many continuations to one prompt whose keys and values are stored and read once.

Each continuation attends to the prompt and to its own tail. The queries of all continuations are
the rows of one call over the prompt, which they see entirely. A second call attends to the tails,
and `merge_attention_states` merges the two. The script compares this with a separate cache for each
continuation, which contains a copy of the prompt.

Keys with rotary positions are rotated before they are appended. The first position of a tail is the
length of the prompt.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

import regard

CONTINUATIONS, PROMPT, TAIL = 16, 2048, 32
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64


def milliseconds(call: Callable[[], object]) -> float:
    """Return the median time of nine calls."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    """Attend in both ways, and print the memory and the time of each."""
    rng = np.random.default_rng(0)

    def tokens(batch: int, heads: int, count: int) -> np.ndarray:
        return rng.standard_normal((batch, heads, count, HEAD_DIM), np.float32)

    prompt = regard.KVCache(1, KV_HEADS, HEAD_DIM, capacity=PROMPT)
    tails = regard.KVCache(CONTINUATIONS, KV_HEADS, HEAD_DIM, capacity=TAIL)
    copies = regard.KVCache(CONTINUATIONS, KV_HEADS, HEAD_DIM, capacity=PROMPT + TAIL)
    for cache, batch, count in ((prompt, 1, PROMPT), (tails, CONTINUATIONS, TAIL)):
        key, value = tokens(batch, KV_HEADS, count), tokens(batch, KV_HEADS, count)
        cache.append(key, value)
        every = (CONTINUATIONS, *key.shape[1:])
        copies.append(np.broadcast_to(key, every), np.broadcast_to(value, every))
    query = tokens(CONTINUATIONS, HEADS, 1)

    def shared() -> np.ndarray:
        # (continuations, heads, 1, head_dim): the continuations become rows of one batch entry.
        rows = query.swapaxes(0, 2)
        output, lse = prompt.attend(rows, is_causal=False, query_offset=0, return_lse=True)
        prefix = output.swapaxes(0, 2), lse.swapaxes(0, 2)
        suffix = tails.attend(query, return_lse=True)
        return regard.merge_attention_states(*zip(prefix, suffix, strict=True))[0]

    def copied() -> np.ndarray:
        return copies.attend(query)

    difference = np.abs(shared() - copied()).max()
    before, after = copies.nbytes, prompt.nbytes + tails.nbytes
    slow, fast = milliseconds(copied), milliseconds(shared)
    print(f"{CONTINUATIONS} continuations of {TAIL} tokens, one prompt of {PROMPT} tokens")
    print(f"equal up to rounding: {difference < 1e-6}, largest difference {difference:.1e}")
    print(f"{'':8}{'prompt copied':>15}{'prompt shared':>15}")
    less, faster = before / after, slow / fast
    print(f"memory  {before / 1e6:12.1f} MB{after / 1e6:12.1f} MB   {less:.1f} times less")
    print(f"a step  {slow:12.2f} ms{fast:12.2f} ms   {faster:.1f} times faster")


if __name__ == "__main__":
    main()
