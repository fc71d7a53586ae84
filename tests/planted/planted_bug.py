"""What a planted bug is."""

from pathlib import Path
from typing import NamedTuple


class DoesNotApply(Exception):
    """The text that a bug replaces does not stand in its file exactly once."""


class Bug(NamedTuple):
    """A change of one place in the source that makes some result wrong, or an error go missing."""

    name: str
    file: str  # in the tree
    before: str  # stands there exactly once
    after: str
    tests: tuple[str, ...]  # files and folders where it should be found
    shows: str  # which calls it harms: no others

    def planted(self, tree):
        """The file's text with the bug."""
        path = Path(tree) / self.file
        if not path.is_file():
            raise DoesNotApply(f"{self.name}: there is no file {self.file}")
        text = path.read_text(encoding="utf-8")
        count = text.count(self.before)
        if count != 1:
            raise DoesNotApply(
                f"{self.name}: the text to replace must stand in {self.file} once, and stands "
                f"there {count} times:\n{self.before}"
            )
        return text.replace(self.before, self.after)
