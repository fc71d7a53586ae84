"""The directive ``command-help``: what a command prints with ``--help``, asked when built."""

from __future__ import annotations

import os
import subprocess
import sys

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WIDTH = "88"


class CommandHelp(SphinxDirective):
    """Show the help of ``python -m regard`` or of one of its commands."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Run the command with ``--help``."""
        command = [sys.executable, "-m", "regard", *self.arguments, "--help"]
        environment = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise self.error(f"{' '.join(command)} failed: {done.stderr}")
        return [nodes.literal_block(done.stdout, done.stdout, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
