"""Plant bugs in regard, one after another, and check whether the tests find them.

    python tests/planted/run.py --python VENV/bin/python
    python tests/planted/run.py --python VENV/bin/python decode "float mask" --expected-only
    python tests/planted/run.py --tree ../before --python VENV/bin/python -- -m "not slow" -n2
    python tests/planted/run.py --list
    python tests/planted/run.py --check

The tables in this folder (planted_in_*.py) name each bug, the text that it replaces and the tests
that should find it. The tree, by default this repository, is copied to a folder (--work), and only
the copy is changed. The tests are the copy's own, so that the tests of another tree can be judged
by the same bugs. Its build folder is kept between bugs: a build compiles only what depends on the
one changed file (seconds for Python, a minute for one family of kernels, several minutes for files
that all of them include; ccache helps, as CMAKE_CXX_COMPILER_LAUNCHER). The package is installed
into the environment of --python, which needs the requirements of the tests, and scikit-build-core,
pybind11, cmake and ninja.

For each bug the expected tests run first, and the other tests only if these find nothing
(--expected-only skips the others). A bug that other tests find is reported with the test, so that
the table can be corrected. Arguments after -- go to pytest. At the end, the environment gets the
tree without bugs, on which every test that found a bug must pass.

The script prints a table. It exits with 1 if some bug is not found, and with 2 if something else
went wrong: a text that does not occur in the tree, a build that fails, tests that cannot be
collected.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import planted_in_all_kernels
import planted_in_caches
import planted_in_dispatch
import planted_in_kernels
import planted_in_python
from planted_bug import DoesNotApply

ROOT = Path(__file__).resolve().parent.parent.parent
BUGS = [
    *planted_in_python.BUGS,
    *planted_in_caches.BUGS,
    *planted_in_dispatch.BUGS,
    *planted_in_kernels.BUGS,
    *planted_in_all_kernels.BUGS,
]

# Exit codes of pytest: 0 means nothing failed, 1 something did, 5 there was no test. Negative
# codes, and those from 128 on, mean that a signal ended it. Other codes are errors of its own, such
# as a module that cannot be imported.
NOTHING_FAILED, SOME_FAILED, NO_TESTS = 0, 1, 5


class Failure(Exception):
    """A failure that says nothing about the tests."""


class Outcome(NamedTuple):
    bug: str
    found: bool | None  # None if the bug could not be tried
    by: str  # the first test that failed, or what went wrong
    expected: bool  # whether the first test is one of the expected tests


class Copy:
    """A copy of a tree, to build and test."""

    def __init__(self, tree, work, python, pytest_args, limit, targets="all"):
        self.tree, self.work, self.python, self.targets = tree, work, python, targets
        self.path = work / "tree"
        self.folder = self.path / "build" / "planted"  # two levels below the source, as usual
        self.pytest_args, self.limit = pytest_args, limit
        self.log = work / "log"
        work.mkdir(parents=True, exist_ok=True)
        self.log.write_text("", encoding="utf-8")

    def follow(self):
        """Make the copy equal to the tree. Unchanged files keep their times, which tell the build
        what to compile."""
        names = {name for name in _files(self.tree) if (self.tree / name).is_file()}
        for name in _files_without_git(self.path):
            if name not in names:
                (self.path / name).unlink()
        for name in names:
            self.write(name, (self.tree / name).read_bytes())

    def write(self, name, content):
        path = self.path / name
        if path.is_file() and path.read_bytes() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod((self.tree / name).stat().st_mode)

    def build(self):
        """Install the copy."""
        command = [self.python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
        command += [f"-Cbuild-dir={self.folder}", "-Ccmake.define.REGARD_CUDA=OFF"]
        command += [f"-Ccmake.define.REGARD_TARGETS={self.targets}", "."]
        if self._run(command, None) != 0:
            raise Failure(f"the build failed: {self.log} has its output")

    def first_failure(self, tests=None):
        """Return the first failing test of these, if such files exist, or of all tests; None if
        none fails."""
        if tests is not None:
            tests = [name for name in tests if (self.path / name.partition("::")[0]).exists()]
            if not tests:
                return None
        before = self.log.stat().st_size
        command = [self.python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        try:
            code = self._run([*command, *self.pytest_args, *(tests or ())], self.limit)
        except subprocess.TimeoutExpired:
            return f"no end within {self.limit} s"
        if code in (NOTHING_FAILED, NO_TESTS):
            return None
        with open(self.log, "rb") as log:
            log.seek(before)
            output = log.read().decode("utf-8", "replace")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        if code < 0 or code >= 128:
            return f"a crash ({code})"
        if code != SOME_FAILED and not failed:
            raise Failure(f"pytest ended with {code}: {self.log} has its output")
        return failed[1] if failed else f"pytest ended with {code}"

    def _run(self, command, limit):
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        with open(self.log, "ab") as log:
            log.write(f"\n$ {' '.join(map(str, command))}\n".encode())
            log.flush()
            done = subprocess.run(
                command,
                cwd=self.path,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=limit,
                check=False,
            )
        return done.returncode


def _files(tree):
    """Return the names of a tree's files: all files that git would commit."""
    listed = subprocess.run(
        ["git", "-C", tree, "ls-files", "-co", "--exclude-standard", "-z"],
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        return _files_without_git(tree)
    return listed.stdout.decode().rstrip("\0").split("\0")


def _files_without_git(tree):
    """Return the same names without git, by leaving out the folders that builds and tests
    create."""
    left_out = {"build", "dist", "__pycache__", ".venv", ".hypothesis"}
    names = []
    for folder, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if name not in left_out]
        names += [(Path(folder) / name).relative_to(tree).as_posix() for name in files]
    return names


