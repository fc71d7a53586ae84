"""FlashAttention 2's functions for CPU tensors, with its names, layouts and defaults.

`install` makes ``import flash_attn`` work on machines without CUDA. All types and sizes that
`regard.torch` accepts are accepted.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

import regard
from regard.torch import _flash_attn_package as _package
from regard.torch import scaled_dot_product_attention, scaled_dot_product_attention_ragged
from regard.torch._arguments import check_tensors as _check_tensors
from regard.torch._memory import as_array as _array
from regard.torch._memory import as_tensor as _tensor
from regard.torch._memory import empty_output as _empty_output

_NAMES = {"query": "q", "key": "k", "value": "v", "is_causal": "causal", "window": "window_size"}
_NAMES |= {"query_starts": "cu_seqlens_q", "key_starts": "cu_seqlens_k", "scale": "softmax_scale"}
_OF_CACHES = _NAMES | {"key": "k_cache", "value": "v_cache", "left_padding": "cache_leftpad"}


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Compute attention as FlashAttention 2 does, with regard's gradients.

    Parameters
    ----------
    q : Tensor, shape (batch, length, heads, head_dim)
        Read in place, like `k` and `v`.
    k, v : Tensor, shape (batch, kv_len, kv_heads, head_dim)
        ``heads`` is a multiple of ``kv_heads``.
    dropout_p, softmax_scale : float, optional
        As in `regard.torch.scaled_dot_product_attention`.
    causal : bool, default False
        Query ``i``, whose position is ``p = i + kv_len - length``, sees only keys ``j <= p``.
    window_size : pair of int, default (-1, -1)
        Query ``i`` sees keys from ``p - left`` to ``p + right``; a negative number means no limit.
    softcap : float, default 0.0
        Scores become ``softcap * tanh(score / softcap)`` if it is positive.
    alibi_slopes : Tensor of float, shape (heads,) or (batch, heads), optional
        ``slope * |p - j|`` is subtracted from the scores.
    deterministic : bool
        Has no effect: all results are deterministic.
    return_attn_probs : bool, default False
        Whether to return the log-sum-exp.

    Returns
    -------
    out : Tensor, shape (batch, length, heads, head_dim)
        Has the type of `q`.
    softmax_lse : Tensor, shape (batch, heads, length)
        Returned if `return_attn_probs`. For fully masked rows it is -inf, not FlashAttention's inf.
    S_dmask : None
        Returned if `return_attn_probs`. No weights are stored, even with dropout.

    Raises
    ------
    TypeError, ValueError
        As `regard.torch.scaled_dot_product_attention`, for FlashAttention's names.

    Examples
    --------
    >>> import torch
    >>> from regard.torch.flash_attn import flash_attn_func
    >>> q, (k, v) = torch.ones(1, 6, 4, 16), torch.ones(2, 1, 8, 2, 16)
    >>> flash_attn_func(q, k, v, causal=True, window_size=(3, 0)).shape
    torch.Size([1, 6, 4, 16])
    """
    _check_axes(4, q=q, k=k, v=v)
    output, lse = _call(
        scaled_dot_product_attention,
        *(tensor.transpose(1, 2) for tensor in (q, k, v)),
        dropout_p=dropout_p,
        **_options(softmax_scale, causal, window_size, softcap, alibi_slopes),
    )
    output = output.transpose(1, 2)
    return (output, lse, None) if return_attn_probs else output


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Compute `flash_attn_func` for packed sequences.

    `q` is (total, heads, head_dim), `k` and `v` are (total_keys, kv_heads, head_dim), and
    `cu_seqlens_q` and `cu_seqlens_k` the starts of the sequences, followed by the totals.
    `max_seqlen_q` and `max_seqlen_k` have no effect. With `block_table` (batch, columns), `k` and
    `v` are pools of pages (pages, page_size, kv_heads, head_dim), without gradients and dropout.
    Returns what `flash_attn_func` returns, for (total, heads, head_dim), with `softmax_lse` (heads,
    total). Raises its errors, and IndexError if a page does not exist.
    """
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
    _check_axes(3, q=q)
    if block_table is None:
        starts = cu_seqlens_q, cu_seqlens_k
        ragged = scaled_dot_product_attention_ragged
        output, lse = _call(ragged, q, k, v, *starts, dropout_p=dropout_p, **options)
    else:
        if dropout_p:
            raise ValueError(f"dropout_p must be 0 with block_table, got {dropout_p}")
        _check_axes(4, k=k, v=v)
        lengths = cu_seqlens_k.diff()
        options["query_offset"] = lengths - cu_seqlens_q.diff()
        pages = block_table, lengths, cu_seqlens_q
        output, lse = _call(_attend_pages, q, k, v, *pages, **options)
    return (output, lse.T, None) if return_attn_probs else output


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Write keys and values into caches in place, and attend to the caches, without gradients.

    `q` is (batch, length, heads, head_dim), with the last query at the last key, and the caches are
    (caches, capacity, kv_heads, head_dim). `cache_batch_idx` (batch,) has the cache of each entry,
    by default the first ones. Or `block_table` (batch, columns) has the pages of each entry in
    pools (pages, page_size, kv_heads, head_dim). `cache_seqlens`, an int or (batch,), are the
    lengths before the call, by default the capacity. Keys before `cache_leftpad` (batch,) do not
    exist; pools have none. `k` and `v` (batch, new_length, kv_heads, head_dim) are written after
    `cache_seqlens`. `rotary_cos` and `rotary_sin` (positions, rotary_dim / 2) then rotate `k` and
    `q` from these positions on, or all of `q` by the first one if there is neither `causal` nor a
    window. `rotary_interleaved` makes neighbors a pair, instead of columns of the two halves.
    `num_splits` has no effect. Returns ``out``, or ``(out, softmax_lse)`` if `return_softmax_lse`,
    as `flash_attn_func`. Raises the errors of `flash_attn_varlen_func`, and ValueError if arguments
    that belong together are missing.
    """
    _check_axes(4, q=q, k_cache=k_cache, v_cache=v_cache)
    if (k is None) != (v is None) or (k is not None and cache_seqlens is None):
        raise ValueError("k, v and cache_seqlens must be given together, got only some of them")
    if rotary_cos is not None and (k is None or rotary_sin is None):
        raise ValueError("rotary_cos must be given with k, v and rotary_sin, got only some of them")
    is_chosen = cache_batch_idx is not None or cache_leftpad is not None
    if block_table is not None and is_chosen:
        raise ValueError("block_table must be given without cache_batch_idx and cache_leftpad")
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
    batch, page_size, new = len(q), k_cache.shape[1], 0 if k is None else k.shape[1]
    entries = torch.arange(batch, device=q.device)
    if cache_batch_idx is not None:
        entries = cache_batch_idx = _integers("cache_batch_idx", cache_batch_idx)
        if ((entries < 0) | (entries >= len(k_cache))).any():
            needed = f"from 0 to {len(k_cache) - 1}"
            raise IndexError(f"cache_batch_idx must be {needed}, got {entries.tolist()}")
    table = entries[:, None] if block_table is None else block_table
    capacity = table.shape[1] * page_size
    starts = torch.as_tensor(capacity if cache_seqlens is None else cache_seqlens, device=q.device)
    is_wrong = ((starts < 0) | (starts > capacity - new)).any()
    if is_wrong or starts.shape not in ((), (batch,)):
        needed = f"one number or {batch}, from 0 to {capacity - new}, which leaves room for k"
        raise ValueError(f"cache_seqlens must be {needed}, got {starts.tolist()}")
    starts = _integers("cache_seqlens", starts).expand(batch)
    with torch.no_grad():
        if rotary_cos is not None:
            tables = _array(rotary_cos), _array(rotary_sin)
            is_local = causal or "window" in options
            q = _rotated(q, starts, is_local, interleaved=rotary_interleaved, cache=tables)
            k = _rotated(k, starts, True, interleaved=rotary_interleaved, cache=tables)
        at = starts[:, None] + torch.arange(new, device=q.device)
        pages = table.long().gather(1, at // page_size)
        if ((pages < 0) | (pages >= len(k_cache))).any():  # before anything is written
            raise IndexError(f"k_cache has no entry or page {pages.tolist()}: got {len(k_cache)}")
        written: Any = (("k", k_cache, k), ("v", v_cache, v)) if k is not None else ()
        for name, cache, rows in written:
            if rows.shape != (shape := (batch, new, *cache.shape[2:])):
                raise ValueError(f"{name} must be {shape}, got shape {tuple(rows.shape)}")
            if rows.dtype != cache.dtype:
                raise TypeError(f"{name} must be {cache.dtype}, as {name}_cache, got {rows.dtype}")
        before = [cache[pages, at % page_size] for _, cache, _ in written]
        try:
            for _, cache, rows in written:
                cache[pages, at % page_size] = rows
            lengths = starts + new
            options["query_offset"] = lengths - q.shape[1]
            if block_table is None and (cache_batch_idx is None or cache_leftpad is not None):
                used = slice(batch) if cache_batch_idx is None else cache_batch_idx
                tensors = (x.transpose(1, 2) for x in (q, k_cache[used], v_cache[used]))
                options |= {"key_lengths": lengths, "left_padding": cache_leftpad}
                dense = scaled_dot_product_attention
                output, lse = _call(dense, *tensors, names=_OF_CACHES, **options)
            else:
                given = q.transpose(1, 2), k_cache, v_cache, table, lengths
                output, lse = _call(_attend_pages, *given, names=_OF_CACHES, **options)
        except BaseException:
            for (_, cache, _), rows in zip(written, before, strict=True):
                cache[pages, at % page_size] = rows
            raise
    output = output.transpose(1, 2)
    return (output, lse) if return_softmax_lse else output


def flash_attn_qkvpacked_func(qkv: Tensor, *options: Any, **named: Any) -> Any:
    """Compute `flash_attn_func` for `qkv` (batch, length, 3, heads, head_dim)."""
    return flash_attn_func(*_parts("qkv", qkv, 5), *options, **named)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Any:
    """Compute `flash_attn_func` for `q` and `kv` (batch, kv_len, 2, kv_heads, head_dim)."""
    return flash_attn_func(q, *_parts("kv", kv, 5), *options, **named)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *options: Any, **named: Any
) -> Any:
    """Compute `flash_attn_varlen_func` for `qkv` (total, 3, heads, head_dim)."""
    q, k, v = _parts("qkv", qkv, 4)
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    return flash_attn_varlen_func(q, k, v, *lengths, *options, **named)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Any:
    """Compute `flash_attn_varlen_func` for `q` and `kv` (total_keys, 2, kv_heads, head_dim)."""
    return flash_attn_varlen_func(q, *_parts("kv", kv, 4), *options, **named)


