"""Patterns that other libraries document, as regard's masks and options, and as predicates.

A predicate receives arrays of batch entries, heads, queries and keys, which broadcast to the shape
of the scores, and returns which pairs are visible. It is written as in the library's documentation,
without `regard`. The FlexAttention patterns are from the documentation of
torch.nn.attention.flex_attention, from the blog post "FlexAttention: The Flexibility of PyTorch
with the Performance of FlashAttention", and from github.com/meta-pytorch/attention-gym.
"""

from typing import Any, NamedTuple

import numpy as np

import regard
from regard import masks

BATCH, HEADS, KV_HEADS = 2, 4, 2
N = 150

SLOPES = 2.0 ** (-8 * (np.arange(HEADS) + 1) / HEADS)
TEMPERATURES = np.array([0.1, 0.3, 0.5, 0.9])
CAPS = np.array([2.0, 5.0, np.inf, 0.5])
DOCUMENT = np.repeat(np.arange(5), [30, 1, 60, 40, 19])
START = np.array([0, 30, 31, 91, 131])[DOCUMENT]
END = np.array([30, 31, 91, 131, 150])[DOCUMENT]
OF_ENTRIES = np.stack([DOCUMENT, DOCUMENT[::-1] // 2])
LENGTHS = np.array([150, 41])
IS_GLOBAL = np.isin(np.arange(N), [0, 1, 77])
GRID, WINDOW = (10, 15), (3, 5)
ROW, COLUMN = np.divmod(np.arange(N), GRID[1])
PARENTS = np.array([-1, 0, 0, 1, 1, 2, 5, 5, 3, -1, 9])
PAST = 20
BLOCKS = [[0, 2], [1], [0, 1, 2], [], [2]]
INDPTR, INDICES = [0, 2, 3, 6, 6, 7], [0, 2, 1, 0, 1, 2, 2]
SHOWN_BLOCKS = np.array([[block in row for block in range(3)] for row in BLOCKS])
# Biases of Swin's pairs of distances, for windows of 5 x 5 in rows of 15 tokens.
SIDE = 5
SWIN = np.random.default_rng(0).standard_normal((HEADS, 2 * SIDE - 1, 2 * SIDE - 1))


def _ancestors():
    """Return, for each node of the tree, the node itself and its ancestors."""
    above = np.zeros((len(PARENTS), len(PARENTS)), bool)
    for node in range(len(PARENTS)):
        at = node
        while at >= 0:
            above[node, at] = True
            at = PARENTS[at]
    return above


ANCESTORS = _ancestors()


def _swin_row():
    reach = np.arange(1 - SIDE, SIDE)
    place = GRID[1] * reach[:, None] + reach
    row = np.zeros((HEADS, 2 * place.max() + 1))
    row[:, place.max() + place] = SWIN
    return row


def _swin_bias(b, h, i, j):
    down, right = (
        np.clip(each[j] - each[i], 1 - SIDE, SIDE - 1) + SIDE - 1 for each in (ROW, COLUMN)
    )
    return SWIN[h, down, right]


def _inside(position, size, window):
    """Return the middle of a window that stays inside the grid."""
    return np.clip(position, window // 2, size - 1 - window // 2)


def _neighbors(b, h, i, j):
    down, right = (
        abs(_inside(each[i], size, window) - each[j]) <= window // 2
        for each, size, window in zip((ROW, COLUMN), GRID, WINDOW, strict=True)
    )
    return down & right


def _in_tree(b, h, i, j):
    return (j < PAST) | ANCESTORS[i, np.maximum(j - PAST, 0)]


def everything(b, h, i, j):
    return (b >= 0) & (h >= 0) & (i >= 0) & (j >= 0)


class Pattern(NamedTuple):
    """A pattern as regard's masks and options, and as predicates."""

    mask: Any = None
    options: dict[str, Any] = {}  # noqa: RUF012
    seen: Any = everything
    bias: Any = None
    """The bias that the formula adds to a score."""
    formula: dict[str, Any] = {}  # noqa: RUF012
    """The options that the plain formula also has."""
    lengths: tuple[int, int] = (N, N)


CAUSAL = masks.sliding(N, window=(None, 0))
FLEX = {
    "noop": Pattern(),
    "causal": Pattern(None, {"is_causal": True}, lambda b, h, i, j: i >= j),
    "causal, as a mask": Pattern(CAUSAL, {}, lambda b, h, i, j: i >= j),
    "offset of a cache": Pattern(
        None,
        {"is_causal": True, "query_offset": 90},
        lambda b, h, i, j: i + 90 >= j,
        lengths=(7, N),
    ),
    "sliding window": Pattern(
        None, {"window": (40, 0)}, lambda b, h, i, j: (i >= j) & (i - j <= 40)
    ),
    "sliding window, as a mask": Pattern(
        masks.sliding(N, window=(40, 0)), {}, lambda b, h, i, j: (i >= j) & (i - j <= 40)
    ),
    "prefix LM": Pattern(
        masks.Ranges(0, np.maximum(np.arange(N) + 1, 33)),
        {},
        lambda b, h, i, j: (j < 33) | (i >= j),
    ),
    "prefix LM, as a union": Pattern(
        masks.Ranges(0, 33) | CAUSAL, {}, lambda b, h, i, j: (j < 33) | (i >= j)
    ),
    "prefixes of entries": Pattern(
        masks.Ranges(0, np.maximum(np.arange(N) + 1, [[[20]], [[90]]])),
        {},
        lambda b, h, i, j: (j < np.array([20, 90])[b]) | (i >= j),
    ),
    "documents": Pattern(
        masks.documents(DOCUMENT), {}, lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j]
    ),
    "causal documents": Pattern(
        masks.documents(DOCUMENT),
        {"is_causal": True},
        lambda b, h, i, j: (DOCUMENT[i] == DOCUMENT[j]) & (i >= j),
    ),
    "documents with prefixes": Pattern(
        masks.Ranges(START, np.minimum(np.maximum(np.arange(N) + 1, START + 9), END)),
        {},
        lambda b, h, i, j: (
            (DOCUMENT[i] == DOCUMENT[j]) & ((j - START[j] < 9) | (i - START[i] >= j - START[j]))
        ),
    ),
    "documents of entries": Pattern(
        masks.documents(OF_ENTRIES), {}, lambda b, h, i, j: OF_ENTRIES[b, i] == OF_ENTRIES[b, j]
    ),
    "padding": Pattern(None, {"key_lengths": LENGTHS}, lambda b, h, i, j: j < LENGTHS[b]),
    "window and global tokens": Pattern(
        masks.sliding(N, window=(9, 9)) | masks.global_tokens([0, 1, 77], N),
        {},
        lambda b, h, i, j: (abs(i - j) <= 9) | IS_GLOBAL[i] | IS_GLOBAL[j],
    ),
    "dilated window": Pattern(
        masks.sliding(N, window=(5, 5), dilation=4),
        {},
        lambda b, h, i, j: (abs(i - j) <= 20) & (abs(i - j) % 4 == 0),
    ),
    "sink tokens and a window": Pattern(
        masks.sliding(N, window=(25, 0)) | (masks.Ranges(0, 4) & CAUSAL),
        {},
        lambda b, h, i, j: (i >= j) & ((i - j <= 25) | (j < 4)),
    ),
    "sink tokens, by options": Pattern(
        masks.sliding(N, window=(25, None)) | masks.Ranges(0, 4),
        {"is_causal": True},
        lambda b, h, i, j: (i >= j) & ((i - j <= 25) | (j < 4)),
    ),
    "chunks": Pattern(
        masks.from_function(lambda i, j: (j <= i) & (i // 48 == j // 48), N, block=(16, 16)),
        {},
        lambda b, h, i, j: (i >= j) & (i // 48 == j // 48),
    ),
    "blocks": Pattern(
        masks.Blocks(INDPTR, INDICES, shape=(N, N), block=(32, 64)),
        {},
        lambda b, h, i, j: SHOWN_BLOCKS[i // 32, j // 64],
    ),
    "NATTEN": Pattern(masks.neighborhood(GRID, WINDOW), {}, _neighbors),
    "tree": Pattern(
        masks.tree(PARENTS, past=PAST), {}, _in_tree, lengths=(len(PARENTS), PAST + len(PARENTS))
    ),
    "windows of heads": Pattern(
        masks.stack([masks.sliding(N, window=(7 * h, h)) for h in range(HEADS)]),
        {},
        lambda b, h, i, j: (i - j <= 7 * h) & (j - i <= h),
    ),
    "ALiBi": Pattern(
        None,
        {"alibi_slopes": SLOPES, "is_causal": True},
        lambda b, h, i, j: i >= j,
        lambda b, h, i, j: SLOPES[h] * (j - i),
    ),
    "ALiBi, on both sides": Pattern(
        None,
        {"distance_bias": SLOPES[:, None] * np.arange(1 - N, N)},
        bias=lambda b, h, i, j: SLOPES[h] * (j - i),
    ),
    "relative position": Pattern(
        None,
        {"distance_bias": -np.arange(1.0 - N, N)[None] / 64},
        bias=lambda b, h, i, j: (i - j) / 64,
    ),
    "ALiBi in documents": Pattern(
        masks.documents(DOCUMENT),
        {"alibi_slopes": SLOPES},
        lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j],
        lambda b, h, i, j: -SLOPES[h] * abs(j - i),
    ),
    "softcap": Pattern(
        None, {"softcap": 2.0, "is_causal": True}, lambda b, h, i, j: i >= j, None, {"softcap": 2.0}
    ),
    "softcaps of heads": Pattern(None, {"softcap": CAPS}, formula={"softcap": CAPS}),
    "temperatures of heads": Pattern(
        CAUSAL, {"scale": TEMPERATURES}, lambda b, h, i, j: i >= j, None, {"scale": TEMPERATURES}
    ),
    "Gaussian kernel of positions": Pattern(
        None,
        {
            "distance_bias": np.pad(
                -((np.arange(-19, 20) / 6.0) ** 2) / 2, 1, constant_values=-np.inf
            )
        },
        lambda b, h, i, j: abs(i - j) < 20,
        lambda b, h, i, j: -(((i - j) / 6.0) ** 2) / 2,
    ),
    "sigmoid gate of weights": Pattern(
        None,
        {"distance_bias": -np.logaddexp(0, (abs(np.arange(1 - N, N)) - 12) / 4)[None]},
        bias=lambda b, h, i, j: np.log(1 / (1 + np.exp((abs(i - j) - 12) / 4))),
    ),
    "Swin": Pattern(
        masks.documents(ROW // SIDE * 8 + COLUMN // SIDE),
        {"distance_bias": _swin_row()},
        lambda b, h, i, j: (
            (ROW[i] // SIDE == ROW[j] // SIDE) & (COLUMN[i] // SIDE == COLUMN[j] // SIDE)
        ),
        _swin_bias,
    ),
    "Swin, shifted": Pattern(
        masks.documents((ROW + 2) // SIDE * 8 + (COLUMN + 2) // SIDE),
        {"distance_bias": _swin_row()},
        lambda b, h, i, j: (
            ((ROW[i] + 2) // SIDE == (ROW[j] + 2) // SIDE)
            & ((COLUMN[i] + 2) // SIDE == (COLUMN[j] + 2) // SIDE)
        ),
        _swin_bias,
    ),
    "T5": Pattern(
        None,
        {
            "distance_bias": regard.positional.t5_distance_bias(
                SWIN.reshape(-1)[:128].reshape(32, 4)
            )
        },
        bias=lambda b, h, i, j: SWIN.reshape(-1)[:128].reshape(32, 4)[t5_bucket(j - i), h],
    ),
}


def t5_bucket(distance):
    """Return the bucket of a distance, by comparison with the beginning of each bucket."""
    begins = [*range(8), *(8 * 16.0 ** (np.arange(8) / 8))]
    bucket = np.searchsorted(np.array(begins) - 1e-9, abs(distance), side="right") - 1
    return bucket + 16 * (distance > 0)


def indices(pattern, batch=BATCH):
    """Return batch entries, heads, queries and keys that broadcast to the shape of the scores."""
    return np.ogrid[:batch, :HEADS, : pattern.lengths[0], : pattern.lengths[1]]


def arrays(pattern, dtype=np.float64, seed=0):
    """Return a query, a key, a value and a gradient of the output."""
    q_len, kv_len = pattern.lengths
    random = np.random.default_rng(seed)
    shapes = (HEADS, q_len, 16), (KV_HEADS, kv_len, 16), (KV_HEADS, kv_len, 8), (HEADS, q_len, 8)
    return [random.standard_normal((BATCH, *shape)).astype(dtype) for shape in shapes]
