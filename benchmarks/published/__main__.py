"""Keep runs of the table, and write their tables in README and the documentation.

python -m benchmarks.table --json run.json && python -m benchmarks.published keep run.json NAME
python -m benchmarks.published write        # all tables between <!-- table ... --> and <!-- end -->
python -m benchmarks.published picture NAME docs/bench.png --groups attention+decode

A table is named by its kind and the runs that it is made from, such as <!-- table cases NAME -->.
`tests/house/test_published_numbers.py` asserts that the pages contain what `write` would write.
"""

from __future__ import annotations

import argparse
import dataclasses
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
    """Return a page with all its tables regenerated."""

    def table(match: re.Match[str]) -> str:
        lines = "\n".join(TABLES[match[2]](*match[3].split()))
        return f"{match[1]}\n{lines}\n\n{match[4]}"

    return MARKED.sub(table, text)


def draw(name: str, path: str, groups: str) -> None:
    """Draw the picture of a run, or of some groups of its cases."""
    from regard._bench import plot

    target, results = Path(path), published(name).results
    if groups:
        rows = [row for row in results.cases if row.case.group.title in groups.split("+")]
        results = dataclasses.replace(results, cases=rows)
    target.write_bytes(plot.pen()(plot.draw_bars, results, target.suffix[1:]))


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
    keeping.add_argument("--note", default="", help="a note for readers of the file")
    commands.add_parser("write", help="regenerate all tables")
    drawing = commands.add_parser("picture", help="draw a run")
    drawing.add_argument("name", choices=sorted(path.stem for path in FOLDER.glob("*.json")))
    drawing.add_argument("path", help="a file that ends in .png, .svg or .pdf")
    drawing.add_argument("--groups", default="", help="groups of cases, such as attention+decode")
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
        draw(options.name, options.path, options.groups)
    else:
        parser.error(f"path must end in .png, .svg or .pdf, got {options.path!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
