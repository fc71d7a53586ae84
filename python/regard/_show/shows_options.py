"""Objects whose representations show their options: one line of text, or a table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping


class ShowsOptions:
    """Writes `__repr__` and `_repr_html_` from one list of options."""

    def _shown_options(self) -> Mapping[str, str] | str:
        """Return each option as text, or a word for the state of an object that has none."""
        raise NotImplementedError

    def __repr__(self) -> str:
        options = self._options_or_state()
        if not isinstance(options, str):
            options = ", ".join(f"{name}={text}" for name, text in options.items())
        return f"{type(self).__name__}({options})"

    def _repr_html_(self) -> str:
        from regard._show.html_table import html_table

        name, options = type(self).__name__, self._options_or_state()
        if isinstance(options, str):
            return html_table(f"{name} ({options})", [])
        return html_table(name, options.items())

    def _options_or_state(self) -> Mapping[str, str] | str:
        try:
            return self._shown_options()
        except AttributeError:  # in a debugger, of an object whose __init__ has not finished
            return "not initialised"
