"""Make the notebooks that pages offer for download fit for Jupyter.

MyST-NB writes the executed notebook of a page. Two things in it are of use on the site alone: roles
and directives of MyST, which Jupyter shows as they are written, and outputs that were printed in
several parts, of which the first part has already been given all.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from sphinx.application import Sphinx

DOWNLOAD = re.compile(r"^\{nb-download\}`[^`]*`\n*", re.MULTILINE)
DIRECTIVE = re.compile(r"^(`{3,}|:{3,})\{[^}]*\}.*?^\1\n*", re.MULTILINE | re.DOTALL)


def without_repeats(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return the outputs with the first of each stream alone."""
    kept, streams = [], set()
    for output in outputs:
        if output.output_type == "stream":
            if output.name in streams:
                continue
            streams.add(output.name)
        kept.append(output)
    return kept


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a notebook without what only the site understands."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = DIRECTIVE.sub("", DOWNLOAD.sub("", cell.source)).strip()
        elif cell.cell_type == "code":
            cell.outputs = without_repeats(cell.outputs)
    notebook.cells = [cell for cell in notebook.cells if cell.source]
    return notebook


def clean_all(app: Sphinx, error: Exception | None) -> None:
    """Clean the notebooks among the downloads of a finished build."""
    if error is None:
        for path in Path(app.outdir, "_downloads").glob("*/*.ipynb"):
            nbformat.write(clean(nbformat.read(path, as_version=4)), path)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handler."""
    app.connect("build-finished", clean_all)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
