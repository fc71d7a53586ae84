"""FlashAttention's functions compute the formula, for the calls of its own tests and of models."""

import importlib.metadata
import importlib.util

import hypothesis
import pytest
from hypothesis import strategies as st

from drawn_problems import examples
from torch_problems import scaled_dot_product_attention, torch

from regard.torch import flash_attn as fa  # isort: skip

BATCH, HEADS = 3, 6
PROBLEM = {
    "lengths": [(1, 97), (33, 70), (64, 32), (33, 33), (63, 64), (64, 63), (3, 99)],
    "kv_heads": [6, 1, 2],
    "dim": [16, 32, 40, 59, 64],
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "slopes": [(), (HEADS,), (BATCH, HEADS)],
    "packing": ["", "kv", "qkv"],
    "kind": ["dense", "varlen", "pages"],
    "seed": range(99),
}
OPTIONS = {
    "causal": [False, True],
    "window_size": [(-1, -1), (5, 0), (17, 9), (-1, 3), (40, -1)],
    "softcap": [0.0, 5.0],
    "softmax_scale": [None, 0.3],
}
STORAGE = ["plain", "entries", "left", "left entries", "pages"]
CACHES = {"storage": STORAGE, "new": [0, 1, 7], "rotary": [0, 16, 32], "is_pairs": [False, True]}


def one_of(table):
    return st.fixed_dictionaries({name: st.sampled_from(each) for name, each in table.items()})


def drawn(problem, options, packing):
    torch.manual_seed(problem["seed"])
    q_len, kv_len = problem["lengths"]
    q_len, kv_heads = (kv_len, HEADS) if packing == "qkv" else (q_len, problem["kv_heads"])
    if problem["slopes"]:
        options["alibi_slopes"] = torch.rand(problem["slopes"]) * 0.3
    shapes = (q_len, HEADS), (kv_len, kv_heads), (kv_len, kv_heads)
    return [torch.randn(BATCH, *x, problem["dim"]).to(problem["dtype"]) for x in shapes]


