"""A training run: batches, AdamW, and checkpoints from which it continues to the same bits."""

import concurrent.futures
import hashlib
import json
import math
import os
import zipfile

import numpy as np

from training.model import Model, Parameters

PEAK_RATE, LAST_RATE, WARM_UP = 1e-3, 1e-4, 100
BETAS, EPSILON, DECAY, LARGEST_NORM = (0.9, 0.99), 1e-8, 0.1, 1.0
SEQUENCES = 4  # in a shard of the batch: enough for fast products, few enough for the caches

VERSION = 1
FIELDS = (
    "version",
    "settings",
    "generator",
    "parameters",
    "mean",
    "square",
    "losses",
    "validations",
)


def learning_rate(step, steps):
    """Return a rate that rises during the first steps, then falls along a cosine."""
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return LAST_RATE + (PEAK_RATE - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2


class AdamW:
    """Adam with decoupled weight decay, in place (Loshchilov and Hutter 2019)."""

    def __init__(self, size, dtype):
        self.mean, self.square, self.scratch = (np.zeros(size, dtype) for _ in range(3))

    def update(self, parameters, grad, rate, step):
        """Update the parameters; the gradient is clipped first, and overwritten."""
        mean, square, scratch = self.mean, self.square, self.scratch
        norm = math.sqrt(np.sum(np.multiply(grad, grad, out=scratch)))
        grad *= min(1.0, LARGEST_NORM / (norm + EPSILON))
        parameters.matrices *= 1 - rate * DECAY
        keep_mean, keep_square = BETAS
        np.subtract(grad, mean, out=scratch)
        scratch *= 1 - keep_mean
        mean += scratch
        grad *= grad
        grad -= square
        grad *= 1 - keep_square
        square += grad
        # Both began with zeros: division by these numbers makes them averages of the later values.
        np.divide(square, 1 - keep_square ** (step + 1), out=scratch)
        np.sqrt(scratch, out=scratch)
        scratch += EPSILON
        np.divide(mean, scratch, out=scratch)
        scratch *= rate / (1 - keep_mean ** (step + 1))
        parameters.flat -= scratch


class Run:
    """The state of a training run, and the operations that change it.

    Threads compute shards of each batch. The gradients of the shards are added in order, so that no
    bit depends on the number of threads.
    """

    def __init__(self, sizes, train, held_out, *, seed, batch, steps, threads, dtype=np.float32):
        self.sizes, self.train, self.held_out = sizes, train, held_out
        self.batch, self.steps = batch, steps
        self.settings = {
            "text_sha256": hashlib.sha256(np.concatenate([train, held_out]).tobytes()).hexdigest(),
            "sizes": list(sizes),
            "dtype": np.dtype(dtype).name,
            "seed": seed,
            "batch": batch,
            "steps": steps,
        }
        self.rng = np.random.default_rng(seed)
        self.parameters = Parameters(sizes, dtype)
        self.parameters.draw(self.rng, sizes.layers)
        self.optimizer = AdamW(self.parameters.flat.size, dtype)
        self.losses, self.validations = [], []  # in nats per character

        shards = -(-batch // SEQUENCES)
        self.grads = [Parameters(sizes, dtype) for _ in range(shards)]
        self.models = [Model(sizes, self.parameters) for _ in range(min(threads, shards))]
        self.pool = concurrent.futures.ThreadPoolExecutor(len(self.models))

    def step(self):
        """Update the parameters for one batch, and return its loss."""
        loss = self.gradient(*self.draw_batch())
        step = len(self.losses)
        rate = learning_rate(step, self.steps)
        self.optimizer.update(self.parameters, self.grads[0].flat, rate, step)
        self.losses.append(loss)
        return loss

    def draw_batch(self):
        """Return sequences from random places in the text, and the next character at each place."""
        starts = self.rng.integers(0, len(self.train) - self.sizes.context, self.batch)
        places = starts[:, None] + np.arange(self.sizes.context)
        return self.train[places], self.train[places + 1]

    def gradient(self, tokens, targets):
        """Return the mean loss, and leave its gradient in the first of `grads`."""

        def compute(model, shard, rows):
            loss = model.loss(tokens[rows], targets[rows])
            model.backward(self.grads[shard].views, 1 / targets.size)
            return loss

        total = self.sum_over_shards(compute, len(tokens), training=True)
        for other in self.grads[1:]:
            self.grads[0].flat += other.flat
        return total / targets.size

    def validate(self):
        """Return the loss on the held-out text."""
        tokens, targets = windows(self.held_out, self.sizes.context)

        def compute(model, _shard, rows):
            return model.loss(tokens[rows], targets[rows])

        loss = self.sum_over_shards(compute, len(tokens), training=False) / targets.size
        self.validations.append((len(self.losses), loss))
        return loss

    def sum_over_shards(self, compute, sequences, *, training):
        """Add up ``compute(model, shard, rows)``, called in threads that have a model each."""
        results = [0.0] * -(-sequences // SEQUENCES)

        def work(first):
            model = self.models[first]
            model.load(training=training)
            for shard in range(first, len(results), len(self.models)):
                rows = slice(shard * SEQUENCES, (shard + 1) * SEQUENCES)
                results[shard] = compute(model, shard, rows)

        list(self.pool.map(work, range(len(self.models))))  # re-raises an error of a thread
        return sum(results)

    def save(self, path):
        """Write a checkpoint that replaces the previous one atomically."""
        values = (
            VERSION,
            json.dumps(self.settings),
            json.dumps(self.rng.bit_generator.state),
            self.parameters.flat,
            self.optimizer.mean,
            self.optimizer.square,
            np.array(self.losses),
            np.array(self.validations).reshape(-1, 2),
        )
        unfinished = path.with_name(path.name + ".unfinished")
        with open(unfinished, "wb") as file:
            np.savez(file, **dict(zip(FIELDS, values, strict=True)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def load(self, path):
        """Continue from a checkpoint. If that fails with CheckpointError, nothing changes."""
        fields = read_checkpoint(path)
        settings = json.loads(str(fields["settings"]))
        for name, own in self.settings.items():
            if settings.get(name) != own:
                raise CheckpointError(
                    f"{path} was made with {name} {settings.get(name)}, not {own}"
                )
        self.rng.bit_generator.state = json.loads(str(fields["generator"]))
        self.parameters.flat[:] = fields["parameters"]
        self.optimizer.mean[:] = fields["mean"]
        self.optimizer.square[:] = fields["square"]
        self.losses = fields["losses"].tolist()
        self.validations = [(int(step), loss) for step, loss in fields["validations"].tolist()]


class CheckpointError(Exception):
    """A checkpoint from which a run cannot continue."""


def read_checkpoint(path):
    """Return the arrays of a checkpoint that is complete and has this version."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # reads everything, and compares checksums
        if damaged is None:
            with np.load(path, allow_pickle=False) as archive:
                fields = dict(archive)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except Exception as error:  # damage leads to almost any exception
        raise CheckpointError(f"{path} is damaged, or not a checkpoint: {error}") from error
    if damaged is not None:
        raise CheckpointError(f"{path} is damaged: the checksum of {damaged} is wrong")
    if fields.get("version") != VERSION:
        raise CheckpointError(
            f"{path} must be a checkpoint of version {VERSION}, got {fields.get('version')}"
        )
    if set(fields) != set(FIELDS):
        raise CheckpointError(f"{path} must contain {', '.join(FIELDS)}, got {', '.join(fields)}")
    return fields


def windows(tokens, context):
    """Cut a text into sequences, and also return the next character at each of their places."""
    count = (len(tokens) - 1) // context
    cut = tokens[: count * context + 1]
    return cut[:-1].reshape(count, context), cut[1:].reshape(count, context)