def install() -> None:
    """Make ``import flash_attn`` import these functions, until `uninstall` is called.

    ``flash_attn``, ``flash_attn.flash_attn_interface`` and ``flash_attn.bert_padding`` exist then,
    with the metadata of FlashAttention 2.8.3. Call it before other libraries are imported, because
    they remember what is installed. Repeated calls have no effect. Raises ImportError if the
    package is installed, which is not replaced.

    Examples
    --------
    >>> import regard.torch.flash_attn
    >>> regard.torch.flash_attn.install()
    >>> from flash_attn import flash_attn_func
    >>> flash_attn_func is regard.torch.flash_attn.flash_attn_func
    True
    >>> regard.torch.flash_attn.uninstall()
    """
    _package.install({name: x for name, x in globals().items() if name.startswith("flash_attn_")})


def uninstall() -> None:
    """Undo `install`, or do nothing if it was not called."""
    _package.uninstall()


def _options(
    softmax_scale: float | None, causal: bool, window_size: Any, softcap: float, slopes: Any
) -> dict[str, Any]:
    """Return regard's options: the queries are at the end of the keys."""
    if not isinstance(window_size, (tuple, list, Tensor)) or len(window_size) != 2:
        raise TypeError(f"window_size must be a pair (left, right), got {window_size!r}")
    window = tuple(None if side < 0 else int(side) for side in window_size)
    found = {"is_causal": causal, "query_offset": "end", "scale": softmax_scale}
    found |= {"softcap": softcap} if softcap > 0 else {}
    found |= {"window": window} if window != (None, None) else {}
    return found | ({} if slopes is None else {"alibi_slopes": slopes})


