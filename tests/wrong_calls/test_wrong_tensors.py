"""Wrong calls of regard.torch: dense, packed and nested tensors, linear attention, recordings,
block masks, and FlashAttention's functions."""

import re

import numpy as np
import pytest

from messages import check, each

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')

import regard.torch  # noqa: E402
from regard.torch import (  # noqa: E402
    block_mask,
    flash_attn,
    linear_attention,
    record,
    scaled_dot_product_attention,
    scaled_dot_product_attention_ragged,
)

nn, zeros, meta = torch.nn, torch.zeros, {"device": "meta"}
by_another_name = torch.nn.functional.scaled_dot_product_attention
flex, bias = (pytest.importorskip(f"torch.nn.attention.{n}") for n in ("flex_attention", "bias"))
SHAPES = {"query": (2, 4, 5, 8), "key": (2, 4, 9, 8), "value": (2, 4, 9, 6)}
SPARSE = regard.masks.Ranges(0, np.full(5, 9))
CAUSAL, OTHER = bias.causal_lower_right(5, 9), bias.causal_upper_left(5, 8)
BLOCKS = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 5, 9, "cpu")
AFTER, NO_MEMORY = zeros(9, 3, 8), zeros(2, 4, 5, 8)
NO_MEMORY.untyped_storage().resize_(0)
DROPS = {"dropout_p": 0.5, "dropout_seed": 1}
QUERIES, KEYS = [0, 3, 3, 10, 11], [0, 5, 9, 9, 30]
NESTED, JAGGED = (
    torch.nested.nested_tensor([zeros(3, 8), zeros(7, 8)], layout=layout)
    for layout in (torch.strided, torch.jagged)
)
MASKED = torch.masked.masked_tensor(torch.ones(4), torch.ones(4) > 0)


def heads(*lengths, dim=8):
    """Return a nested tensor of 4 heads."""
    tensors = [zeros(length, 4, dim) for length in lengths]
    return torch.nested.nested_tensor(tensors, layout=torch.jagged).transpose(1, 2)


def attend(changes, **options):
    tensors = {name: zeros(shape) for name, shape in SHAPES.items()} | changes
    return scaled_dot_product_attention(**tensors, **options)


def packed(changes, **options):
    good = {"query": zeros(11, 4, 8), "key": zeros(30, 2, 8), "value": zeros(30, 2, 6)}
    good |= {"query_starts": QUERIES, "key_starts": KEYS, "enable_gqa": True}
    return scaled_dot_product_attention_ragged(**good | changes, **options)


def nested(changes, **options):
    good = {name: heads(3, 7) for name in SHAPES}
    return scaled_dot_product_attention(**good | changes, **options)


def linear(changes):
    good = {"query": zeros(2, 4, 5, 8), "key": zeros(2, 4, 5, 8), "value": zeros(2, 4, 5, 6)}
    return linear_attention(**good | changes)


