"""Compare self-attention layers with random weights, and train one to copy the previous word.

All weights are drawn from PyTorch's random stream, so the numbers equal the numbers of the same
layers in PyTorch. The trained layer reads the words in random orders, each word with its place on a
circle, and must return the embedding of the previous word. Its matrices show what it learns:
queries and keys depend on the places, and values depend on the words.
"""

import numpy as np

import regard

WORDS = ["Your", "journey", "starts", "with", "one", "step"]
EMBEDDINGS = np.array(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ],
    np.float32,
)
TURN = 2 * np.pi * np.arange(len(WORDS)) / len(WORDS)
PLACES = np.stack([np.cos(TURN), np.sin(TURN)], axis=-1).astype(np.float32)
ROWS = ["word", "word", "word", "cosine", "sine"]
STEPS, BATCH, RATE = 1000, 32, 2.0


def main() -> None:
    """Print the context vectors of each layer, and train a layer."""
    np.set_printoptions(precision=4, suppress=True)
    stream = regard.TorchGenerator(123)
    layers = {
        "torch.rand, seed 123": regard.SelfAttention(3, 2, init="uniform", rng=stream),
        "torch.rand, drawn next": regard.SelfAttention(3, 2, init="uniform", rng=stream),
        "torch.nn.Linear, seed 789": regard.SelfAttention(3, 2, rng=regard.TorchGenerator(789)),
    }
    for name, layer in layers.items():
        context, weights = layer(EMBEDDINGS, return_weights=True)
        print(name)
        for word, vector, row in zip(WORDS, context, weights, strict=True):
            print(f"  {word:8}{vector}  attends to {row}")
        print()

    linear = layers["torch.nn.Linear, seed 789"]
    copy = regard.SelfAttention(3, 2)
    copy.load_state_dict(linear.state_dict())
    same = np.array_equal(copy(EMBEDDINGS), linear(EMBEDDINGS))
    print("keys of the state:", ", ".join(linear.state_dict()))
    print("a layer that loads it gives the same bits:", same)

    layer = regard.SelfAttention(5, 3, init="uniform", rng=regard.TorchGenerator(123))
    before = numbers_of(layer)
    train(layer)
    draw(before, numbers_of(layer))


def orders(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the words in `count` random orders with their places, and each previous word."""
    words = EMBEDDINGS[rng.permuted([range(len(WORDS))] * count, axis=1)]
    places = np.broadcast_to(PLACES, (count, *PLACES.shape))
    return np.concatenate([words, places], axis=-1), np.roll(words, 1, axis=1)


def train(layer: regard.SelfAttention) -> None:
    """Change the weights step by step against the gradient of the mean squared error."""
    rng = np.random.default_rng(0)
    layer.train()
    print("\nmean squared error of the previous word")
    for step in range(STEPS + 1):
        inputs, wanted = orders(rng, BATCH)
        error = layer(inputs) - wanted
        if step % 200 == 0:
            print(f"  after {step:4} steps {np.mean(error**2):.4f}")
        layer.zero_grads()
        layer.backward(2 * error / error.size)
        weights = layer.state_dict()
        layer.load_state_dict({name: weights[name] - RATE * layer.grads[name] for name in weights})
    layer.eval()


def numbers_of(layer: regard.SelfAttention) -> dict[str, np.ndarray]:
    """Return the three matrices, and the attention of each word of a sentence to all words."""
    inputs = np.concatenate([EMBEDDINGS, PLACES], axis=-1)
    return layer.state_dict() | {"attention": layer(inputs, return_weights=True)[1]}


def draw(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> None:
    """Draw the numbers to a file, or print them if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        for name, matrix in after.items():
            print(f"\n{name} before and after training: darker is larger")
            labels = WORDS if name == "attention" else ROWS
            for label, *rows in zip(labels, shaded(before[name]), shaded(matrix), strict=True):
                print(f"  {label:8}" + "    ".join(rows))
        return
    figure = Figure(figsize=(9, 5), layout="constrained")
    grid = figure.subplots(2, len(after))
    for axes, when, numbers in zip(grid, ("before", "after"), (before, after), strict=True):
        for axis, (name, matrix) in zip(axes, numbers.items(), strict=True):
            largest = np.abs(matrix).max()
            axis.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest)
            axis.set(title=f"{name} {when}", xticks=[])
            labels = WORDS if name == "attention" else ROWS
            axis.set_yticks(range(len(labels)), labels)
    figure.savefig("trainable_weights.png")
    print("\nthe weights before and after are in trainable_weights.png")


def shaded(matrix: np.ndarray) -> list[str]:
    """Return a line for each row, with a sign and a shade for each number."""
    shades = np.rint(5 * matrix / np.abs(matrix).max()).astype(int).tolist()
    return [" ".join(" -"[n < 0] + 2 * " .:+#@"[abs(n)] for n in row) for row in shades]


if __name__ == "__main__":
    main()
