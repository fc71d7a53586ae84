"""Turn what docstrings put in single backticks into links, or into code.

A parameter is code; a public name of regard is a link; everything else is code. Sphinx's own role
for this would link the parameter ``scale`` to the function of that name.

References get back the numbers that docstrings give them: numpydoc makes their labels unique, and
restores the numbers only in pages of reStructuredText.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

# A shape such as (*batch, length) outside of code, whose asterisk would begin an emphasis.
UNPACKED = re.compile(r"(?<![`\w])\(\*(?=\w)")
UNIQUE_LABEL = re.compile(r"\[R[0-9a-f]{12}-(\d+)\]")
QUOTED = re.compile(r"(?<![`:\w])`([A-Za-z_][\w.]*)`(?![`_])")


def parameters_of(documented: Any) -> set[str]:
    """Return the names of a callable's parameters."""
    try:
        return set(inspect.signature(documented).parameters)
    except (TypeError, ValueError):
        return set()


def public_name(text: str, modules: list[str]) -> str | None:
    """Return the full name of what `text` means in one of the modules, if that is public."""
    for module in modules:
        path = text.removeprefix(f"{module}.").split(".")
        found: Any = importlib.import_module(module)
        if path[0] not in getattr(found, "__all__", ()):
            continue
        for name in path:
            found = getattr(found, name, None)
        if found is not None:
            return f"{module}.{'.'.join(path)}"
    return None


def link_names(
    app: Sphinx, what: str, name: str, documented: Any, options: Any, lines: list[str]
) -> None:
    """Rewrite the lines of a docstring."""
    local = parameters_of(documented)
    first, _, rest = name.partition(".")
    submodule = f"{first}.{rest.partition('.')[0]}"
    modules = [submodule, "regard"] if is_module(submodule) else ["regard"]

    def link(match: re.Match[str]) -> str:
        text = match[1]
        full = None if text in local else public_name(text, modules)
        return f":py:obj:`{text} <{full}>`" if full else f"``{text}``"

    lines[:] = [UNPACKED.sub(r"(\*", QUOTED.sub(link, line)) for line in lines]


def is_module(name: str) -> bool:
    """Tell whether a name is that of a module."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def number_references(app: Sphinx, page: nodes.document, name: str) -> None:
    """Show ``[1]`` where numpydoc has made the label unique."""
    for text in list(page.findall(nodes.Text)):
        if match := UNIQUE_LABEL.fullmatch(text.astext()):
            text.parent.replace(text, nodes.Text(f"[{match[1]}]"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers, that of docstrings before numpydoc's own."""
    app.connect("doctree-resolved", number_references)
    app.connect("autodoc-process-docstring", link_names, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
