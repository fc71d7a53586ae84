"""The directive ``command-help``: what the commands print with ``--help``, asked when built."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WIDTH = "88"
# The names that the help of all commands lists, each with what it is for.
COMMANDS = re.compile(r"^commands:\n(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    (\w[\w-]*)", re.MULTILINE)


class CommandHelp(SphinxDirective):
    """Show the help of ``python -m regard``, and that of each of its commands in a section."""

    def run(self) -> list[nodes.Node]:
        """Ask for the help of all commands, and then of each."""
        overview = self.help_of()
        listed = COMMANDS.search(overview)
        names = COMMAND.findall(listed[1]) if listed else []
        if not names:
            raise self.error("python -m regard --help lists no commands")
        return [shown(overview), *(self.section_of(name) for name in names)]

    def help_of(self, *arguments: str) -> str:
        """Run a command with ``--help``."""
        command = [sys.executable, "-m", "regard", *arguments, "--help"]
        environment = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise self.error(f"{' '.join(command)} failed: {done.stderr}")
        return done.stdout

    def section_of(self, name: str) -> nodes.section:
        """Make the section of a command."""
        section = nodes.section(ids=[nodes.make_id(f"python-m-regard-{name}")])
        title = f"python -m regard {name}"
        section += nodes.title("", "", nodes.literal("", title))
        section += shown(self.help_of(name))
        self.state.document.note_explicit_target(section)
        return section


def shown(text: str) -> nodes.literal_block:
    """Show a text as a terminal does."""
    return nodes.literal_block(text, text, language="text")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
