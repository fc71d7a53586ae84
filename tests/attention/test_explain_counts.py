"""`explain` counts runs of tiles by arithmetic. Here they are counted one by one, from the keys
that each row sees, and the numbers must be equal."""

import itertools

import numpy as np
import pytest

import regard

HEADS, KV_HEADS, BATCH = 4, 2, 2


def strip_starts(explanation, rows, mask):
    """Return where strips begin. They follow one another or, if a mask has its own rows, restart
    every 128 rows and have equal widths, to a third of a strip (a vector). Four vectors at a task's
    end are two strips of two."""
    if explanation.kernel == "decode":
        return np.array([0])  # one pass for all
    vector = explanation.strip_rows // 3
    if mask is None or np.ndim(mask) < 2 or mask.shape[-2] == 1:
        parts = [np.arange(3)]
    else:
        parts = np.array_split(np.arange(128 // vector), -(-128 // explanation.strip_rows))
    unit = vector * sum(len(part) for part in parts)
    # The tasks of a head have the same number of units, except that the last tasks have one more.
    tasks = explanation.tasks // (explanation.batch * explanation.kv_heads)
    units, more = divmod(-(-rows // unit), tasks)
    begins = [unit * (units * task + max(0, task - tasks + more)) for task in range(tasks)]
    starts = []
    for begin, end in itertools.pairwise([*begins, rows]):
        task = [
            unit_begin + vector * part[0]
            for unit_begin in range(begin, end, unit)
            for part in parts
        ]
        task = [start for start in task if start < end]
        if len(task) > 1 and task[-1] - task[-2] == 3 * vector and end - task[-1] <= vector:
            task[-1] -= vector
        starts += task
    return np.array(starts)


def seen_by(positions, kv_len, entry, options):
    """Return the first key that each row sees by position, and the ends of its keys and of the
    entry's keys."""
    begin = np.broadcast_to(options.get("left_padding", 0), BATCH)[entry]
    end = np.broadcast_to(options.get("key_lengths", kv_len), BATCH)[entry]
    left, right = options.get("window", (None, None))
    right = 0 if options.get("is_causal") else right
    first, last = np.full(len(positions), begin), np.full(len(positions), end)
    if left is not None:
        first = np.clip(positions - left, begin, end)
    if right is not None:
        last = np.clip(positions + right + 1, begin, end)
    return first, last, end


def count_of_strip(first, last, end, mask, bias, explanation):
    """Count the tiles of one strip, its biased tiles, and the scores. If a tile hides a key,
    vectors of rows at either end that see none of its keys by position are left out."""
    tiles = biased = scores = 0
    vector = explanation.strip_rows // 3
    for key in range(0, end, explanation.tile_keys):
        keys = min(explanation.tile_keys, end - key)
        here = slice(key, key + keys)
        numbers = np.arange(key, key + keys)
        seen = (first[:, None] <= numbers) & (numbers < last[:, None])
        if not seen.any() or not mask[:, here].any() or (bias[:, here] == -np.inf).all():
            continue
        is_whole = keys == explanation.tile_keys and seen.all()
        hides = not is_whole or not mask[:, here].all() or (bias[:, here] == -np.inf).any()
        rows = np.arange(len(first))
        while hides and len(rows) > vector and last[rows[vector - 1]] <= key:
            rows = rows[vector:]
        while hides and rows[0] == 0 and len(rows) > vector:
            begin = (len(rows) - 1) // vector * vector
            if first[rows[begin]] < key + keys:
                break
            rows = rows[:begin]
        tiles += 1
        biased += bool(hides or bias[:, here].any())
        scores += len(rows) * keys
    return np.array([tiles, biased, scores])


def count_of_decode(first, last, end, mask, bias, explanation):
    """Count the same for steps. If all rows see all keys of a block, none of its steps is
    biased."""
    tiles = biased = scores = 0
    numbers = np.arange(end)
    seen = (first[:, None] <= numbers) & (numbers < last[:, None])
    shown = seen & mask[:, :end] & (bias[:, :end] != -np.inf)
    step, has_mask = explanation.tile_keys, not mask.all() or bias.any()
    for block in range(0, end, explanation.block_keys):
        steps = range(block, min(end, block + explanation.block_keys), step)
        at = [k for k in steps if seen[:, k : k + step].any()]
        is_whole = all(k + step <= end and seen[:, k : k + step].all() for k in at)
        for k in at:
            if shown[:, k : k + step].any():
                tiles += 1
                biased += has_mask or not is_whole
                scores += len(first) * min(step, end - k)
    return np.array([tiles, biased, scores])


def counted(explanation, mask, options):
    q_len, kv_len, group = explanation.q_len, explanation.kv_len, HEADS // KV_HEADS
    parts = mask if isinstance(mask, tuple) else (mask,)
    shown = np.broadcast_to(True, (BATCH, HEADS, q_len, kv_len))
    bias = np.zeros(shown.shape)
    for part in parts:
        if part is not None and part.dtype.kind == "b":
            shown = np.broadcast_to(part, shown.shape)
        elif part is not None:
            bias = np.broadcast_to(part, shown.shape)
    has_rows = next((p for p in parts if p is not None and np.shape(p)[-2] > 1), None)
    starts = strip_starts(explanation, q_len * group, has_rows)
    is_decode = explanation.kernel == "decode"
    offsets = np.broadcast_to(options.get("query_offset", 0), BATCH)
    total = np.zeros(3, int)
    for entry in range(BATCH):
        positions = np.arange(q_len).repeat(group) + offsets[entry]
        for kv_head in range(KV_HEADS):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            rows = (x[entry, heads].swapaxes(0, 1).reshape(-1, kv_len) for x in (shown, bias))
            strips = zip(*(np.split(x, starts[1:]) for x in (positions, *rows)), strict=True)
            for at, shown_here, bias_here in strips:
                first, last, end = seen_by(at, kv_len, entry, options)
                count = count_of_decode if is_decode else count_of_strip
                total += count(first, last, end, shown_here, bias_here, explanation)
    return total


def random_call(random):
    q_len = int(random.choice([1, 2, 40, 130, 300]))
    kv_len = int(random.choice([60, 200, 700, 1700]))
    options = {}
    if random.random() < 0.5:
        options["is_causal"] = True
    if random.random() < 0.5:
        left, right = random.choice([0, 3, 50, 400], 2)
        options["window"] = int(left), None if random.random() < 0.3 else int(right)
    if random.random() < 0.8:
        options["query_offset"] = random.integers(-q_len - 5, kv_len + 10, BATCH)
    if random.random() < 0.4:
        options["key_lengths"] = random.integers(0, kv_len + 1, BATCH)
    if random.random() < 0.3:
        options["left_padding"] = random.integers(0, kv_len // 2, BATCH)
        ends = np.broadcast_to(options.get("key_lengths", kv_len), BATCH)
        options["left_padding"] = np.minimum(options["left_padding"], ends)
    shape = random.choice([1, HEADS]), random.choice([1, q_len]), kv_len
    coarse = random.random((shape[0], -(-shape[1] // 32), -(-kv_len // 60))) < 0.5
    blocks = coarse.repeat(32, 1)[:, : shape[1]].repeat(60, 2)[..., :kv_len]
    biases = np.where(blocks, random.choice([0.0, 0.5]), -np.inf).astype(np.float32)
    masks = [None, None, blocks, biases, (blocks, np.zeros((q_len, kv_len), np.float32))]
    return q_len, kv_len, masks[random.integers(len(masks))], options


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_single_tiles(seed, target):
    random = np.random.default_rng(seed)
    for threads in (1, 2, 3, 8):
        q_len, kv_len, mask, options = random_call(random)
        query = np.zeros((BATCH, HEADS, q_len, 4), np.float32)
        key = np.zeros((BATCH, KV_HEADS, kv_len, 4), np.float32)
        found = regard.explain(query, key, key, mask, **options, threads=threads)
        told = found.tiles_computed, found.tiles_biased, found.scores_computed
        assert told == tuple(counted(found, mask, options)), (q_len, kv_len, options)


def test_slopes_bias_every_tile(target):
    x = np.zeros((1, 2, 600, 4), np.float32)
    plain, biased = (
        regard.explain(x, x, x, is_causal=True, **more) for more in ({}, {"alibi_slopes": [0.5, 1]})
    )
    assert biased.tiles_computed == biased.tiles_biased == plain.tiles_computed
    assert biased.scores_computed == plain.scores_computed


LONG = {
    "full": {},
    "causal": {"is_causal": True},
    "window": {"window": (2**20, 0)},
    "slopes": {"is_causal": True, "alibi_slopes": [0.5] * 64},
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_call_is_counted_at_once(name, target):
    """Counting tile by tile would take hours."""
    n, left = 2**22, 2**20
    x = np.broadcast_to(np.float32(1), (64, n, 64))
    found = regard.explain(x, x, x, **LONG[name])
    seen = n * n if name == "full" else n * (n + 1) // 2
    if name == "window":
        seen -= (n - left - 1) * (n - left) // 2
    edges = n * (found.strip_rows + 2 * found.tile_keys)
    assert 64 * seen <= found.scores_computed <= 64 * (seen + 2 * edges)
