"""A transformer over characters: a forward pass that keeps what its backward pass needs.

Arrays of activations have a row for each place in each sequence of the batch. They are buffers that
the next step overwrites, and backward passes work in place.
"""

import math
from typing import NamedTuple

import numpy as np

import regard


class Sizes(NamedTuple):
    """The sizes of a model; `characters` is the size of its vocabulary."""

    characters: int
    width: int = 128
    heads: int = 4
    layers: int = 4
    context: int = 256


class Parameters:
    """The parameters of a model, or their gradients: views of one flat array, by name."""

    def __init__(self, sizes, dtype=np.float32):
        width = sizes.width
        shapes = {"embedding": (sizes.characters, width)}
        for layer in range(sizes.layers):
            shapes |= {f"{layer}.{name}": (width, width) for name in Block.ATTENTION}
            shapes |= {f"{layer}.{name}": (width, 4 * width) for name in ("up", "down")}
        matrices = sum(math.prod(shape) for shape in shapes.values())
        for layer in range(sizes.layers):
            shapes |= {f"{layer}.{name}": (width,) for name in ("attention_norm", "mlp_norm")}
        shapes["norm"] = (width,)

        ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
        self.flat = np.zeros(ends[-1], dtype)
        self.matrices, self.gains = self.flat[:matrices], self.flat[matrices:]
        self.views = {
            name: part.reshape(shape)
            for (name, shape), part in zip(
                shapes.items(), np.split(self.flat, ends[:-1]), strict=True
            )
        }

    def draw(self, rng, layers):
        """Start from small random matrices, smaller where they add to the residual stream."""
        self.matrices[:] = 0.02 * rng.standard_normal(self.matrices.size)
        for layer in range(layers):
            self.views[f"{layer}.out_proj"] /= math.sqrt(2 * layers)
            self.views[f"{layer}.down"] /= math.sqrt(2 * layers)
        self.gains[:] = 1


class Buffers:
    """Arrays that every step reuses, by name and shape: fresh memory is slow."""

    def __init__(self, dtype):
        self.dtype, self.arrays = dtype, {}

    def __call__(self, name, *shape):
        """Return the array of this name and shape, with arbitrary contents."""
        if (name, shape) not in self.arrays:
            self.arrays[name, shape] = np.empty(shape, self.dtype)
        return self.arrays[name, shape]


class Norm:
    """Divide rows by their root mean square, and multiply them by a gain."""

    def __init__(self, gain):
        self.gain, self.buffer = gain, Buffers(gain.dtype)

    def forward(self, x):
        """Return the rows of `x`, normalized."""
        self.factor = 1 / np.sqrt(np.vecdot(x, x)[:, None] / x.shape[1] + 1e-6)
        self.unit = np.multiply(x, self.factor, out=self.buffer("unit", *x.shape))
        return np.multiply(self.unit, self.gain, out=self.buffer("result", *x.shape))

    def backward(self, grad, grad_gain):
        """Turn the gradient of the result into the gradient of the input."""
        np.einsum("ij,ij->j", grad, self.unit, out=grad_gain)
        grad *= self.gain
        along = np.vecdot(grad, self.unit)[:, None] / grad.shape[1]
        grad -= np.multiply(self.unit, along, out=self.buffer("along", *grad.shape))
        grad *= self.factor
        return grad


class MLP:
    """Two products with a GELU between them: ``gelu(x @ up) @ down.T``."""

    # gelu(x) = x * (1 + tanh(SLOPE * x + CUBE * x**3)) / 2
    SLOPE, CUBE = math.sqrt(2 / math.pi), 0.044715 * math.sqrt(2 / math.pi)

    def __init__(self, up, down):
        self.up, self.down, self.buffer = up, down, Buffers(up.dtype)

    def forward(self, x):
        """Return the result for the rows of `x`, which must not change until the backward pass."""
        wide = len(x), self.up.shape[1]
        inner, tanh, hidden = (self.buffer(name, *wide) for name in ("inner", "tanh", "hidden"))
        regard.matmul(x, self.up, out=inner)
        np.multiply(inner, inner, out=tanh)
        tanh *= self.CUBE
        tanh += self.SLOPE
        tanh *= inner
        np.tanh(tanh, out=tanh)
        np.add(tanh, 1, out=hidden)
        hidden *= inner
        hidden *= 0.5
        self.kept = x, inner, tanh, hidden
        return regard.matmul(hidden, self.down.T, out=self.buffer("result", *x.shape))

    def backward(self, grad, grad_up, grad_down):
        """Write the gradients of the weights, and return the gradient of the input."""
        x, slope, tanh, hidden = self.kept
        regard.matmul(grad.T, hidden, out=grad_down)
        grad_hidden = self.buffer("grad_hidden", *hidden.shape)
        regard.matmul(grad, self.down, out=grad_hidden)
        # gelu'(x) = gelu(x) * (1 - tanh) * (SLOPE + 3 * CUBE * x**2) + (1 + tanh) / 2
        slope *= slope  # it held x
        slope *= 3 * self.CUBE
        slope += self.SLOPE
        slope *= hidden
        np.subtract(1, tanh, out=tanh)
        slope *= tanh
        tanh *= 0.5
        slope -= tanh
        slope += 1
        grad_hidden *= slope
        regard.matmul(x.T, grad_hidden, out=grad_up)
        return regard.matmul(grad_hidden, self.up.T, out=self.buffer("grad", *x.shape))


