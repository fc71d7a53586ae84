"""Draw the pictures of docs/guide/pictures.md: run its examples, and save each figure."""

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

HERE = Path(__file__).parent
PAGE = HERE.parent / "guide" / "pictures.md"
PICTURE = re.compile(r"^!\[.*\]\(\.\./figures/(.*)\)$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Save the figure of each example under the name of the picture that follows it."""
    page = PAGE.read_text(encoding="utf-8")
    names = iter(PICTURE.findall(page))
    namespace: dict[str, object] = {}
    for block in BLOCK.findall(page):
        exec(compile(block, str(PAGE), "exec"), namespace)
        for number in pyplot.get_fignums():
            path = HERE / next(names)
            # Without the version of matplotlib, so that files change only where pictures do.
            pyplot.figure(number).savefig(path, dpi=80, metadata={"Software": None})
            pyplot.close(number)
            print(path.relative_to(HERE.parent.parent))


if __name__ == "__main__":
    main()
