"""Test the example that trains a model: its gradients, its optimizer, and its checkpoints."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import model_files
import train
from model_files import EXAMPLES
from training.model import Model, Parameters, Sizes
from training.run import (
    BETAS,
    DECAY,
    EPSILON,
    LARGEST_NORM,
    AdamW,
    CheckpointError,
    Run,
    learning_rate,
    read_checkpoint,
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


# The model.


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


def test_a_cache_gives_the_same_scores():
    run = double_run()
    tokens, _ = run.draw_batch()
    model = Model(SMALL, run.parameters)
    model.load(training=False)
    whole = model.scores(tokens[:1]).copy()
    caches = [
        train.regard.KVCache(1, SMALL.heads, SMALL.width // SMALL.heads, dtype=np.float64)
        for _ in range(SMALL.layers)
    ]
    parts = [tokens[:1, :2], *np.split(tokens[:1, 2:], SMALL.context - 2, axis=1)]
    scores = np.concatenate([model.scores(part, caches).copy() for part in parts])
    np.testing.assert_allclose(scores, whole, rtol=0, atol=1e-12)


# The optimizer.


def test_adamw_is_the_formula():
    parameters = Parameters(SMALL, np.float64)
    rng = np.random.default_rng(11)
    parameters.flat[:] = rng.standard_normal(parameters.flat.size)
    optimizer = AdamW(parameters.flat.size, np.float64)
    wanted, mean, square = parameters.flat.copy(), 0.0, 0.0
    decay = np.where(np.arange(wanted.size) < parameters.matrices.size, DECAY, 0)
    for step in range(5):
        grad = rng.standard_normal(wanted.size) * 10.0 ** (step - 3)
        clipped = grad * min(1, LARGEST_NORM / (np.linalg.norm(grad) + EPSILON))
        mean = BETAS[0] * mean + (1 - BETAS[0]) * clipped
        square = BETAS[1] * square + (1 - BETAS[1]) * clipped**2
        unbiased = mean / (1 - BETAS[0] ** (step + 1)), square / (1 - BETAS[1] ** (step + 1))
        wanted = wanted - 0.1 * decay * wanted
        wanted = wanted - 0.1 * unbiased[0] / (np.sqrt(unbiased[1]) + EPSILON)
        optimizer.update(parameters, grad, 0.1, step)
        np.testing.assert_allclose(parameters.flat, wanted, rtol=1e-12, atol=1e-12)


def test_the_learning_rate_rises_and_falls():
    rates = [learning_rate(step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(1e-5)
    assert np.argmax(rates) in (99, 100)
    assert max(rates) == pytest.approx(1e-3)
    assert rates[-1] == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.slow
def test_a_model_learns_what_repeats():
    sizes = SMALL._replace(width=32, layers=1)
    text = np.tile(np.arange(sizes.characters), 30)
    run = Run(sizes, text[:300], text[300:], seed=0, batch=16, steps=200, threads=2)
    first = run.validate()
    for _ in range(run.steps):
        run.step()
    assert first == pytest.approx(np.log(sizes.characters), abs=0.1)
    assert run.validate() < 0.5


def test_no_bit_depends_on_threads():
    alone, together = small_run(threads=1), small_run(threads=2)
    for _ in range(4):
        assert alone.step() == together.step()
    assert alone.validate() == together.validate()
    assert np.array_equal(alone.parameters.flat, together.parameters.flat)


# Checkpoints.


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


@pytest.mark.parametrize(
    ("name", "changed"),
    [("seed", 2), ("batch", 5), ("steps", 21), ("dtype", np.float64)],
)
def test_a_checkpoint_of_other_settings_is_refused(saved, name, changed):
    with pytest.raises(CheckpointError, match=rf"run\.npz was made with {name} "):
        small_run(**{name: changed}).load(saved)


def fields_of(path):
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version 1"),
        ({"mean": None}, "must contain"),
        ({"more": 1}, "must contain"),
        ({"generator": np.array([{}])}, "damaged"),
    ],
)
def test_what_is_not_a_checkpoint_is_refused(saved, changes, message):
    fields = fields_of(saved) | changes
    np.savez(saved, **{name: value for name, value in fields.items() if value is not None})
    with pytest.raises(CheckpointError, match=rf"run\.npz .*{message}"):
        read_checkpoint(saved)


def damaged_at(path, whole, places):
    """Assert that a damaged byte is found, or is not among the bytes that are read."""
    sound, refused = fields_of(path), 0
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            fields = read_checkpoint(path)
        except CheckpointError:
            refused += 1
        else:
            assert fields.keys() == sound.keys()
            for name, value in sound.items():
                np.testing.assert_array_equal(fields[name], value, strict=True)
    return refused / len(places)


def test_a_damaged_checkpoint_is_refused(saved):
    whole = saved.read_bytes()
    assert damaged_at(saved, whole, range(0, len(whole), len(whole) // 50)) > 0.9


SAVE = """
    import os, pathlib, signal, sys

    sys.path[:0] = {paths!r}
    import numpy as np
    from test_training import small_run

    run, path = small_run(), pathlib.Path({path!r})
    run.load(path)
    run.step()

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def half(file, **fields):
        whole = pathlib.Path({path!r}).read_bytes()
        file.write(whole[: len(whole) // 2])
        file.flush()
        die()

    {end}
    run.save(path)
"""


LATER = [pytest.param(f"os.{name} = die", marks=pytest.mark.slow) for name in ("fsync", "replace")]


@pytest.mark.parametrize("end", ["np.savez = half", *LATER])
def test_a_kill_while_writing_leaves_the_last_checkpoint(saved, end):
    before = saved.read_bytes()
    paths = [os.path.dirname(__file__), os.path.dirname(model_files.__file__)]
    script = textwrap.dedent(SAVE).format(paths=paths, path=str(saved), end=end)
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert saved.read_bytes() == before
    run = small_run()
    run.load(saved)
    run.step()
    run.save(saved)  # despite the unfinished file
    assert len(read_checkpoint(saved)["losses"]) == 4


# The program.

ASKED = ["--steps", "12", "--every", "4", "--batch", "2", "--characters", "10000", "--sample", "5"]


def program(folder, *more):
    """Start the example on a short text."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", EXAMPLES / "train.py", *ASKED, *more],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    said, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return said


@pytest.mark.exhaustive
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_program_that_was_stopped_goes_on_to_the_same_bits(tmp_path, sent):
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    said = finished(program(tmp_path / "whole"))
    assert "step 12 " in said
    whole = fields_of(tmp_path / "whole" / "train.npz")

    process = program(tmp_path / "stopped")
    while not (line := process.stdout.readline()).startswith("step 8 "):
        assert line, process.communicate()
    process.send_signal(sent)
    said, _ = process.communicate(timeout=120)
    done = len(fields_of(tmp_path / "stopped" / "train.npz")["losses"])
    assert 4 <= done < 12
    if sent == signal.SIGINT:
        assert process.returncode == 0
        assert f"stopped at step {done}: the same command continues from there" in said
    said = finished(program(tmp_path / "stopped"))
    assert f"continuing from step {done}, where train.npz was saved" in said
    resumed = fields_of(tmp_path / "stopped" / "train.npz")
    for name, value in whole.items():
        assert np.array_equal(resumed[name], value), name


def test_a_bigram_model_counts_pairs():
    rng = np.random.default_rng(13)
    text, held_out = rng.integers(0, 3, 50), rng.integers(0, 3, 14)
    sizes = Sizes(characters=3, context=6)
    pairs = list(itertools.pairwise(text))
    losses = []
    for before, after in itertools.pairwise(held_out[:13]):
        follows = sum(pair == (before, after) for pair in pairs) + 1
        losses.append(-np.log(follows / (sum(pair[0] == before for pair in pairs) + 3)))
    assert train.bigram_loss(text, held_out, sizes) == pytest.approx(np.mean(losses), rel=1e-12)


def test_the_loss_curve_is_text_without_matplotlib(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = small_run()
    run.losses = np.linspace(4, 1, 200).tolist()
    train.draw_losses(run, 2.0, tmp_path / "losses.png")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 13
    assert lines[0].split() == ["3.985", "***"]
    assert lines[11].split() == ["1.008", "*****"]
    assert not list(tmp_path.iterdir())
