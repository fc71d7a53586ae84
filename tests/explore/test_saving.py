"""Pages reach their place whole or not at all, and a notebook shows those that are small."""

import errno
import html
import os
import re
import stat

import pytest

import regard
from explorer_pages import problem
from interrupts import Interrupt


@pytest.fixture(scope="module")
def explorer():
    return regard.explore(*problem())


def test_an_existing_file_stays_unless_it_may_be_replaced(explorer, tmp_path):
    place = tmp_path / "page.html"
    place.write_text("mine")
    place.chmod(0o640)
    with pytest.raises(FileExistsError, match=r"page\.html', which exists: pass overwrite=True"):
        explorer.save(place)
    assert place.read_text() == "mine"
    explorer.save(str(place), overwrite=True)
    assert place.read_text().startswith("<!doctype html>")
    assert stat.S_IMODE(place.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["page.html"]


def test_no_space_leaves_what_was_there(run_python, tmp_path):
    """A limit on the size of files is a full disk."""
    done = run_python(
        """
        import os, resource, signal
        import numpy as np, regard
        explorer = regard.explore(np.ones((1, 4, 4)), np.ones((1, 4, 4)))
        open("page.html", "w").write("old")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        for overwrite, name in ((True, "page.html"), (False, "new.html")):
            try:
                explorer.save(name, overwrite=overwrite)
            except OSError as error:
                print(error, open("page.html").read(), sorted(os.listdir(".")), sep=" | ")
        """
    )
    lines = done.stdout.splitlines()
    assert [line.partition(" | ")[2] for line in lines] == ["old | ['page.html']"] * 2, done.stderr
    assert ["the existing file is unchanged" in line for line in lines] == [True, False]


# The garbage collector closes a file that was opened just before the interrupt.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("overwrite", [True, False])
def test_an_interrupt_at_any_instruction_leaves_no_other_file(explorer, tmp_path, overwrite):
    explorer.save(tmp_path / "whole.html")
    whole, before = (tmp_path / "whole.html").read_text(), "old" if overwrite else None
    for number in range(10_000):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = folder / "page.html"
        if overwrite:
            place.write_text(before)
        try:
            with Interrupt(number, within=("regard/_runtime/saving",)):
                explorer.save(place, overwrite=overwrite)
        except KeyboardInterrupt:
            assert {each.name for each in folder.iterdir()} <= {"page.html"}
            assert (place.read_text() if place.exists() else None) in (before, whole)
        else:
            break
    assert number > 50
    assert place.read_text() == whole


def test_a_file_created_meanwhile_is_not_overwritten(explorer, tmp_path, monkeypatch):
    """Another process creates the file while the page is written."""
    place = tmp_path / "page.html"
    monkeypatch.setattr("os.fsync", lambda _: place.write_text("of another process"))
    with pytest.raises(FileExistsError, match="which exists"):
        explorer.save(place)
    assert place.read_text() == "of another process"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_move_that_is_refused(explorer, tmp_path, monkeypatch):
    def refused(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.replace", refused)
    with pytest.raises(PermissionError, match=r"cannot write"):
        explorer.save(tmp_path / "page.html")
    assert os.listdir(tmp_path) == []


def test_a_notebook_shows_a_page_that_cannot_reach_it(explorer):
    shown = explorer._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts"')
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])
    assert len(page.encode()) == explorer.nbytes