class Block:
    """Add attention, and then an MLP, to the residual stream; each reads normalized rows."""

    ATTENTION = ("W_query", "W_key", "W_value", "out_proj")

    def __init__(self, sizes, parameters, layer):
        self.own = {
            name.partition(".")[2]: view
            for name, view in parameters.views.items()
            if name.startswith(f"{layer}.")
        }
        self.attention = regard.MultiHeadAttention(
            sizes.width, sizes.heads, is_causal=True, rotary=True, dtype=parameters.flat.dtype
        )
        self.attention_norm = Norm(self.own["attention_norm"])
        self.mlp_norm = Norm(self.own["mlp_norm"])
        self.mlp = MLP(self.own["up"], self.own["down"])

    def load(self):
        """Copy the parameters to the attention layer, which has its own arrays."""
        self.attention.load_state_dict(
            {f"{name}.weight": self.own[name] for name in self.ATTENTION}
        )

    def forward(self, x, batch, cache=None):
        """Update the residual stream `x`, the rows of `batch` sequences."""
        normed = self.attention_norm.forward(x).reshape(batch, -1, x.shape[1])
        x += self.attention(normed, cache=cache).reshape(x.shape)
        x += self.mlp.forward(self.mlp_norm.forward(x))

    def backward(self, grad, batch, grads):
        """Update the gradient of the residual stream; `grads(name)` receives the others."""
        back = self.mlp.backward(grad, grads("up"), grads("down"))
        grad += self.mlp_norm.backward(back, grads("mlp_norm"))
        self.attention.zero_grads()
        back = self.attention.backward(grad.reshape(batch, -1, grad.shape[1])).reshape(grad.shape)
        for name in self.ATTENTION:
            grads(name)[:] = self.attention.grads[f"{name}.weight"]
        grad += self.attention_norm.backward(back, grads("attention_norm"))


class Model:
    """A transformer that predicts the next character, with buffers for one thread."""

    def __init__(self, sizes, parameters):
        self.sizes, self.buffer = sizes, Buffers(parameters.flat.dtype)
        self.embedding = parameters.views["embedding"]
        self.blocks = [Block(sizes, parameters, layer) for layer in range(sizes.layers)]
        self.norm = Norm(parameters.views["norm"])

    def load(self, *, training):
        """Load the current parameters, for training or not."""
        for block in self.blocks:
            block.load()
            block.attention.train() if training else block.attention.eval()

    def scores(self, tokens, caches=None):
        """Score every character as the next one after each of `tokens`, (batch, length)."""
        x = self.buffer("x", tokens.size, self.sizes.width)
        x[:] = self.embedding[tokens.ravel()]
        for number, block in enumerate(self.blocks):
            block.forward(x, len(tokens), None if caches is None else caches[number])
        self.last = self.norm.forward(x)
        scores = self.buffer("scores", tokens.size, self.sizes.characters)
        return regard.matmul(self.last, self.embedding.T, out=scores)

    def loss(self, tokens, targets):
        """Return the sum over all places of minus the log of the target's probability."""
        scores, rows = self.scores(tokens), np.arange(tokens.size)
        scores -= scores.max(axis=1, keepdims=True)
        right = scores[rows, targets.ravel()]
        np.exp(scores, out=scores)
        sums = scores.sum(axis=1, keepdims=True)
        scores /= sums  # now probabilities
        self.kept = tokens, targets, scores
        return float(np.sum(np.log(sums[:, 0]) - right, dtype=np.float64))

    def backward(self, grads, scale):
        """Write the gradients of `scale` times the last loss to `grads`, arrays by name."""
        tokens, targets, grad_scores = self.kept
        rows = np.arange(tokens.size)
        grad_scores[rows, targets.ravel()] -= 1
        grad_scores *= scale
        regard.matmul(grad_scores.T, self.last, out=grads["embedding"])
        grad = regard.matmul(grad_scores, self.embedding, out=self.buffer("x", *self.last.shape))
        self.norm.backward(grad, grads["norm"])
        for layer, block in reversed(list(enumerate(self.blocks))):
            block.backward(grad, len(tokens), lambda name, layer=layer: grads[f"{layer}.{name}"])
        # An embedding gets the sum of the gradients of all places of its character.
        chosen = grad_scores
        chosen[:] = 0
        chosen[rows, tokens.ravel()] = 1
        grads["embedding"] += regard.matmul(chosen.T, grad)
