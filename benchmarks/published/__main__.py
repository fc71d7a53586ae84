"""Keep runs of the table, and write what README and the documentation quote of them.

python -m benchmarks.table --json run.json && python -m benchmarks.published keep run.json NAME
python -m benchmarks.published write        # all tables between <!-- table ... --> and <!-- end -->
python -m benchmarks.published picture NAME docs/bench.png

A table is named by its kind and the runs that it is made from, such as <!-- table cases NAME -->.
`tests/house/test_published_numbers.py` asserts that what is written is what `write` would write.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from benchmarks.published.run import FOLDER, keep, published, reduced
from benchmarks.published.tables import TABLES

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
MARKED = re.compile(r"(<!-- table ([a-z]+) ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(text: str) -> str:
    """Return a page with all its tables made anew."""

    def table(match: re.Match[str]) -> str:
        lines = "\n".join(TABLES[match[2]](*match[3].split()))
        return f"{match[1]}\n{lines}\n\n{match[4]}"

    return MARKED.sub(table, text)


def draw(name: str, path: str) -> None:
    """Draw the picture of a run."""
    from regard._bench import plot

    target = Path(path)
    target.write_bytes(plot.pen()(plot.draw_bars, published(name).results, target.suffix[1:]))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.published",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep", help="reduce a run and keep it")
    keeping.add_argument("document")
    keeping.add_argument("name")
    keeping.add_argument("--note", default="", help="what a reader of the file must know")
    commands.add_parser("write", help="make all tables anew")
    drawing = commands.add_parser("picture", help="draw a run")
    drawing.add_argument("name", choices=sorted(path.stem for path in FOLDER.glob("*.json")))
    drawing.add_argument("path", help="a file that ends in .png, .svg or .pdf")
    options = parser.parse_args()
    if options.command == "keep":
        try:
            document = json.loads(Path(options.document).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            parser.error(f"{options.document} cannot be read: {error}")
        keep(reduced(document, options.note), options.name)
    elif options.command == "write":
        for page in PAGES:
            page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
    elif Path(options.path).suffix in (".png", ".svg", ".pdf"):
        draw(options.name, options.path)
    else:
        parser.error(f"path must end in .png, .svg or .pdf, got {options.path!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