def _check_axes(axes: int, **tensors: Any) -> None:
    """Raise TypeError or ValueError unless all arguments are tensors with this number of axes."""
    needed = "(batch, length, heads, head_dim)" if axes == 4 else "(total, heads, head_dim)"
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.ndim != axes:
            raise ValueError(f"{name} must be {needed}, got shape {tuple(tensor.shape)}")


def _integers(name: str, numbers: Tensor) -> Tensor:
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {numbers.dtype}")
    return numbers.long()


def _parts(name: str, packed: Tensor, axes: int) -> Any:
    """Return queries, keys and values as views, or raise ValueError."""
    if packed.ndim != axes or packed.shape[-3] != len(name):
        needed = f"({'batch, length' if axes == 5 else 'total'}, {len(name)}, heads, head_dim)"
        raise ValueError(f"{name} must be {needed}, got shape {tuple(packed.shape)}")
    return packed.unbind(-3)


def _call(function: Any, *given: Any, names: dict[str, str] = _NAMES, **options: Any) -> Any:
    """Return output and lse of a call, or raise its errors with FlashAttention's names."""
    try:
        return function(*given, enable_gqa=True, return_lse=True, **options)
    except (TypeError, ValueError) as error:
        text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))
        raise type(error)(text) from None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_pages(*given: Tensor, enable_gqa: bool, **options: Any) -> tuple[Tensor, Tensor]:
    """Compute output and lse without copying pages, and without gradients."""
    query, k, v, *_ = given
    _check_tensors(query, k, v)
    output = _empty_output(query, (*query.shape[:-1], v.shape[-1]))
    paged: Any = regard.paged_attention
    return output, _tensor(paged(*map(_array, given), out=_array(output), **options)[1])


def _rotated(x: Tensor, starts: Tensor, is_sequence: bool, **rotation: Any) -> Tensor:
    """Return rows rotated by their positions, or all by the first one unless `is_sequence`."""
    positions = starts[:, None] + torch.arange(x.shape[1]) * is_sequence
    rotated = torch.empty_like(x)
    given, out = (_array(each.transpose(1, 2)) for each in (x, rotated))
    regard.positional.rotary(given, _array(positions), out=out, **rotation)
    return rotated
