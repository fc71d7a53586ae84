"""Test how the command line ends: Ctrl-C, closed pipes, full disks, failures."""

import os
import re
import signal
import time

import pytest

# Stands in for an engine that takes long to import, and reports which process imports it.
SLOW = """
import os, pathlib, time
pathlib.Path("part").write_text(str(os.getpid()))
os.rename("part", "pid")
time.sleep(600)
"""


@pytest.mark.parametrize("arguments", [[], ["bench", "--json", "out.json", "--shape", "1,1,6,2"]])
def test_ctrl_c_leaves_no_traceback_no_process_and_no_file(begun, without_peers, arguments):
    (without_peers / "torch.py").write_text(SLOW)
    process = begun(*arguments)
    deadline = time.monotonic() + 60
    while not (without_peers / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, errors = (each.decode() for each in process.communicate(timeout=60))
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "regard: interrupted"
    assert "Traceback" not in errors
    assert ("One fused call equals" in output) == (not arguments)
    assert not (without_peers / "out.json").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((without_peers / "pid").read_text()), 0)


def test_ctrl_c_while_importing(run_python):
    done = run_python(
        """
        import sys
        from regard._cli import main

        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == "regard._cli.commands":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupt())
        sys.exit(main(["info"]))
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "regard: interrupted\n")


@pytest.mark.parametrize("arguments", [["--no-timing"], ["--help"]])
def test_a_closed_pipe_leaves_no_traceback(begun, arguments):
    process = begun(*arguments)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_is_exit_status_1(process):
    with open("/dev/full", "w") as full:
        done = process("--no-timing", stdout=full)
    assert done.returncode == 1
    assert re.fullmatch(r"regard: error: OSError: .*\n", done.stderr)


def test_a_failure_is_one_line(run_python):
    script = """
        import sys
        from regard._cli import commands, main

        def fail(*_args, **_options):
            raise MemoryError("cannot\\n have \\x1b[31m it")

        commands.info.run = fail
        sys.exit(main(["info"]))
        """
    done = run_python(script)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "regard: error: MemoryError: cannot\\n have \\x1b[31m it\n"
    assert "Traceback" in run_python(script, "-X", "dev").stderr
