"""What is compiled, what runs, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import regard

from .layout import GAP, INDENT
from .terminal import Terminal, left


def run(terminal: Terminal, *, as_json: bool) -> int:
    """Show the configuration.

    Parameters
    ----------
    terminal : Terminal
        Where it goes.
    as_json : bool
        Whether it is JSON rather than text.

    Returns
    -------
    int
        0, the exit status.
    """
    config = regard.show_config(mode="dicts")
    if as_json:
        terminal.write(json.dumps(config, allow_nan=False))
    else:
        name = terminal.bold("regard")
        terminal.write(f"{name} {config['version']}", "", *_rows(terminal, config))
    return 0


def _rows(terminal: Terminal, config: dict[str, Any]) -> Iterator[str]:
    def row(name: str, what: str, why: str = "") -> str:
        return INDENT + terminal.accent(left(name, 8)) + GAP + what + GAP + terminal.dim(why)

    targets = config["targets"]
    widest = max(len(target["name"]) for target in targets)
    yield row("compiler", f"{config['compiler']}, {config['build_type']}")
    yield row("python", f"{config['python']}, NumPy {config['numpy']}")
    for i, target in enumerate(targets):
        runs = "runs here" if target["runnable"] else "does not run here"
        why = "" if target["runnable"] else f"needs {target['needs']}"
        yield row("" if i else "targets", f"{left(target['name'], widest)}{GAP}{runs}", why)
    yield row("active", terminal.bold(config["active_target"]), config["active_reason"])
    yield row("threads", terminal.bold(str(config["threads"])), config["threads_reason"])
