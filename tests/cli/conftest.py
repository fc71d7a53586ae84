import os
import pickle
import subprocess
import sys
from functools import partial

import pytest

import regard
from regard._bench import measuring
from regard._bench.engines import Regard
from regard._bench.rounds import in_turns
from regard._cli import bench, demo, main

PEAK, BANDWIDTH = 4e11, 2e10
COMMAND = [sys.executable, "-m", "regard"]
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("REGARD_", "OMP_", "PYTHONIO", "PYTHONUTF8", "LC_"))
    and name not in ("LANG", "TERM", "COLUMNS", "NO_COLOR")
} | {"PYTHONUTF8": "1"}


@pytest.fixture
def run(capsys):
    """Run the command line in this process, and return its status, output and messages."""
    threads = regard.get_num_threads()

    def run(*arguments):
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    yield run
    if regard.get_num_threads() != threads:
        regard.set_num_threads(threads)


@pytest.fixture
def shown(run):
    """Return what a successful command prints."""

    def shown(*arguments):
        status, output, errors = run(*arguments)
        assert (status, errors) == (0, "")
        return output

    return shown


@pytest.fixture
def measured_here(monkeypatch):
    """Measure in this process, against the test's engines, with little memory, and briefly."""

    class Limits:
        def fma_peak(self, is_double, threads):
            return PEAK

        def read_bandwidth(self, size, threads):
            return BANDWIDTH

    def measure_here(*peers):
        def run_here(work, request, *, on_message=lambda _: None, **options):
            seen.update(options, request=request)
            request = pickle.loads(pickle.dumps(request))
            return pickle.loads(pickle.dumps(work(request, on_message)))

        seen = {}
        for command in (bench, demo):
            monkeypatch.setattr(command, "run_in_fresh_process", run_here)
        monkeypatch.setattr(demo, "TIMED_SHAPE", "1,4,64,32")
        monkeypatch.setattr(measuring, "_core", Limits())
        monkeypatch.setattr(measuring, "ENGINES", (Regard, *peers))
        monkeypatch.setattr(measuring, "in_turns", partial(in_turns, settle=0))
        monkeypatch.setattr(measuring, "streamed_bytes", lambda: 1 << 20)
        return seen

    return measure_here


@pytest.fixture
def without_peers(tmp_path):
    """Return a folder for the command to run in, where only regard and NumPy are installed."""
    for name in ("torch", "onnxruntime"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})")
    return tmp_path


@pytest.fixture
def begun(start, without_peers):
    """Start the command line as a separate process, and return it."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return lambda *arguments: start(
        [*COMMAND, *arguments], cwd=without_peers, env=ENVIRONMENT, **piped
    )


@pytest.fixture
def process(without_peers):
    """Run the command line as a separate process."""

    def run(*arguments, text=True, stdout=subprocess.PIPE, **environment):
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=without_peers,
            env=ENVIRONMENT | environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=text,
            encoding="utf-8" if text else None,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def on_terminal(without_peers):
    """Run the command line on a pseudo-terminal, and return what it shows, as text."""
    pty = pytest.importorskip("pty")

    def run(*arguments, **environment):
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=without_peers,
            env=ENVIRONMENT | environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            seen = b""
            while True:
                try:
                    piece = os.read(ours, 65536)
                except OSError:  # Linux's way to report that the other end is closed
                    break
                if not piece:
                    break
                seen += piece
            os.close(ours)
            assert process.wait(timeout=60) == 0
        return seen.decode().replace("\r\n", "\n")

    return run
