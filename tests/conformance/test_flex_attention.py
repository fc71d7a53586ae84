"""PyTorch's FlexAttention on the CPU, without compilation: its documented masks and scores against
regard's masks and options, in float64, with gradients.

They are from the documentation of torch.nn.attention.flex_attention, from the blog post
"FlexAttention: The Flexibility of PyTorch with the Performance of FlashAttention", and from
github.com/meta-pytorch/attention-gym.
"""

import warnings

import numpy as np
import pytest

import regard
from regard import masks

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install '.[conformance]'"
)
flex = pytest.importorskip("torch.nn.attention.flex_attention")
CLOSE = {"rtol": 1e-9, "atol": 1e-11}

BATCH, HEADS, KV_HEADS, N = 2, 4, 2, 150
SLOPES = 2.0 ** (-8 * (torch.arange(HEADS).double() + 1) / HEADS)
TEMPERATURES = torch.tensor([0.1, 0.3, 0.5, 0.9], dtype=torch.float64)
CAPS = torch.tensor([2.0, 5.0, torch.inf, 0.5], dtype=torch.float64)
DOCUMENT = torch.repeat_interleave(torch.arange(5), torch.tensor([30, 1, 60, 40, 19]))
START = torch.tensor([0, 30, 31, 91, 131])[DOCUMENT]
END = torch.tensor([30, 31, 91, 131, 150])[DOCUMENT]
OF_ENTRIES = torch.stack([DOCUMENT, DOCUMENT.flip(0) // 2])
LENGTHS = torch.tensor([150, 41])
IS_GLOBAL = torch.isin(torch.arange(N), torch.tensor([0, 1, 77]))
GRID, WINDOW = (10, 15), (3, 5)
PARENTS, PAST = [-1, 0, 0, 1, 1, 2, 5, 5, 3, -1, 9], 20
BLOCKS = [[0, 2], [1], [0, 1, 2], [], [2]]
INDPTR, INDICES = [0, 2, 3, 6, 6, 7], [0, 2, 1, 0, 1, 2, 2]
SHOWN_BLOCKS = torch.tensor([[block in row for block in range(3)] for row in BLOCKS])
# Biases of Swin's pairs of distances, for windows of 5 x 5 in rows of 15 tokens.
SIDE, WIDTH = 5, GRID[1]
SWIN = torch.from_numpy(np.random.default_rng(0).standard_normal((HEADS, 9, 9)))
T5 = SWIN.flatten()[:128].reshape(32, HEADS)
# The first distance of each of T5's buckets.
T5_BEGINS = torch.tensor([*range(8), *(8 * 16.0 ** (np.arange(8) / 8))]).double() - 1e-9


def causal(b, h, q, k):
    return q >= k


def documents(b, h, q, k):
    return DOCUMENT[q] == DOCUMENT[k]


def prefix_of_documents(b, h, q, k):
    return documents(b, h, q, k) & ((k - START[k] < 9) | (q - START[q] >= k - START[k]))


def sinks_and_window(b, h, q, k):
    return (q >= k) & ((q - k <= 25) | (k < 4))


def neighborhood(b, h, q, k):
    shown = True
    for of_query, of_key, size, wide in (
        (q // WIDTH, k // WIDTH, GRID[0], WINDOW[0]),
        (q % WIDTH, k % WIDTH, WIDTH, WINDOW[1]),
    ):
        middle = torch.clamp(of_query, wide // 2, size - 1 - wide // 2)
        shown = shown & ((middle - of_key).abs() <= wide // 2)
    return shown


def ancestors():
    """Return, for each node of the tree, the node itself and its ancestors."""
    above = torch.eye(len(PARENTS), dtype=torch.bool)
    for node, parent in enumerate(PARENTS):
        if parent >= 0:
            above[node] |= above[parent]
    return above


ANCESTORS = ancestors()


def swin_window(at, shift):
    return (at // WIDTH + shift) // SIDE * 8 + (at % WIDTH + shift) // SIDE


def swin_bias(score, b, h, q, k):
    down, right = (
        torch.clamp(each, 1 - SIDE, SIDE - 1) + SIDE - 1
        for each in (k // WIDTH - q // WIDTH, k % WIDTH - q % WIDTH)
    )
    return score + SWIN[h, down, right]


def swin(shift):
    """Return regard's mask and options, and the functions for FlexAttention."""
    reach = np.arange(1 - SIDE, SIDE)
    place = WIDTH * reach[:, None] + reach
    row = np.zeros((HEADS, 2 * place.max() + 1))
    row[:, place.max() + place] = SWIN.numpy()
    return (
        masks.documents(swin_window(np.arange(N), shift)),
        {"distance_bias": row},
        lambda b, h, q, k: swin_window(q, shift) == swin_window(k, shift),
        swin_bias,
    )


def softcaps(score, b, h, q, k):
    is_capped = torch.isfinite(CAPS[h])
    cap = torch.where(is_capped, CAPS[h], 1)
    return torch.where(is_capped, cap * torch.tanh(score / cap), score)


def t5(score, b, h, q, k):
    bucket = torch.searchsorted(T5_BEGINS, (k - q).abs().double(), right=True) - 1
    return score + T5[bucket + 16 * (k > q), h]


WHOLE_CAUSAL = masks.sliding(N, window=(None, 0))
# regard's mask and options, and FlexAttention's mask_mod and score_mod.
PATTERNS = {
    "offset of a cache": (
        *(None, {"is_causal": True, "query_offset": 90}),
        *(lambda b, h, q, k: q + 90 >= k, None),
    ),
    "sliding window": (
        *(None, {"window": (40, 0)}),
        *(lambda b, h, q, k: (q >= k) & (q - k <= 40), None),
    ),
    "prefixes of entries": (
        *(masks.Ranges(0, np.maximum(np.arange(N) + 1, [[[20]], [[90]]])), {}),
        *(lambda b, h, q, k: (k < torch.where(b == 0, 20, 90)) | (q >= k), None),
    ),
    "causal documents": (
        *(masks.documents(DOCUMENT.numpy()), {"is_causal": True}),
        *(flex.and_masks(documents, causal), None),
    ),
    "documents with prefixes": (
        masks.Ranges(
            *(
                x.numpy()
                for x in (START, torch.minimum(torch.maximum(torch.arange(N) + 1, START + 9), END))
            )
        ),
        {},
        *(prefix_of_documents, None),
    ),
    "documents of entries": (
        *(masks.documents(OF_ENTRIES.numpy()), {}),
        *(lambda b, h, q, k: OF_ENTRIES[b, q] == OF_ENTRIES[b, k], None),
    ),
    "padding": (
        *(None, {"key_lengths": LENGTHS.numpy()}),
        *(lambda b, h, q, k: k < LENGTHS[b], None),
    ),
    "window and global tokens": (
        *(masks.sliding(N, window=(9, 9)) | masks.global_tokens([0, 1, 77], N), {}),
        *(lambda b, h, q, k: ((q - k).abs() <= 9) | IS_GLOBAL[q] | IS_GLOBAL[k], None),
    ),
    "dilated window": (
        *(masks.sliding(N, window=(5, 5), dilation=4), {}),
        *(lambda b, h, q, k: ((q - k).abs() <= 20) & ((q - k).abs() % 4 == 0), None),
    ),
    "sink tokens and a window": (
        *(masks.sliding(N, window=(25, 0)) | (masks.Ranges(0, 4) & WHOLE_CAUSAL), {}),
        *(sinks_and_window, None),
    ),
    "chunks": (
        masks.from_function(lambda i, j: (j <= i) & (i // 48 == j // 48), N, block=(16, 16)),
        {},
        *(lambda b, h, q, k: (q >= k) & (q // 48 == k // 48), None),
    ),
    "blocks": (
        *(masks.Blocks(INDPTR, INDICES, shape=(N, N), block=(32, 64)), {}),
        *(lambda b, h, q, k: SHOWN_BLOCKS[q // 32, k // 64], None),
    ),
    "NATTEN": (masks.neighborhood(GRID, WINDOW), {}, neighborhood, None),
    "tree": (
        *(masks.tree(PARENTS, past=PAST), {}),
        *(lambda b, h, q, k: (k < PAST) | ANCESTORS[q, torch.clamp(k - PAST, min=0)], None),
    ),
    "windows of heads": (
        *(masks.stack([masks.sliding(N, window=(7 * h, h)) for h in range(HEADS)]), {}),
        *(lambda b, h, q, k: (q - k <= 7 * h) & (k - q <= h), None),
    ),
    "ALiBi": (
        *(None, {"alibi_slopes": SLOPES.numpy(), "is_causal": True}),
        *(causal, lambda score, b, h, q, k: score + SLOPES[h] * (k - q)),
    ),
    "softcaps of heads": (None, {"softcap": CAPS.numpy()}, None, softcaps),
    "temperatures of heads": (
        *(WHOLE_CAUSAL, {"scale": TEMPERATURES.numpy()}),
        causal,
        lambda score, b, h, q, k: score * TEMPERATURES[h] * 4,  # FlexAttention's scale is 1 / 4
    ),
    "sigmoid gate of weights": (
        *(None, {"distance_bias": -np.logaddexp(0, (abs(np.arange(1 - N, N)) - 12) / 4)[None]}),
        None,
        lambda score, b, h, q, k: score + torch.sigmoid(-((q - k).abs() - 12).double() / 4).log(),
    ),
    "Swin": swin(0),
    "Swin, shifted": swin(2),
    "T5": (
        *(None, {"distance_bias": regard.positional.t5_distance_bias(T5.numpy())}),
        *(None, t5),
    ),
}
OTHER_LENGTHS = {
    "offset of a cache": (7, N),
    "tree": (len(PARENTS), PAST + len(PARENTS)),
}


def of_regard(query, key, value, grad, mask, options):
    arrays = [each.numpy() for each in (query, key, value)]
    output, lse = regard.scaled_dot_product_attention(*arrays, mask, **options, return_lse=True)
    gradients = regard.scaled_dot_product_attention_backward(
        grad.numpy(), *arrays, output, lse, mask, **options
    )
    return output, lse, gradients.query, gradients.key, gradients.value


def of_flex_attention(query, key, value, mask_mod, score_mod):
    """Return the output and the lse."""
    block_mask = None
    if mask_mod is not None:
        lengths = query.shape[-2], key.shape[-2]
        block_mask = flex.create_block_mask(mask_mod, BATCH, HEADS, *lengths, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # slow without torch.compile
        output, more = flex.flex_attention(
            *(query, key, value),
            score_mod=score_mod,
            block_mask=block_mask,
            enable_gqa=True,
            return_aux=flex.AuxRequest(lse=True),
        )
    return output, more.lse


def gradients_of_formula(query, key, value, grad, mask_mod, score_mod):
    """Return gradients by autograd through the functions and the plain formula, since
    FlexAttention has no gradients on the CPU."""
    inputs = [each.requires_grad_() for each in (query, key, value)]
    key, value = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    at = [torch.from_numpy(each) for each in np.ogrid[tuple(slice(n) for n in scores.shape)]]
    if score_mod is not None:
        scores = score_mod(scores, *at)
    if mask_mod is not None:
        scores = torch.where(mask_mod(*at), scores, -torch.inf)
    weights = torch.nan_to_num(torch.softmax(scores, dim=-1))  # 0 if a query is fully masked
    return torch.autograd.grad(weights @ value, inputs, grad)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name):
    mask, options, *mods = PATTERNS[name]
    q_len, kv_len = OTHER_LENGTHS.get(name, (N, N))
    random = np.random.default_rng(0)
    shapes = (HEADS, q_len, 16), (KV_HEADS, kv_len, 16), (KV_HEADS, kv_len, 8), (HEADS, q_len, 8)
    tensors = [torch.from_numpy(random.standard_normal((BATCH, *shape))) for shape in shapes]
    found = of_regard(*tensors, mask, options)
    wanted = *of_flex_attention(*tensors[:3], *mods), *gradients_of_formula(*tensors, *mods)
    names = ("output", "lse", "query", "key", "value")
    for each, one, other in zip(names, found, wanted, strict=True):
        np.testing.assert_allclose(one, other.numpy(), **CLOSE, err_msg=each)