def attempt(copy, bug, expected_only):
    """Plant one bug, look for it, and remove it again."""
    try:
        copy.write(bug.file, bug.planted(copy.tree).encode())
        copy.build()
        found = copy.first_failure(bug.tests)
        is_expected = found is not None
        if found is None and not expected_only:
            found = copy.first_failure()
    except (DoesNotApply, Failure) as error:
        return Outcome(bug.name, None, str(error), False)
    finally:
        if (copy.tree / bug.file).is_file():
            copy.write(bug.file, (copy.tree / bug.file).read_bytes())
    return Outcome(bug.name, found is not None, found or "", is_expected)


def row(outcome):
    words = {True: "yes", False: "**no**", None: "**error**"}[outcome.found]
    if outcome.found and not outcome.expected:
        words = "yes, elsewhere"
    by = f"`{outcome.by}`" if outcome.found else outcome.by.partition("\n")[0]
    return f"| {outcome.bug} | {words} | {by.replace('|', '&#124;')} |"


def chosen(names):
    """Return the bugs whose name or file contains one of these texts, or all bugs if there are
    none."""
    unknown = [n for n in names if not any(n in bug.name or n in bug.file for bug in BUGS)]
    if unknown:
        sys.exit(f"no bug's name or file has {unknown[0]!r} in it; --list prints them")
    return [b for b in BUGS if not names or any(n in b.name or n in b.file for n in names)]


def arguments():
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], epilog="Arguments after -- go to pytest."
    )
    parser.add_argument(
        "names", nargs="*", help="parts of the names or files of bugs (default: all)"
    )
    parser.add_argument("--tree", type=Path, default=ROOT, help="the source and its tests")
    parser.add_argument("--python", help="interpreter of the environment to install into")
    parser.add_argument("--work", type=Path, help="folder of the copy, its build and its log; kept")
    parser.add_argument("--expected-only", action="store_true", help="run no other tests")
    parser.add_argument(
        "--targets", default="all", metavar="A;B", help="what to compile (default: all)"
    )
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one run of pytest")
    parser.add_argument("--list", action="store_true", help="print each bug and what it harms")
    parser.add_argument("--check", action="store_true", help="check that each can be planted")
    given = parser.parse_args(words[:end])
    given.pytest_args = words[end + 1 :]
    if not (given.python or given.list or given.check):
        parser.error("--python is needed: the regard in that environment is replaced")
    return given


def check(bugs, tree):
    wrong = 0
    for bug in bugs:
        try:
            bug.planted(tree)
        except DoesNotApply as error:
            wrong += 1
            print(error)
    print(f"{len(bugs) - wrong} of {len(bugs)} bugs can be planted")
    return 2 if wrong else 0


def main():
    given = arguments()
    bugs, tree = chosen(given.names), given.tree.resolve()
    if given.list:
        for bug in bugs:
            print(f"{bug.name}\n    {bug.file}\n    {bug.shows}")
        return 0
    if given.check:
        return check(bugs, tree)
    work = (given.work or tree / "build" / "planted").resolve()
    # Not resolved, because an environment's interpreter is a link to another one.
    python = os.path.abspath(given.python)
    copy = Copy(tree, work, python, given.pytest_args, given.limit, given.targets)
    outcomes = []
    print("| bug | found | by |\n|---|---|---|", flush=True)
    try:
        copy.follow()
        for bug in bugs:
            outcomes.append(attempt(copy, bug, given.expected_only))
            print(row(outcomes[-1]), flush=True)
    finally:
        copy.follow()
        copy.build()
    tests = [o.by for o in outcomes if o.found and "::" in o.by]
    spurious = copy.first_failure(tests)
    print(f"\n{sum(o.found is True for o in outcomes)} of {len(outcomes)} bugs were found.")
    if spurious:
        print(f"{spurious} fails without a bug: what it found does not count.")
    if spurious or any(o.found is None for o in outcomes):
        return 2
    return 1 if any(not o.found for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
