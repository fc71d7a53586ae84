"""Compare self-attention layers that start from three different sets of random weights.

All weights are drawn from PyTorch's random stream, so the numbers are those of the same layers in
PyTorch.
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


def main() -> None:
    """Print the context vectors of each layer, and copy the weights of one to another."""
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


if __name__ == "__main__":
    main()
