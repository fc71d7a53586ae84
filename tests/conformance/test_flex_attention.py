"""PyTorch's FlexAttention on the CPU, without compilation: its mods against regard's masks and
options, in float64, with gradients."""

import warnings

import numpy as np
import pytest

import pattern_cases
import regard
from pattern_cases import BATCH, FLEX, HEADS, KV_HEADS

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install '.[conformance]'"
)
flex = pytest.importorskip("torch.nn.attention.flex_attention")
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def tensors(*arrays):
    return [torch.from_numpy(np.array(array)) for array in arrays]


DOCUMENT, START, OF_ENTRIES = tensors(
    pattern_cases.DOCUMENT, pattern_cases.START, pattern_cases.OF_ENTRIES
)
LENGTHS, IS_GLOBAL, SHOWN = tensors(
    pattern_cases.LENGTHS, pattern_cases.IS_GLOBAL, pattern_cases.SHOWN_BLOCKS
)
ANCESTORS, SLOPES, CAPS = tensors(pattern_cases.ANCESTORS, pattern_cases.SLOPES, pattern_cases.CAPS)
TEMPERATURES, SWIN = tensors(pattern_cases.TEMPERATURES, pattern_cases.SWIN)
WIDTH, SIDE, PAST = pattern_cases.GRID[1], pattern_cases.SIDE, pattern_cases.PAST


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def prefix(b, h, q_idx, kv_idx):
    return kv_idx < 33


def window(b, h, q_idx, kv_idx):
    return q_idx - kv_idx <= 40


def documents(b, h, q_idx, kv_idx):
    return DOCUMENT[q_idx] == DOCUMENT[kv_idx]


def prefix_of_documents(b, h, q_idx, kv_idx):
    q_logical, kv_logical = q_idx - START[q_idx], kv_idx - START[kv_idx]
    return (kv_logical < 9) | (q_logical >= kv_logical)


def recent_or_first(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx <= 25) | (kv_idx < 4)


