"""Masks known by their pattern show what the masks of `sdpa` show, and behave like them."""

import copy
import itertools
import pickle

import numpy as np
import pytest

from reference import lay_out
from zoo import masking_utils, regard, torch, transformers

make_mask = regard.transformers._masks.make_mask
PatternMask = regard.transformers._pattern_mask.PatternMask
BATCH = 3
# (q_length, kv_length, q_offset, kv_offset): from the start, within a growing cache, a token, an
# empty and a filled static cache, a moved window, and queries that do not see any key yet.
SHAPES = [
    (6, 6, 0, 0),
    (3, 9, 6, 0),
    (1, 9, 8, 0),
    (4, 12, 0, 0),
    (2, 12, 5, 0),
    (3, 5, 9, 7),
    (4, 4, 2, 3),
]
CHUNKS_BEGIN = torch.tensor([2, 0, 1])
FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "bidirectional": masking_utils.bidirectional_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "window of one": masking_utils.sliding_window_causal_mask_function(1),
    "two-sided window": masking_utils.sliding_window_bidirectional_mask_function(2),
    "both windows": masking_utils.and_masks(
        masking_utils.sliding_window_overlay(4),
        masking_utils.sliding_window_bidirectional_overlay(2),
    ),
    "one chunk": masking_utils.chunked_causal_mask_function(12, CHUNKS_BEGIN),
    "chunks": masking_utils.chunked_causal_mask_function(4, CHUNKS_BEGIN),
    "chunks of one": masking_utils.chunked_causal_mask_function(1, CHUNKS_BEGIN),
    "chunks and windows": masking_utils.and_masks(
        masking_utils.chunked_overlay(4, CHUNKS_BEGIN),
        masking_utils.chunked_overlay(3, CHUNKS_BEGIN),
        masking_utils.sliding_window_bidirectional_overlay(2),
    ),
}
OTHERS = {
    "either": masking_utils.or_masks(
        masking_utils.sliding_window_overlay(3), masking_utils.causal_mask_function
    ),
    "unknown": lambda batch, head, query, key: (key + query) % 2 == 0,
    "part unknown": masking_utils.and_masks(
        masking_utils.causal_mask_function, lambda batch, head, query, key: key != 2
    ),
    "a chunk like a tensor": masking_utils.chunked_overlay(torch.tensor(4), CHUNKS_BEGIN),
    "a window like a tensor": masking_utils.sliding_window_causal_mask_function(torch.tensor(3)),
}


def padding(name, length):
    """Return which tokens are real. The chunks of entry 0 begin at 2 and those of entry 2 at 1."""
    if name is None:
        return None
    tokens = torch.ones(BATCH, length, dtype=torch.bool)
    if name == "left":
        tokens[0, :2], tokens[2, :1] = False, False
    elif name == "right":
        tokens[1, -2:] = False
    elif name == "both":
        tokens[0, :2], tokens[0, -1:], tokens[2, :1] = False, False, False
    elif name == "holes":
        tokens[0, :2], tokens[2, :1], tokens[1, 3] = False, False, False
    elif name == "an empty entry":
        tokens[0, :2], tokens[2, :1], tokens[1] = False, False, False
    return tokens


PADDINGS = [None, "none", "left", "right", "both", "holes", "an empty entry"]


def masks(shape, function, tokens, **changes):
    """Return regard's mask, and the mask of `sdpa`."""
    words = dict(zip(("q_length", "kv_length", "q_offset", "kv_offset"), shape, strict=True))
    words |= {"batch_size": BATCH, "mask_function": function, "attention_mask": tokens} | changes
    wanted = masking_utils.sdpa_mask(**words, allow_is_causal_skip=False)
    return make_mask(**words), wanted


def shown_by(mask):
    """Return what the options of a mask show, according to the tests' reference."""
    options, array = mask.options_or_array()
    assert array is None
    options = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    shown = options.get("attn_mask")
    if isinstance(shown, regard.masks.SparseMask):
        options["attn_mask"] = shown.to_dense()
    query, key = (np.zeros((BATCH, 1, length, 1)) for length in mask.shape[2:])
    return lay_out(
        query, key, key, options.pop("attn_mask", None), **options, precision=np.float64
    ).seen


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_patterns(shape, function):
    for name, extra in itertools.product(PADDINGS, (0, 2, -2)):
        if function == "one chunk" and name not in ("left", "both", "holes", "an empty entry"):
            continue  # Its chunks begin after this padding.
        tokens = padding(name, shape[3] + shape[1] + extra)
        mask, wanted = masks(shape, FUNCTIONS[function], tokens)
        assert type(mask) is PatternMask
        assert mask.shape == wanted.shape
        assert mask.dtype == torch.bool
        assert np.array_equal(shown_by(mask), wanted.numpy()), (name, extra)
        assert torch.equal(mask & True, wanted)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", OTHERS)