DENSE = [
    ({"query": np.zeros((4, 5, 8), np.float32)}, TypeError, "query must be a ... got ndarray"),
    ({"key": zeros(2, 4, 9, 8).int()}, TypeError, "key must be a tensor of ... got torch.int32"),
    ({"query": zeros(5, 8).to(torch.float8_e5m2)}, TypeError, "query ... got torch.float8_e5m2"),
    ({"key": zeros(2, 4, 9, 8).half()}, TypeError, "key must have the type ... got torch.float16"),
    ({"value": zeros(9, 6, **meta)}, ValueError, "value must be on the device ... got meta"),
    ({"key": zeros(9, 8).to_sparse()}, TypeError, "key must be a ... got layout ... pass it as"),
    ({"query": NESTED, "key": NESTED, "value": NESTED}, TypeError, "query must be a ... got a"),
    ({"value": NESTED}, TypeError, "value must be a dense ... got a nested ... create it with"),
    ({"key": JAGGED, "value": JAGGED}, TypeError, "key must be a dense tensor ... got a nested"),
    ({"query": CAUSAL}, TypeError, "query must have elements ... got a CausalBias ... pass it by"),
    ({"query": NO_MEMORY}, RuntimeError, "a tensor of shape (2, 4"),
    ({"key": zeros(2, 2, 9, 8), "value": zeros(2, 2, 9, 6)}, ValueError, "query ... got query (2"),
    ({"query": zeros(7, 3, 8), "key": AFTER, "value": AFTER}, ValueError, "query"),
    (
        {"query": zeros(2, 6, 5, 8), "key": zeros(2, 3, 9, 8), "enable_gqa": True},
        ValueError,
        "the number of heads of query ... got 6, 3",
    ),
    ({"key": zeros(2, 4, 9, 7)}, ValueError, "query and key must share head_dim ... got 8 and"),
    ({"attn_mask": zeros(5, 9).int()}, TypeError, "attn_mask must be bool ... got torch.int32"),
    ({"attn_mask": zeros(5, 9, **meta)}, ValueError, "attn_mask must be on the ... got meta"),
    ({"attn_mask": zeros(5, 9).to_sparse()}, TypeError, "attn_mask must be a dense"),
    ({"attn_mask": NESTED}, TypeError, "attn_mask must be a ... got a nested ... pass a dense"),
    ({"attn_mask": MASKED}, TypeError, "attn_mask must be a ... got a MaskedTensor ... pass its"),
    ({"attn_mask": SPARSE[:3]}, ValueError, "attn_mask must broadcast to (... ... got a sparse"),
    ({"attn_mask": OTHER}, ValueError, "attn_mask must be a CausalBias for ... got lengths (5"),
    ({"attn_mask": CAUSAL, "is_causal": True}, ValueError, "attn_mask is a"),
    ({"attn_mask": CAUSAL[None]}, TypeError, "attn_mask must be a CausalBias ... got the result"),
    ({"attn_mask": (zeros(9) > 0, CAUSAL)}, TypeError, "attn_mask must have ... pass it"),
    ({"attn_mask": BLOCKS}, TypeError, "attn_mask must be a ... convert it with"),
    ({"block_mask": BLOCKS}, TypeError, "no argument block_mask ... pass"),
    ({"is_causal": 1}, TypeError, "is_causal must be True or False, got int"),
    ({"scale": "1"}, TypeError, "scale must be a real number, got str"),
    ({"scale": MASKED}, TypeError, "scale must be a dense ... got a MaskedTensor ... pass its"),
    ({"window": 4}, TypeError, "window must be a pair (left ... got int"),
    ({"query_offset": None}, TypeError, 'query_offset must be integers or "end", got None'),
    ({"key_lengths": zeros(2, **meta).long()}, ValueError, "key_lengths must be on ... got meta"),
    ({"key_lengths": NESTED}, TypeError, "key_lengths must be a ... pass a dense"),
    ({"key_lengths": CAUSAL}, TypeError, "key_lengths must have elements ... pass it by"),
    ({"sinks": zeros(4).to_sparse()}, TypeError, "sinks must be a ... got layout ... pass it as"),
    ({"score_function": abs}, TypeError, "score_function must ... got builtin_function_or_method"),
    ({"dropout_p": 0.5, "dropout_seed": -1}, ValueError, "dropout_seed must be from 0 ... got -1"),
    ({"dropout_p": 0.5, "dropout_seed": torch.tensor([1, 2])}, TypeError, "dropout_seed"),
    (DROPS | {"dropout_seed": torch.tensor(3, **meta)}, ValueError, "dropout_seed must ... got a"),
    ({**DROPS, "dropout_origin": np.array(1)}, TypeError, "dropout_origin ... got numpy.ndarray"),
]
PACKED = [
    ({"key": zeros(30, 8)}, ValueError, "key must have 3 axes (total ... got shape (30"),
    ({"enable_gqa": False}, ValueError, "query, key and value must have ... got query (11"),
    ({"query_starts": [False, True]}, TypeError, "query_starts must be numbers, got bools"),
    ({"key_starts": "0"}, TypeError, "key_starts must be a tensor or ... got '0'"),
    ({"key_starts": zeros(5, **meta).long()}, ValueError, "key_starts must be on the"),
    ({"attn_mask": zeros(11, 4, 20)}, ValueError, "attn_mask must broadcast to ... got shape (11"),
    ({"attn_mask": CAUSAL}, TypeError, "attn_mask must not be a ... pass is_causal=True, and"),
]
LINEAR = [
    ({"query": np.zeros((4, 5, 8), np.float32)}, TypeError, "query must be a ... got ndarray"),
    ({"decay": [0.0]}, TypeError, "decay must be a tensor or None, got [0.0]"),
    ({"beta": zeros(5).to_sparse()}, TypeError, "beta must be a dense ... got layout"),
    ({"state": zeros(8, 6, **meta)}, ValueError, "state must be on the device ... got meta"),
    ({"key": zeros(2, 3, 5, 8)}, ValueError, "key and value must share kv_heads, got 3 and 4"),
    ({"return_state": 1}, TypeError, "return_state must be True or False, got int"),
]
OF_NESTED = [
    ({"query": NESTED}, TypeError, "query must be a dense ... got a nested ... create it with"),
    ({"attn_mask": zeros(3, 7)}, TypeError, "attn_mask must be None ... pass is_causal, window"),
    ({"key": heads(3)}, ValueError, "key must have as many sequences as query, 2, got 1"),
    ({"value": heads(3, 6)}, ValueError, "value must have sequences of the"),
    ({"value": heads(3, 7).transpose(1, 2)}, ValueError, "value must have the axes"),
    ({"sinks": heads(3, 7)}, TypeError, "sinks must be a dense ... got a nested ... pass a dense"),
    ({"query": heads(3, 7).transpose(2, 3)}, ValueError, "query must be a nested ... got 4 axes"),
]
X = torch.ones(1, 2, 5, 8)