def neighborhood(b, h, q_idx, kv_idx):
    shown = True
    for of_query, of_key, size, wide in (
        (q_idx // WIDTH, kv_idx // WIDTH, pattern_cases.GRID[0], pattern_cases.WINDOW[0]),
        (q_idx % WIDTH, kv_idx % WIDTH, WIDTH, pattern_cases.WINDOW[1]),
    ):
        middle = torch.clamp(of_query, wide // 2, size - 1 - wide // 2)
        shown = shown & ((middle - of_key).abs() <= wide // 2)
    return shown


def swin_windows(shift):
    def mod(b, h, q_idx, kv_idx):
        rows = (q_idx // WIDTH + shift) // SIDE == (kv_idx // WIDTH + shift) // SIDE
        return rows & ((q_idx % WIDTH + shift) // SIDE == (kv_idx % WIDTH + shift) // SIDE)

    return mod


def swin_bias(score, b, h, q_idx, kv_idx):
    down = torch.clamp(kv_idx // WIDTH - q_idx // WIDTH, 1 - SIDE, SIDE - 1)
    right = torch.clamp(kv_idx % WIDTH - q_idx % WIDTH, 1 - SIDE, SIDE - 1)
    return score + SWIN[h, down + SIDE - 1, right + SIDE - 1]


def gate(q_idx, kv_idx):
    return torch.sigmoid(-((q_idx - kv_idx).abs() - 12).double() / 4)


def softcaps(score, b, h, q_idx, kv_idx):
    is_capped = torch.isfinite(CAPS[h])
    cap = torch.where(is_capped, CAPS[h], 1)
    return torch.where(is_capped, cap * torch.tanh(score / cap), score)


# A mask_mod or None, and a score_mod or None, for each pattern.
MODS = {
    "causal": (causal, None),
    "causal, as a mask": (causal, None),
    "offset of a cache": (lambda b, h, q, k: q + 90 >= k, None),
    "sliding window, as a mask": (flex.and_masks(causal, window), None),
    "prefix LM": (flex.or_masks(prefix, causal), None),
    "prefix LM, as a union": (flex.or_masks(prefix, causal), None),
    "prefixes of entries": (lambda b, h, q, k: (k < torch.where(b == 0, 20, 90)) | (q >= k), None),
    "documents": (documents, None),
    "causal documents": (flex.and_masks(documents, causal), None),
    "documents with prefixes": (flex.and_masks(documents, prefix_of_documents), None),
    "documents of entries": (lambda b, h, q, k: OF_ENTRIES[b, q] == OF_ENTRIES[b, k], None),
    "padding": (lambda b, h, q, k: k < LENGTHS[b], None),
    "window and global tokens": (
        lambda b, h, q, k: ((q - k).abs() <= 9) | IS_GLOBAL[q] | IS_GLOBAL[k],
        None,
    ),
    "dilated window": (
        lambda b, h, q, k: ((q - k).abs() <= 20) & ((q - k).abs() % 4 == 0),
        None,
    ),
    "sink tokens and a window": (flex.and_masks(recent_or_first, causal), None),
    "sink tokens, by options": (flex.and_masks(recent_or_first, causal), None),
    "chunks": (lambda b, h, q, k: (q >= k) & (q // 48 == k // 48), None),
    "blocks": (lambda b, h, q, k: SHOWN[q // 32, k // 64], None),
    "NATTEN": (neighborhood, None),
    "tree": (
        lambda b, h, q, k: (k < PAST) | ANCESTORS[q, torch.clamp(k - PAST, min=0)],
        None,
    ),
    "windows of heads": (lambda b, h, q, k: (q - k <= 7 * h) & (k - q <= h), None),
    "ALiBi": (causal, lambda score, b, h, q, k: score + SLOPES[h] * (k - q)),
    "ALiBi in documents": (
        documents,
        lambda score, b, h, q, k: score - SLOPES[h] * (k - q).abs(),
    ),
    "softcap": (causal, lambda score, b, h, q, k: 2 * torch.tanh(score / 2)),
    "softcaps of heads": (None, softcaps),
    "temperatures of heads": (
        causal,  # the scale of PyTorch's call is 1 / 4
        lambda score, b, h, q, k: score * TEMPERATURES[h] * 4,
    ),
    "Gaussian kernel of positions": (
        lambda b, h, q, k: (q - k).abs() < 20,
        lambda score, b, h, q, k: score - ((q - k).double() / 6) ** 2 / 2,
    ),
    "sigmoid gate of weights": (
        None,
        lambda score, b, h, q, k: score + torch.log(gate(q, k)),
    ),
    "Swin": (swin_windows(0), swin_bias),
    "Swin, shifted": (swin_windows(2), swin_bias),
}


def of_flex_attention(arrays, mask_mod, score_mod, lengths):
    """Return the output and the lse."""
    block_mask = None
    if mask_mod is not None:
        block_mask = flex.create_block_mask(mask_mod, BATCH, HEADS, *lengths, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # slow without torch.compile
        output, more = flex.flex_attention(
            *tensors(*arrays),
            score_mod=score_mod,
            block_mask=block_mask,
            enable_gqa=True,
            return_aux=flex.AuxRequest(lse=True),
        )
    return output.numpy(), more.lse.numpy()


def gradients_of_formula(arrays, mask_mod, score_mod, lengths):
    """Return gradients by autograd through the mods and the plain formula, since FlexAttention has
    no gradients on the CPU."""
    *inputs, grad = tensors(*arrays)
    query, key, value = (each.requires_grad_() for each in inputs)
    key, value = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (key, value))
    at = tensors(*np.ogrid[:BATCH, :HEADS, : lengths[0], : lengths[1]])
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if score_mod is not None:
        scores = score_mod(scores, *at)
    if mask_mod is not None:
        scores = torch.where(mask_mod(*at), scores, -torch.inf)
    weights = torch.nan_to_num(torch.softmax(scores, dim=-1))  # 0 if a query is fully masked
    return [each.numpy() for each in torch.autograd.grad(weights @ value, inputs, grad)]


def of_regard(arrays, mask, options):
    *inputs, grad = arrays
    output, lse = regard.scaled_dot_product_attention(*inputs, mask, **options, return_lse=True)
    gradients = regard.scaled_dot_product_attention_backward(
        grad, *inputs, output, lse, mask, **options
    )
    return output, lse, gradients.query, gradients.key, gradients.value


def assert_alike(arrays, found, mods, lengths):
    wanted = of_flex_attention(arrays[:3], *mods, lengths)
    wanted = *wanted, *gradients_of_formula(arrays, *mods, lengths)
    names = ("output", "lse", "query", "key", "value")
    for name, one, other in zip(names, found, wanted, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE, err_msg=name)


@pytest.mark.parametrize("name", MODS)
def test_mods(name):
    pattern = FLEX[name]
    arrays = pattern_cases.arrays(pattern)
    found = of_regard(arrays, pattern.mask, pattern.options)
    assert_alike(arrays, found, MODS[name], pattern.lengths)