def formula(q, k, v, options, of_queries, of_keys, leftpad=0):
    """Return output and lse of padded sequences, computed by PyTorch in the type of `q`."""
    numbers = (torch.as_tensor(n).view(-1, 1, 1, 1) for n in (of_queries, of_keys, leftpad))
    of_queries, of_keys, leftpad = numbers
    q, k, v = (x.transpose(1, 2).repeat_interleave(HEADS // x.shape[2], 1) for x in (q, k, v))
    at, of_q = torch.arange(k.shape[2]), torch.arange(q.shape[2])[:, None]
    distance = of_q + of_keys - of_queries - at
    scores = q @ k.mT * (options["softmax_scale"] or q.shape[-1] ** -0.5)
    if cap := options["softcap"]:
        scores = cap * (scores / cap).tanh()
    slopes = options.get("alibi_slopes", torch.zeros(HEADS)).to(q.dtype)
    scores = scores - slopes[..., None, None] * distance.abs()
    left, right = (999 if side < 0 else side for side in options["window_size"])
    hidden = (distance > left) | (distance < (0 if options["causal"] else -right))
    hidden = hidden | (at >= of_keys) | (at < leftpad)
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1).masked_fill(hidden.all(-1, keepdim=True), 0)
    return [(weights @ v * (of_q < of_queries)).transpose(1, 2), scores.logsumexp(-1)]


def check(function, inputs, wanted):
    """FlashAttention's limits: twice the error of the formula in the type, 3 times in gradients."""
    results, own = [], inputs[0].dtype
    for call, dtype in ((function, own), (wanted, torch.float64), (wanted, own)):
        given = [x.to(dtype).requires_grad_() for x in inputs]
        found = [x.masked_fill(x.isinf(), 0) for x in call(*given)]
        outputs = len(found)
        if found[0].requires_grad:
            loss = sum((x.double() * torch.arange(x.shape[-1])).sum() for x in found)
            found += torch.autograd.grad(loss, given)
        results.append([x.double() for x in found])
    for number, (ours, exact, plain) in enumerate(zip(*results, strict=True)):
        limit = (2 if number < outputs else 3) * (plain - exact).abs().max()
        assert (ours - exact).abs().max() <= limit + 1e-6 * exact.abs().max()


def called(packing, q, k, v, *lengths, **options):
    """Call the function for tensors that are separate, or one."""
    tensors, kind = (q, k, v), "varlen_" * bool(lengths) + f"{packing}packed_" * bool(packing)
    if packing == "qkv":
        tensors, lengths = [torch.stack(tensors, -3)], lengths[::2]
    elif packing == "kv":
        tensors = q, torch.stack([k, v], -3)
    function = getattr(fa, f"flash_attn_{kind}func")
    *results, weights = function(*tensors, *lengths, 0.0, **options, return_attn_probs=True)
    assert weights is None
    return results


def pages_of(rows):
    """Return a pool with these rows in pages of 16, and the table of the pages."""
    columns = -(-rows.shape[1] // 16)
    table = torch.arange(len(rows) * columns).view(columns, len(rows)).T.flip(0)
    padded = torch.nn.functional.pad(rows, (0, 0) * 2 + (0, columns * 16 - rows.shape[1]))
    pool = torch.empty_like(padded).view(-1, 16, *rows.shape[2:])
    pool[table] = padded.unflatten(1, (columns, 16))
    return pool, table.int()


@pytest.fixture
def flash_attn():
    fa.install()
    yield importlib.import_module("flash_attn")
    fa.uninstall()


@pytest.mark.slow
@hypothesis.given(one_of(PROBLEM), one_of(OPTIONS))
@examples(30)
def test_outputs_and_gradients(flash_attn, problem, options):
    """The functions of `bert_padding` remove and restore the padding of sequences."""
    packing, kind, padding = problem["packing"], problem["kind"], flash_attn.bert_padding
    inputs = drawn(problem, options, packing)
    lengths = [x.shape[1] for x in inputs[:2]]
    used = [torch.randint(0, n + 1, (BATCH,)) for n in lengths] if kind != "dense" else lengths
    used = used[1:] * 2 if packing == "qkv" else used

    def function(*tensors):
        if kind == "dense":
            return called(packing, *tensors, **options)
        masks = [torch.arange(n) < x[:, None] for n, x in zip(lengths, used, strict=True)]
        parts = map(padding.unpad_input, tensors, (*masks, masks[1]))
        (q, at, starts, most, _), (k, _, key_starts, key_most, of_k), (v, *_) = parts
        assert torch.equal(of_k, used[1])
        given = starts, key_starts, most, key_most
        if kind == "pages":
            (k, table), (v, _) = map(pages_of, tensors[1:])
            output = fa.flash_attn_varlen_func(q, k, v, *given, **options, block_table=table)
        else:
            output, lse = called(packing, q, k, v, *given, **options)
            assert lse.shape == (HEADS, len(q))
        return [padding.pad_input(output, at, BATCH, lengths[0])]

    def wanted(*tensors):
        results = formula(*tensors, options, *used)[: 2 if kind == "dense" else 1]
        return [x.detach() for x in results] if kind == "pages" else results

    check(function, inputs, wanted)


def rotated(x, angles, at, is_pairs):
    size = 2 * angles.shape[1]
    pairs = x[..., :size].unflatten(-1, (-1, 2) if is_pairs else (2, -1))
    a, b = pairs.double().unbind(-1 if is_pairs else -2)
    cos, sin = angles[at].cos()[:, :, None], angles[at].sin()[:, :, None]
    turned = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack(turned, -1 if is_pairs else -2).flatten(-2)
    return torch.cat([turned, x[..., size:]], -1).to(x.dtype)


@pytest.mark.slow
@hypothesis.given(one_of(PROBLEM), one_of(OPTIONS), one_of(CACHES))
@examples(30)
def test_kvcache(problem, options, caches):
    q, *both = drawn(problem, options, "")
    storage, new, is_pairs = caches["storage"], caches["new"], caches["is_pairs"]
    capacity, dtype, number = both[0].shape[1], q.dtype, torch.arange(BATCH)
    starts = torch.randint(0, capacity - new + 1, (BATCH,))
    entries = number.roll(1) if "entries" in storage else number
    given = {"cache_batch_idx": entries.int()} if "entries" in storage else {}
    given |= {"cache_leftpad": (starts * 0.4).int()} if "left" in storage else {}
    wanted = q, *(cache[entries].clone() for cache in both)
    if new:
        k, v = (torch.randn(BATCH, new, *x.shape[2:]).to(dtype) for x in both)
        given |= {"k": k, "v": v}
        at = starts[:, None] + torch.arange(new)
        if caches["rotary"]:
            angles = torch.rand(200, min(caches["rotary"], q.shape[-1]) // 2).double()
            given |= {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
            is_local = options["causal"] or options["window_size"] != (-1, -1)
            of_q = starts[:, None] + torch.arange(q.shape[1]) * is_local
            wanted = rotated(q, angles, of_q, is_pairs), *wanted[1:]
            k = rotated(k, angles, at, is_pairs)
        wanted[1][number[:, None], at], wanted[2][number[:, None], at] = k, v
    if storage == "pages":
        (k_pool, table), (v_pool, _) = map(pages_of, both)
        both = k_pool, v_pool
        given |= {"block_table": table}
    named = given | {"cache_seqlens": starts.int(), "rotary_interleaved": is_pairs}
    found = fa.flash_attn_with_kvcache(q, *both, **options, **named, return_softmax_lse=True)
    lengths = q.shape[1], starts + new, given.get("cache_leftpad", 0)
    check(lambda *_: found, wanted, lambda *x: [y.detach() for y in formula(*x, options, *lengths)])
    for cache, filled in zip(both, wanted[1:], strict=True):
        cache = cache[table].flatten(1, 2)[:, :capacity] if storage == "pages" else cache[entries]
        assert (cache - filled).abs().max() <= torch.finfo(dtype).eps * filled.abs().max()


def test_calls_of_models(flash_attn):
    q, k, v = torch.randn(3, 2, 9, 4, 16)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    attend, close = torch.nn.functional.scaled_dot_product_attention, torch.testing.assert_close
    full, causal = (attend(*heads, is_causal=x).transpose(1, 2) for x in (False, True))
    # DeepSeek-VL2: its images, and its texts, whose padding it removes itself.
    stacked, varlen = torch.stack([q, k, v], 2), flash_attn.flash_attn_varlen_func
    close(flash_attn.flash_attn_qkvpacked_func(stacked, dropout_p=0.0, deterministic=False), full)
    mask, starts = torch.arange(9) < torch.tensor([[9], [5]]), torch.tensor([0, 9, 14]).int()
    at, padding = mask.flatten().nonzero().flatten(), flash_attn.bert_padding
    packed = (padding.index_first_axis(x.reshape(18, 4, 16), at) for x in (q, k, v))
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 9, "max_seqlen_k": 9}
    named = {"softmax_scale": 0.25, "causal": True}
    texts = padding.pad_input(varlen(*packed, **lengths, **named, dropout_p=0.0), at, 2, 9)
    close(texts, causal * mask[..., None, None])
    # MeshAnything
    close(flash_attn.flash_attn_func(q, k, v, 0.0, softmax_scale=None, causal=True), causal)
    dropped = []
    for call, given in ((fa.flash_attn_func, (q, k, v)), (scaled_dot_product_attention, heads)):
        torch.manual_seed(0)
        dropped.append(call(*given, dropout_p=0.17))
    assert torch.equal(dropped[0], dropped[1].transpose(1, 2))
    # ACE-Step: a prompt and a token, whose keys are in pages already.
    (k_cache, table), (v_cache, _) = map(pages_of, (k, v))
    starts, named = torch.tensor([0, 8, 16]).int(), named | {"block_table": table}
    lengths |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    prompt = varlen(q[:, :8].reshape(16, 4, 16), k_cache, v_cache, **lengths, **named)
    named |= {"cache_seqlens": torch.tensor([9, 9]).int()}
    token = flash_attn.flash_attn_with_kvcache(q[:, 8:], k_cache, v_cache, **named)
    close(torch.cat([prompt.view(2, 8, 4, 16), token], 1), causal)


def test_install(flash_attn, tmp_path, monkeypatch):
    metadata, utils = importlib.metadata, pytest.importorskip("transformers.utils.import_utils")
    fa.install()
    assert importlib.import_module("flash_attn") is flash_attn
    assert importlib.util.find_spec("flash_attn.flash_attn_interface").origin
    assert metadata.version("flash-attn") == flash_attn.__version__
    monkeypatch.setattr(utils, "_package_distribution_mapping", metadata.packages_distributions)
    assert utils.is_flash_attn_greater_or_equal.__wrapped__("2.1.0")
    monkeypatch.setattr(utils, "is_torch_cuda_available", lambda: True)
    assert utils.is_flash_attn_2_available.__wrapped__()
    fa.uninstall()
    assert not importlib.util.find_spec("flash_attn")
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("flash_attn")
    (tmp_path / "flash_attn.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="is installed"):
        fa.install()


@pytest.mark.slow
def test_it_is_imported_on_request(output_of):
    script = "import sys, regard.torch; print(*(n for n in sys.modules if 'flash_attn' in n))"
    assert "regard" not in output_of(script)