class Plain(nn.Module):
    def forward(self, x):
        return by_another_name(x, x, x)


class Explicit(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, dim=-1) @ x


class Trying(nn.Module):
    def forward(self, x):
        try:
            return by_another_name(x.int(), x.int(), x.int())
        except RuntimeError:
            return by_another_name(x, x, x)


class ByRegard(nn.Module):
    def forward(self, x):
        return scaled_dot_product_attention(x, x, x)


class Packed(nn.Module):
    def forward(self, x):
        starts = torch.tensor([0, 2, 5])
        return scaled_dot_product_attention_ragged(*[x[0].transpose(0, 1)] * 3, starts, starts)


class Vmapped(nn.Module):
    def forward(self, x):
        return torch.func.vmap(lambda y: scaled_dot_product_attention(y, y, y))(x)


LISTS = {"kv_num_blocks": torch.full((1, 1, 1), 2), "kv_indices": zeros(1, 1, 1, 2).long()}


def listed(**changes):
    lists = {name: array.int() for name, array in (LISTS | changes).items()}
    return flex.BlockMask.from_kv_blocks(**lists, compute_q_blocks=False)


OTHERS = [
    (lambda: record(by_another_name, X), TypeError, "module ... got builtin_function_or_method"),
    (lambda: record(Explicit(), X), ValueError, "nothing was recorded: Explicit called neither"),
    (lambda: record(Plain(), X, layers=1), ValueError, "layers must be less than 1 ... got 1"),
    (lambda: record(Plain(), X, layers="a"), ValueError, "layers must ... got 'a' ... there are"),
    (lambda: record(Plain(), X, tokens=[1, 2]), ValueError, "tokens must have ... got shape (2,)"),
    (lambda: record(Plain()), TypeError, "Plain.forward() missing 1 required positional argument"),
    (lambda: record(ByRegard(), X.to("meta"), max_bytes=None), NotImplementedError, "ByRegard"),
    (lambda: record(Vmapped(), X), NotImplementedError, "Vmapped calls attention on tensors"),
    (lambda: record(Packed(), X), NotImplementedError, "Packed calls attention with packed"),
    (lambda: record(Trying(), X), ValueError, "attention must be computed by ... got torch.int32"),
    (lambda: block_mask(zeros(2, 2)), TypeError, "block_mask must be a BlockMask ... got Tensor"),
    (
        lambda: block_mask(listed(kv_num_blocks=torch.full((1, 1, 1), 3))),
        ValueError,
        "block_mask.kv_num_blocks must be from 0 to ... got 3 to",
    ),
    (
        lambda: block_mask(listed(kv_indices=torch.full((1, 1, 1, 2), -1))),
        ValueError,
        "block_mask.kv_indices must not be negative, got -1",
    ),
]


