"""Give the Python programs of the tutorial a button that runs them in the reader's browser.

The buttons exist if the environment variable ``REGARD_PYODIDE_WHEEL`` names a wheel for Pyodide,
which `packaging/pyodide/build.py` makes. The site then contains the wheel and the programs. A
browser loads Pyodide and NumPy from a pinned address when a reader presses a button, and nothing
before.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sphinx.application import Sphinx

WHEEL = "REGARD_PYODIDE_WHEEL"


def programs(app: Sphinx) -> list[Path]:
    """Return the programs that need no compiler."""
    sources = sorted(Path(app.srcdir, "learn/programs").glob("*.py"))
    texts = {source: source.read_text(encoding="utf-8") for source in sources}
    return [
        source
        for source, text in texts.items()
        if "__main__" in text and "import compiled" not in text and "all_steps" not in source.name
    ]


def add_script(app: Sphinx, page: str, _template: str, _context: dict, _tree: object) -> None:
    """Add the script to the pages of the tutorial."""
    if page.startswith("learn/"):
        names = " ".join(source.name for source in programs(app))
        wheel = Path(os.environ[WHEEL]).name
        app.add_js_file("run/page.js", **{"data-programs": names, "data-wheel": wheel})


def copy_files(app: Sphinx, failed: Exception | None) -> None:
    """Copy the scripts, the wheel, and the programs with the modules that they import."""
    if failed or app.builder.format != "html":
        return
    folder = Path(app.outdir, "_static/run")
    shutil.copytree(Path(app.srcdir, "_run"), folder, dirs_exist_ok=True)
    shutil.copy(os.environ[WHEEL], folder)
    shutil.make_archive(str(folder / "programs"), "zip", Path(app.srcdir, "learn/programs"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers, if there is a wheel."""
    if os.environ.get(WHEEL):
        app.connect("html-page-context", add_script)
        app.connect("build-finished", copy_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
