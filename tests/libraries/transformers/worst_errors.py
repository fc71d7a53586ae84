"""Print the table of docs/guide/transformers.md: how far regard's attention is from eager
attention.

python tests/libraries/transformers/worst_errors.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from outcomes import errors, in_float64, outcome, widened
from zoo import KINDS, build, inputs_of, torch


def errors_of(model_type):
    """Return the errors of results and of gradients, in units of the largest of each: of regard in
    float64, of eager attention in float32, and of regard in float32."""
    model = build(model_type)
    inputs = inputs_of(model_type, model.config, torch.float32)
    with in_float64():
        wanted = outcome(model, "eager", widened(inputs))
        found = [errors(outcome(model, "regard", widened(inputs)), wanted)]
    model = build(model_type, torch.float32)
    found += [errors(outcome(model, each, inputs), wanted) for each in ("eager", "regard")]
    return found


def main():
    torch.set_num_threads(1)
    print("| kind | types | float64 | float32, eager | float32, regard |")
    print("|---|---|---|---|---|")
    for kind in KINDS:
        found = [errors_of(model_type) for model_type in kind.types]
        worst = [
            " / ".join(f"{max(each):.0e}" for each in zip(*column, strict=True))
            for column in zip(*found, strict=True)
        ]
        names = ", ".join(kind.types)
        print(f"| {kind.name} ({len(kind.types)}) | {names} | {' | '.join(worst)} |")


if __name__ == "__main__":
    main()
