"""Representations that show the options of objects: a line of text, or a table in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CELL = "text-align: left; vertical-align: top; padding: 0.1em 0.75em 0.1em 0"


class ShowsOptions(ABC):
    """Writes `__repr__` and `_repr_html_` from one list of options."""

    @abstractmethod
    def _shown_options(self) -> Mapping[str, str] | str:
        """Return each option as text, or a word for the state of an object without options."""

    def __repr__(self) -> str:
        options = self._options_or_state()
        if not isinstance(options, str):
            options = ", ".join(f"{name}={text}" for name, text in options.items())
        return f"{type(self).__name__}({options})"

    def _repr_html_(self) -> str:
        name, options = type(self).__name__, self._options_or_state()
        if isinstance(options, str):
            return html_table(f"{name} ({options})", [])
        return html_table(name, options.items())

    def _options_or_state(self) -> Mapping[str, str] | str:
        try:
            return self._shown_options()
        except AttributeError:  # in a debugger, for an object whose __init__ has not finished
            return "not initialized"


def html_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table with a row for each name, with escaped cells, in the colors of the page."""
    import html

    lines = [
        '<table style="border-collapse: collapse">',
        f'<caption style="text-align: left">{html.escape(caption)}</caption>',
        "<tbody>",
    ]
    for name, text in rows:
        head = f'<th scope="row" style="{_CELL}; font-weight: normal">{html.escape(name)}</th>'
        lines.append(f'<tr>{head}<td style="{_CELL}">{html.escape(text)}</td></tr>')
    return "\n".join([*lines, "</tbody>", "</table>"])
