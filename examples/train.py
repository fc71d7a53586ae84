"""Train a small transformer on NumPy to write documentation, character by character.

The text consists of the docstrings of Python's standard library, which every machine has. The model
and its backward pass are in `training/model.py`; the optimizer and the checkpoints are in
`training/run.py`. A stopped run continues from its checkpoint to the same bits.

python examples/train.py --steps 2000
"""

import argparse
import ast
import math
import pathlib
import signal
import sys
import sysconfig
import time

import numpy as np

import regard
from training.model import Sizes
from training.run import CheckpointError, Run, windows

OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main():
    """Train, from the checkpoint if there is one, and show the results."""
    asked = arguments()
    threads = asked.threads or regard.get_num_threads()
    regard.set_num_threads(1)  # Each thread of the run computes whole sequences by itself.
    text = asked.text.read_text() if asked.text else docstrings(asked.characters)
    text = text[: asked.characters]
    characters = sorted(set(text))
    sizes = Sizes(len(characters))
    if len(text) <= 10 * (sizes.context + 1):
        raise SystemExit(
            f"the text must have more than {10 * (sizes.context + 1)} characters, got {len(text)}"
        )
    number = {character: index for index, character in enumerate(characters)}
    tokens = np.array([number[character] for character in text])
    train, held_out = np.split(tokens, [len(tokens) * 9 // 10])
    bigram = bigram_loss(train, held_out, sizes)
    run = Run(
        sizes,
        train,
        held_out,
        seed=asked.seed,
        batch=asked.batch,
        steps=asked.steps,
        threads=threads,
    )
    print(f"{len(text):,} characters, {len(characters)} different ones; the last tenth is held out")
    print(f"{run.parameters.flat.size:,} parameters, {len(run.models)} threads")
    print(f"loss of chance {math.log(len(characters)):.4f}, of a bigram model {bigram:.4f}")
    if asked.checkpoint.exists():
        try:
            run.load(asked.checkpoint)
        except CheckpointError as error:
            raise SystemExit(f"{error}; remove it, or name another --checkpoint") from None
        print(f"continuing from step {len(run.losses)}, where {asked.checkpoint} was saved")

    train_until_stopped(run, asked)
    if len(run.losses) < run.steps:
        print(f"stopped at step {len(run.losses)}: the same command continues from there")
    if run.losses:
        draw_losses(run, bigram, asked.checkpoint.with_suffix(".png"))
        print(continued(run, asked.prompt, asked.sample, characters))


def arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="steps in the whole run")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: one per CPU")
    parser.add_argument("--checkpoint", type=pathlib.Path, default="train.npz")
    parser.add_argument("--every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--text", type=pathlib.Path, help="a file to learn from")
    parser.add_argument("--characters", type=int, default=1_000_000, help="most characters to use")
    parser.add_argument("--prompt", default="Return the ", help="text that the model continues")
    parser.add_argument("--sample", type=int, default=500, help="characters that it writes")
    asked = parser.parse_args()
    for name in ("steps", "batch", "every"):
        if getattr(asked, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(asked, name)}")
    return asked


def docstrings(limit):
    """Return docstrings of the standard library, with modules in order of name, up to a length."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    texts, length = [], 0
    for name in sorted(sys.stdlib_module_names):
        alone = library / f"{name}.py"
        for path in [alone] if alone.is_file() else sorted((library / name).rglob("*.py")):
            if "test" in str(path.relative_to(library)):
                continue
            nodes = ast.walk(ast.parse(path.read_bytes()))
            owners = [node for node in nodes if isinstance(node, OWNERS)]
            for node in sorted(owners, key=lambda owner: getattr(owner, "lineno", 0)):
                found = ast.get_docstring(node)
                if found and found.isascii():
                    texts.append(found)
                    length += len(found) + 2
            if length >= limit:
                return "\n\n".join(texts)
    return "\n\n".join(texts)


def bigram_loss(train, held_out, sizes):
    """Return the loss of a model that knows only the previous character, with add-one smoothing."""
    pairs = np.ones((sizes.characters, sizes.characters))
    np.add.at(pairs, (train[:-1], train[1:]), 1)
    before, after = windows(held_out, sizes.context)
    return -np.mean(np.log(pairs / pairs.sum(axis=1, keepdims=True))[before, after])


def train_until_stopped(run, asked):
    """Train to the last step, or until Ctrl-C, or until the time is up; save at the end."""
    stopped = False

    def stop(*_):
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGINT, before)  # A second Ctrl-C does not wait for the step.

    before = signal.signal(signal.SIGINT, stop)
    started, training, first = time.perf_counter(), 0.0, len(run.losses)
    while len(run.losses) < run.steps and not stopped:
        began = time.perf_counter()
        loss, step = run.step(), len(run.losses)
        training += time.perf_counter() - began
        a_step = training / (step - first)
        left = min(
            a_step * (run.steps - step), 60 * asked.minutes - (time.perf_counter() - started)
        )
        due = step % asked.every == 0 or step == run.steps
        if due or sys.stdout.isatty():
            speed = run.batch * run.sizes.context / a_step
            minutes, seconds = divmod(max(0, round(left)), 60)
            line = (
                f"step {step}  loss {loss:.4f}  {speed:,.0f} tokens/s  {minutes}:{seconds:02} left"
            )
            print("\r" * sys.stdout.isatty() + f"{line:<60}", end="", flush=True)
        if due:
            print(f"held out {run.validate():.4f}", flush=True)
            run.save(asked.checkpoint)
        if left <= 0:
            break
    run.save(asked.checkpoint)
    signal.signal(signal.SIGINT, before)
    print()


def draw_losses(run, bigram, path):
    """Draw the loss curve to a file, or as text if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(curve(np.array(run.losses)))
        return
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot(run.losses, linewidth=0.5, alpha=0.5, label="batches")
    axes.plot(*np.array(run.validations).reshape(-1, 2).T, "o-", label="held-out text")
    axes.axhline(bigram, color="gray", linestyle="--", label="bigram model")
    axes.set(xlabel="step", ylabel="nats per character")
    axes.legend()
    figure.savefig(path)
    print(f"the loss curve is in {path}\n")


def curve(losses, height=12, width=72):
    """Return lines of text that show a curve."""
    columns = np.array([part.mean() for part in np.array_split(losses, min(width, len(losses)))])
    levels = np.linspace(columns.max(), columns.min(), height)
    nearest = np.abs(columns - levels[:, None]).argmin(axis=0)
    rows = (
        f"{level:7.3f} " + "".join(" *"[row == place] for place in nearest.tolist()).rstrip()
        for row, level in enumerate(levels)
    )
    return "\n".join(rows) + "\n"


def continued(run, prompt, count, characters, temperature=0.8):
    """Continue a text by `count` characters, drawn one after another."""
    model, sizes = run.models[0], run.sizes
    model.load(training=False)
    caches = [
        regard.KVCache(1, sizes.heads, sizes.width // sizes.heads, keep_last=sizes.context)
        for _ in range(sizes.layers)
    ]
    rng = np.random.default_rng(run.settings["seed"])
    tokens = [characters.index(character) for character in prompt if character in characters] or [0]
    new = tokens
    for _ in range(count):
        scores = model.scores(np.array([new]), caches)[-1].astype(float)
        new = [rng.choice(len(characters), p=regard.softmax(scores / temperature))]
        tokens = tokens + new
    return "".join(characters[token] for token in tokens)


if __name__ == "__main__":
    main()
