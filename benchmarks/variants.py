"""Time the recipes of docs/guide/variants.md relative to plain attention, interleaved.

python benchmarks/variants.py [--rounds 15] [--length 1024]
python benchmarks/variants.py --selected           # selected keys: a sparse mask, or a dense one
python benchmarks/variants.py --products           # indexers and latents, relative to products
python benchmarks/variants.py --linear             # linear attention

Each recipe is timed with the NumPy code around its call. Plain attention has the same queries, keys
and values, and is causal if the recipe is. Needs Numba for sigmoid attention.
"""

import argparse
from functools import partial

import numpy as np
from interleaved import medians, ratios

import regard

HEADS, DIM = 8, 64
attend = regard.scaled_dot_product_attention
causal = partial(attend, is_causal=True)


def log_sigmoid(offset):
    import numba

    @numba.cfunc(regard.ScoreFunction.numba_signature("float32"))
    def change(scores, queries, keys, stride, query_positions, first_key, head, entry, user_data):
        for k in range(keys):
            for q in range(queries):
                scores[k * stride + q] = -np.log1p(np.exp(-(scores[k * stride + q] + offset)))

    return change


def recipes(n):
    """Yield the name of each recipe, plain attention, and the recipe."""
    rng = np.random.default_rng(0)
    q, k, v, q2, k2, gate = rng.standard_normal((6, HEADS, n, DIM), dtype=np.float32)
    plain = partial(causal, q, k, v)

    forget = np.log(1 / (1 + np.exp(-rng.normal(3, 1, (HEADS, n))))).astype(np.float32)

    def forget_gates():
        c = forget.cumsum(axis=-1)
        return causal(q, k, v, (c[:, -1:] - c)[:, None])

    yield "forget gates (FoX)", plain, forget_gates

    def differential():
        pairs = (np.concatenate(pair) for pair in ((q, q2), (k, k2), (v, v)))
        both = causal(*pairs)
        return both[:HEADS] - np.float32(0.6) * both[HEADS:]

    yield "differential attention", plain, differential

    rank, rope = 128, 32
    latent = rng.standard_normal((1, n, rank + rope), dtype=np.float32)
    rotated = rng.standard_normal((HEADS, n, rope), dtype=np.float32)
    up_key, up_value = rng.standard_normal((2, HEADS, rank, DIM), dtype=np.float32)

    def latent_attention():
        query = np.concatenate([regard.matmul(q, up_key.swapaxes(-1, -2)), rotated], axis=-1)
        output = causal(query, latent, latent[..., :rank], scale=(DIM + rope) ** -0.5)
        return regard.matmul(output, up_value)

    yield "latent attention (MLA)", plain, latent_attention

    index = rng.standard_normal((n, n), dtype=np.float32)
    index[~np.tri(n, dtype=bool)] = -np.inf

    def top_k():
        best = np.argpartition(index, -64, axis=-1)[:, -64:]
        return causal(q, k, v, regard.masks.Selected(best, kv_len=n))

    yield "top-k keys", plain, top_k
    yield "gated output", plain, lambda: plain() / (1 + np.exp(-gate))
    yield "sinks and softmax-one", plain, partial(plain, sinks=np.zeros(HEADS, np.float32))

    compiled = log_sigmoid(np.float32(-np.log(n)))
    function = regard.ScoreFunction(compiled.ctypes)

    def sigmoid():
        output, lse = plain(score_function=function, return_lse=True)
        return output * np.exp(lse)[..., None]

    yield "sigmoid attention", plain, sigmoid

    factor = np.log(np.arange(2, n + 2, dtype=np.float32))[:, None]
    yield "scales that grow with the length (SSMax)", plain, lambda: causal(q * factor, k, v)

    def norm(x):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-6))

    yield "QK-norm", plain, lambda: causal(norm(q), norm(k), v)

    windows = rng.standard_normal((3, 64, HEADS, 49, DIM), dtype=np.float32)
    bias = rng.standard_normal((HEADS, 49, 49), dtype=np.float32)
    yield (
        "window attention with a learned bias",
        partial(attend, *windows),
        partial(attend, *windows, bias),
    )
    scale = np.linspace(0.1, 0.2, HEADS)
    yield "temperature per head", plain, partial(plain, scale=scale)

    scaling = {"rope_type": "default", "mrope_section": [8, 12, 12]}
    positions = np.stack([np.zeros(n, int), *np.divmod(np.arange(n), 20)])

    def three_positions():
        turned = (regard.positional.rotary(x, positions, scaling=scaling) for x in (q, k))
        return causal(*turned, v)

    yield "rotations by three positions (M-RoPE)", plain, three_positions


