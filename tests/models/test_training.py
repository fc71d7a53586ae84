"""Test the example that trains a model: its gradients, its optimizer, and its checkpoints."""

import os

import numpy as np
import pytest

from training.model import Sizes
from training.run import (
    Run,
)

SMALL = Sizes(characters=11, width=8, heads=2, layers=2, context=6)
BATCH = 6  # two shards, one of them not full


def small_run(dtype=np.float32, **changes):
    rng = np.random.default_rng(3)
    train_text, held_out = np.split(rng.integers(0, SMALL.characters, 220), [180])
    settings = {"seed": 1, "batch": BATCH, "steps": 20, "threads": 2, "dtype": dtype}
    return Run(SMALL, train_text, held_out, **(settings | changes))


def double_run():
    """Return a run in float64 whose parameters are large enough for every gradient to matter."""
    run = small_run(np.float64)
    rng = np.random.default_rng(5)
    run.parameters.matrices *= 20
    run.parameters.gains[:] = rng.uniform(0.5, 1.5, run.parameters.gains.size)
    return run


def gradients_of(run, batch):
    """Return the loss of a batch, and copies of the gradients."""
    loss = run.gradient(*batch)
    return loss, {name: view.copy() for name, view in run.grads[0].views.items()}


def test_gradients_are_slopes():
    run = double_run()
    batch = run.draw_batch()
    _, grads = gradients_of(run, batch)
    rng = np.random.default_rng(7)
    for name, view in run.parameters.views.items():
        direction, start, step = rng.standard_normal(view.shape), view.copy(), 1e-5
        losses = []
        for sign in (1, -1):
            view[:] = start + sign * step * direction
            losses.append(run.gradient(*batch))
        view[:] = start
        slope = (losses[0] - losses[1]) / (2 * step)
        assert abs(slope) > 1e-4, name
        assert np.vdot(grads[name], direction) == pytest.approx(slope, rel=1e-6, abs=1e-10), name


def test_no_bit_depends_on_threads():
    alone, together = small_run(threads=1), small_run(threads=2)
    for _ in range(4):
        assert alone.step() == together.step()
    assert alone.validate() == together.validate()
    assert np.array_equal(alone.parameters.flat, together.parameters.flat)


@pytest.fixture
def saved(tmp_path):
    """Return the path of a checkpoint of three steps."""
    run, path = small_run(), tmp_path / "run.npz"
    for _ in range(3):
        run.step()
    run.validate()
    run.save(path)
    return path


def test_a_run_goes_on_to_the_same_bits(saved):
    whole, resumed = small_run(), small_run()
    resumed.load(saved)
    for number in range(whole.steps):
        whole.step()
        if number == 2:
            whole.validate()
    while len(resumed.losses) < resumed.steps:
        resumed.step()
    assert resumed.losses == whole.losses
    assert resumed.validations == whole.validations
    for name in ("mean", "square"):
        own, other = getattr(resumed.optimizer, name), getattr(whole.optimizer, name)
        assert np.array_equal(own, other)
    assert np.array_equal(resumed.parameters.flat, whole.parameters.flat)
    assert not os.path.exists(f"{saved}.unfinished")