def test_other_functions_get_the_array(shape, function):
    mask, wanted = masks(shape, OTHERS[function], padding("left", 15))
    assert type(mask) is torch.Tensor
    assert torch.equal(mask, wanted)


@pytest.mark.parametrize("function", ["one chunk", "chunks"])
def test_chunks_that_begin_in_what_is_no_padding(function):
    mask, wanted = masks(SHAPES[0], FUNCTIONS[function], None)
    assert np.array_equal(shown_by(mask), wanted.numpy())


def packed(function, positions, text=None):
    """Return what transformers makes of a mask function and positions that restart."""
    text = masking_utils.find_packed_sequence_indices(positions) if text is None else text
    return masking_utils.and_masks(
        masking_utils.remap_positions_for_packed_sequence(function, positions),
        masking_utils.packed_sequence_mask_function(text),
    )


POSITIONS = torch.tensor(
    [[0, 1, 2, 3, 4, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5, 6, 7, 8], [7, 8, 0, 0, 1, 3, 4, 5, 2]]
)
WITHIN = {name: FUNCTIONS[name] for name in ("causal", "bidirectional", "window", "both windows")}
WITHIN["chunks"] = masking_utils.chunked_causal_mask_function(3, torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("function", WITHIN)
def test_packed_texts(function):
    mask, wanted = masks((9, 9, 0, 0), packed(WITHIN[function], POSITIONS), None)
    assert type(mask) is PatternMask
    assert isinstance(mask.options_or_array()[0]["attn_mask"], regard.masks.SparseMask)
    assert np.array_equal(shown_by(mask), wanted.numpy())
    assert torch.equal(mask & True, wanted)


CAUSAL = FUNCTIONS["causal"]
TEXT = masking_utils.find_packed_sequence_indices(POSITIONS)
NOT_PACKED = {
    "positions that are not consecutive in a text": packed(CAUSAL, POSITIONS * 2, TEXT),
    "texts in another order": packed(CAUSAL, POSITIONS, -TEXT),
    "positions without texts": masking_utils.remap_positions_for_packed_sequence(CAUSAL, POSITIONS),
    "positions twice": packed(
        masking_utils.remap_positions_for_packed_sequence(CAUSAL, POSITIONS), POSITIONS
    ),
    "positions of positions": packed(packed(CAUSAL, POSITIONS), POSITIONS),
    "texts twice": masking_utils.and_masks(
        masking_utils.remap_positions_for_packed_sequence(CAUSAL, POSITIONS),
        masking_utils.packed_sequence_mask_function(TEXT),
        masking_utils.packed_sequence_mask_function(TEXT // 2),
    ),
    "an unknown function": packed(OTHERS["unknown"], POSITIONS),
}


@pytest.mark.parametrize("function", NOT_PACKED)
def test_what_is_like_packed_texts(function):
    mask, wanted = masks((9, 9, 0, 0), NOT_PACKED[function], None)
    assert type(mask) is torch.Tensor
    assert torch.equal(mask, wanted)


def test_packed_texts_of_other_lengths():
    """The texts cover all tokens, and the mask begins with the first."""
    shape = (4, 4, 2, 2)
    mask, wanted = masks(shape, packed(CAUSAL, POSITIONS), None)
    assert type(mask) is torch.Tensor
    assert torch.equal(mask, wanted)


def test_offsets_in_a_tensor():
    mask, wanted = masks((2, 12, torch.tensor(5), 0), FUNCTIONS["window"], padding("left", 12))
    assert np.array_equal(shown_by(mask), wanted.numpy())


def test_what_hides_nothing_may_be_left_out():
    bidirectional = FUNCTIONS["bidirectional"]
    mask, _ = masks(SHAPES[0], bidirectional, padding("none", 6), allow_is_bidirectional_skip=True)
    assert mask is None
    mask, _ = masks(SHAPES[0], bidirectional, padding("left", 6), allow_is_bidirectional_skip=True)
    assert torch.equal(mask[:, 0, 0], padding("left", 6))


def test_functions_that_a_model_adds():
    """transformers makes such masks with vmap, which does not work within an operator."""
    mask, wanted = masks(SHAPES[0], FUNCTIONS["both windows"], padding("left", 6), use_vmap=True)
    assert type(mask) is PatternMask
    assert torch.equal(mask & True, wanted)


def test_no_elements_are_read_on_the_meta_device():
    mask = make_mask(2, 5, 5, device="meta", allow_is_causal_skip=False)
    assert mask.is_meta
    assert type(mask) is torch.Tensor


LEFT = padding("left", 6)
OPERATIONS = {
    "&": lambda mask: mask & torch.eye(6, dtype=torch.bool),
    "~": lambda mask: ~mask,
    "slice": lambda mask: mask[:, :, :, :4],
    "step": lambda mask: mask[:, :, ::2],
    "index": lambda mask: mask[:, 0],
    "to float": lambda mask: mask.to(torch.float64),
    "where": lambda mask: torch.where(mask, 0.0, -1.0),
    "masked_fill": lambda mask: mask.masked_fill(~LEFT[:, None, None], False),
    "expand": lambda mask: mask.expand(BATCH, 4, 6, 6),
    "cat": lambda mask: torch.cat([mask, mask], dim=-1),
    "any": lambda mask: mask.any(dim=-1),
    "all": lambda mask: mask.all(),
    "equal": lambda mask: torch.tensor(torch.equal(mask, mask)),
    "clone": lambda mask: mask.clone(),
    "repeat": lambda mask: mask.repeat(1, 2, 1, 1),
    "unsqueeze": lambda mask: mask.unsqueeze(1),
    "reshape": lambda mask: mask.reshape(BATCH, -1),
    "list": lambda mask: torch.tensor((mask & True).tolist()),
    "out": lambda mask: torch.logical_not(mask, out=torch.zeros(mask.shape, dtype=torch.bool)),
}


def example():
    return masks(SHAPES[0], FUNCTIONS["window"], LEFT)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations(operation):
    mask, wanted = example()
    actual, wanted = (OPERATIONS[operation](x) for x in (mask, wanted))
    assert type(actual) is torch.Tensor
    assert actual.dtype == wanted.dtype
    assert torch.equal(actual, wanted)


def hide_first(mask):
    mask[:, :, :, 0] = False


def hide_through_a_view(mask):
    mask.detach()[:, :, :, :].view(BATCH, 6, 6)[:, 2].fill_(False)


def hide_all(mask):
    mask.zero_()


def show_through_and(mask):
    mask &= torch.eye(6, dtype=torch.bool)


@pytest.mark.parametrize("edit", [hide_first, hide_through_a_view, hide_all, show_through_and])
def test_edits_are_seen(edit):
    mask, wanted = example()
    wanted = wanted.clone()
    alias = mask.detach()
    edit(mask)
    edit(wanted)
    for each in (mask, alias):
        options, array = each.options_or_array()
        assert options == {}
        assert torch.equal(array, wanted)
        assert torch.equal(each & True, wanted)


@pytest.mark.parametrize(
    "look",
    [
        lambda mask: mask.any(),
        lambda mask: mask.to(torch.float32),
        lambda mask: mask[:, :, :6, :100],
        lambda mask: mask.detach(),
        lambda mask: mask.to("cpu"),
        lambda mask: mask.contiguous(),
        lambda mask: mask & True,
        repr,
    ],
)
def test_looking_keeps_the_pattern(look):
    mask, wanted = example()
    look(mask)
    assert np.array_equal(shown_by(mask), wanted.numpy())


def test_whole_slices_keep_the_pattern():
    mask, wanted = example()
    assert np.array_equal(shown_by(mask[:, :, :, :6]), wanted.numpy())


@pytest.mark.parametrize(
    "copy_of",
    [
        lambda mask: torch.from_numpy(mask.numpy()),
        lambda mask: torch.from_numpy(np.asarray(mask)),
        lambda mask: torch.from_numpy(np.from_dlpack(mask.view(torch.uint8)) == 1),
        lambda mask: torch.tensor(mask.tolist()),
        lambda mask: mask.share_memory_(),
        copy.deepcopy,
        copy.copy,
        lambda mask: pickle.loads(pickle.dumps(mask)),
    ],
)
def test_what_reads_memory(copy_of):
    mask, wanted = example()
    copied = copy_of(mask)
    assert type(copied) is torch.Tensor
    assert torch.equal(copied, wanted)
    assert mask.data_ptr()


def test_its_name():
    mask, _ = example()
    assert repr(mask).startswith("PatternMask({")
    assert "'window': (2, None)" in repr(mask)


def test_interface_of_transformers():
    assert transformers.AttentionMaskInterface()["regard"] is make_mask