def selected(n=4096, queries=64):
    """Yield the number of keys that each query selects, and both calls."""
    rng = np.random.default_rng(0)
    key, value = rng.standard_normal((2, HEADS, n, DIM), dtype=np.float32)
    query = rng.standard_normal((HEADS, queries, DIM), dtype=np.float32)
    order = rng.permuted(np.tile(np.arange(n), (queries, 1)), axis=1)
    for count in (16, 64, 256, 1024):
        chosen = order[:, :count]

        def dense(chosen=chosen):
            mask = np.zeros((queries, n), bool)
            np.put_along_axis(mask, chosen, values=True, axis=1)
            return attend(query, key, value, mask)

        def sparse(chosen=chosen):
            return attend(query, key, value, regard.masks.Selected(chosen, kv_len=n))

        yield f"{count} of {n} keys for {queries} queries", dense, sparse


def products(n=8192):
    """Yield calls, and a product of `regard.matmul` with as many multiplications."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    def product(multiplications):
        columns = max(multiplications >> 20, 1)
        return partial(regard.matmul, normal(1024, 1024), normal(1024, columns))

    for heads, queries, keys in ((64, 64, n), (32, 64, n), (8, 64, n), (64, 1, 16 * n)):
        arrays = normal(heads, queries, 128), normal(1, keys, 128), normal(heads, queries)
        call = partial(regard.select_keys, *arrays, 2048)
        name = f"select_keys: {heads} heads, {queries} queries, 2048 of {keys} keys"
        yield name, product(heads * queries * keys * 128), call
    for heads in (16, 32, 64, 128):
        query, key = normal(heads, 1, 576), normal(1, n, 576)
        call = partial(attend, query, key, key[..., :512])
        name = f"latent attention: {heads} heads of one query, {n} keys of 576 numbers"
        yield name, product(heads * n * (576 + 512)), call


def linear(n=512, heads=32, dim=128):
    """Yield calls of the gated delta rule, and what they are compared with."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    def arrays(tokens):
        key = normal(heads, tokens, dim)
        key /= np.linalg.norm(key, axis=-1, keepdims=True)
        decay, beta = rng.random((2, heads, tokens), dtype=np.float32)
        return normal(heads, tokens, dim), key, normal(heads, tokens, dim), -decay / 16, beta

    def call(query, key, value, decay, beta, **options):
        return regard.linear_attention(query, key, value, decay=decay, beta=beta, **options)

    prompt, token = arrays(n), arrays(1)
    left, right = normal(heads, n, dim), normal(heads, dim, 3 * dim)
    name = f"{heads} heads, {n} tokens of {dim} numbers"
    # The state has three products for each token: with its key, its update and with its query.
    product = partial(regard.matmul, left, right)
    yield f"{name}, relative to matmul", product, partial(call, *prompt)
    by_column = np.repeat(prompt[3][..., None], dim, axis=-1)
    columns = partial(call, *prompt[:3], by_column, prompt[4])
    yield f"{name}, decay by key column, relative to matmul", product, columns
    state, output = normal(heads, dim, dim), np.empty_like(token[2])
    step = partial(call, *token, state=state, return_state=True, out=(output, state))
    once = partial(np.multiply, state, np.float32(0.999), out=state)
    yield f"{heads} heads, one token, relative to one pass over the state", once, step
    try:
        import torch
        from transformers.models.qwen3_next import modeling_qwen3_next as formulas
    except ImportError:
        return
    torch.set_num_threads(regard.get_num_threads())
    for given, rule in ((prompt, "chunk"), (token, "recurrent")):
        tensors = [torch.from_numpy(x)[None].transpose(1, 2) for x in given]
        formula = getattr(formulas, f"torch_{rule}_gated_delta_rule")
        tokens = given[0].shape[1]
        name = f"{heads} heads, tokens: {tokens}, relative to the formula of transformers"
        options = {"state": state, "return_state": True}
        last = torch.from_numpy(state)[None]
        formula = partial(formula, *tensors, initial_state=last, output_final_state=True)
        yield name, torch.inference_mode()(formula), partial(call, *given, **options)
    leaves = [torch.from_numpy(x)[None].transpose(1, 2).requires_grad_() for x in prompt]
    grad = normal(heads, n, dim)

    def by_formula():
        output, _ = formulas.torch_chunk_gated_delta_rule(*leaves)
        torch.autograd.grad(output, leaves, torch.from_numpy(grad)[None].transpose(1, 2))

    def by_regard():
        query, key, value, decay, beta = prompt
        call(*prompt)
        regard.linear_attention_backward(grad, query, key, value, decay=decay, beta=beta)

    name = f"{heads} heads, tokens: {n}, with gradients, relative to the formula's"
    yield name, by_formula, by_regard


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--length", type=int, default=1024)
    others = {"selected": selected, "products": products, "linear": linear}
    for name in others:
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    print(f"{regard.active_target()}, {regard.get_num_threads()} threads")
    rows = recipes(options.length)
    for name, calls in others.items():
        rows = calls() if getattr(options, name) else rows
    for name, plain, recipe in rows:
        times = medians(options.rounds, {"plain": plain, "recipe": recipe})
        print(f"| {name} | {ratios(times, 'plain')['recipe']:.2f} |")


if __name__ == "__main__":
    main()
