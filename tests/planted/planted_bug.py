"""The type of a planted bug."""

from pathlib import Path
from typing import NamedTuple


class DoesNotApply(Exception):
    """The text that a bug replaces does not occur exactly once in its file."""


class Bug(NamedTuple):
    """A change of one place in the source that makes some result wrong, or an error disappear."""

    name: str
    file: str  # in the tree
    before: str  # occurs there exactly once
    after: str
    tests: tuple[str, ...]  # files and folders whose tests should find it
    shows: str  # the only calls that it harms

    def planted(self, tree):
        """Return the file's text with the bug."""
        path = Path(tree) / self.file
        if not path.is_file():
            raise DoesNotApply(f"{self.name}: there is no file {self.file}")
        text = path.read_text(encoding="utf-8")
        count = text.count(self.before)
        if count != 1:
            raise DoesNotApply(
                f"{self.name}: the text to replace must occur in {self.file} once, and occurs "
                f"{count} times:\n{self.before}"
            )
        return text.replace(self.before, self.after)