FLASH = {"q": zeros(2, 5, 4, 8), "k": zeros(2, 9, 2, 8), "v": zeros(2, 9, 2, 8)}
POOLS = {"k": zeros(6, 16, 2, 8), "v": zeros(6, 16, 2, 8), "block_table": zeros(4, 2).int()}
CACHES = {"q": zeros(2, 1, 4, 8), "k_cache": zeros(2, 32, 2, 8), "v_cache": zeros(2, 32, 2, 8)}
NEW = {"k": torch.ones(2, 1, 2, 8), "v": zeros(2, 1, 2, 8), "cache_seqlens": 5}
ROTARY = {"rotary_cos": zeros(32, 4), "rotary_sin": zeros(32, 4)}
PAGED = {"block_table": torch.tensor([[0], [-1]])}
FLASH_ATTENTION = [
    ({"q": np.zeros((2, 5, 4, 8))}, TypeError, "q must be a tensor, got ndarray"),
    ({"q": zeros(5, 4, 8)}, ValueError, "q must be (batch, length ... got shape (5, 4, 8)"),
    ({"v": zeros(2, 9, 2, 8).half()}, TypeError, "v must have the type of q ... got torch.float16"),
    ({"k": zeros(2, 9, 2, 7)}, ValueError, "q and k must share head_dim ... got 8 and 7"),
    ({"k": zeros(2, 9, 3, 8)}, ValueError, "the number of heads of q ... got"),
    ({"causal": 1}, TypeError, "causal must be True or False, got int"),
    ({"window_size": 4}, TypeError, "window_size must be a pair (left ... got 4"),
    ({"softmax_scale": "1"}, TypeError, "softmax_scale must be a real number, got str"),
    ({"q_descale": zeros(1)}, TypeError, "q_descale"),
]
OF_FLASH_PACKED = [
    ({"cu_seqlens_k": [0, 5, 9, 9, 31]}, ValueError, "cu_seqlens_k"),
    ({"k": zeros(30, 8)}, ValueError, "k must have 3 axes (total ... got shape (30"),
    (POOLS | {"dropout_p": 0.1}, ValueError, "dropout_p must be 0 with block_table, got 0.1"),
    (POOLS | {"block_table": zeros(4, 2).int() + 6}, IndexError, "block_table"),
]
OF_FLASH_CACHES = [
    ({"cache_seqlens": 33}, ValueError, "cache_seqlens must be one ... from 0 to 32 ... got 33"),
    (NEW | {"cache_seqlens": 32}, ValueError, "cache_seqlens must be ... from 0 to 31 ... got 32"),
    ({"cache_seqlens": torch.tensor([1])}, ValueError, "cache_seqlens must be one number or 2"),
    (NEW | {"v": None}, ValueError, "k, v and cache_seqlens must be given together"),
    (NEW | {"k": zeros(2, 1, 1, 8)}, ValueError, "k must be (2, 1, 2, 8), got shape (2, 1, 1, 8)"),
    (NEW | {"v": zeros(2, 1, 2, 7)}, ValueError, "v must be (2, 1, 2, 8), got shape (2, 1, 2, 7)"),
    (ROTARY, ValueError, "rotary_cos must be given with k, v and rotary_sin"),
    (PAGED | {"cache_leftpad": 1}, ValueError, "block_table must be given without"),
    (PAGED | NEW, IndexError, "k_cache has no entry or page"),
    ({"cache_seqlens": torch.tensor(3.7)}, TypeError, "cache_seqlens must be integers, got"),
    ({"cache_batch_idx": torch.tensor([0, -1])}, IndexError, "cache_batch_idx must be ... 0 to 1"),
    (NEW | {"v": NEW["v"].half()}, TypeError, "v must be torch.float32, as v_cache, got"),
    (NEW | {"causal": 1}, TypeError, "causal must be True or False, got int"),
    (NEW | {"softmax_scale": float("nan")}, ValueError, "softmax_scale must be finite, got nan"),
]


def attend_flash(changes):
    return flash_attn.flash_attn_func(**FLASH | changes)


def flash_packed(changes):
    starts = {"cu_seqlens_q": torch.tensor(QUERIES), "cu_seqlens_k": torch.tensor(KEYS)}
    good = {"q": zeros(11, 4, 8), "k": zeros(30, 2, 8), "v": zeros(30, 2, 8)} | starts
    return flash_attn.flash_attn_varlen_func(
        **{"max_seqlen_q": 7, "max_seqlen_k": 21} | good | changes
    )


CALLS = [
    *(((attend_flash, changes), *rest) for changes, *rest in FLASH_ATTENTION),
    *(((flash_packed, changes), *rest) for changes, *rest in OF_FLASH_PACKED),
    *(((packed, changes), *rest) for changes, *rest in PACKED),
    *(((linear, changes), *rest) for changes, *rest in LINEAR),
    *(((nested, changes), *rest) for changes, *rest in OF_NESTED),
]


@each(CALLS)
def test_calls(wrong, error, parts):
    call, changes = wrong
    check(lambda: call(changes), error, parts)


@each(OF_FLASH_CACHES)
def test_caches_of_flash_attention(wrong, error, parts):
    given = {name: x.clone() for name, x in CACHES.items()} | wrong
    check(lambda: flash_attn.flash_attn_with_kvcache(**given), error, parts)
    assert not given["k_cache"].any()


@pytest.mark.parametrize("requires_grad", [False, True])
@each(DENSE)
def test_dense(wrong, error, parts, requires_grad):
    wrong = ({"dropout_seed": 0} if requires_grad else {}) | wrong
    for name, shape in SHAPES.items() if requires_grad else ():
        tensor = wrong.setdefault(name, zeros(shape))
        if tensor is NO_MEMORY:  # PyTorch cannot copy it
            continue
        if type(tensor) is torch.Tensor and tensor.is_floating_point() and not tensor.is_sparse:
            wrong[name] = tensor.detach().clone().requires_grad_()
    check(lambda: attend(wrong), error, re.match(r"\w+", parts)[0] if requires_grad else parts)


@each(OTHERS)
def test_recordings_and_block_masks(wrong, error, parts):
    check(wrong, error, parts)
    assert not regard.torch._recorder.OBSERVERS
    assert torch.is_grad_enabled()
    assert not torch.overrides._get_current_function_mode_stack()
