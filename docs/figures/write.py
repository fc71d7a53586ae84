"""Write the drawings of the documents as SVG files next to their modules.

pip install '.[plot]' && python docs/figures/write.py [NAME ...]

A module whose function `draw` needs no arguments makes the file of its name. The file records which
module it was made from, so that a test finds drawings that are out of date.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def drawings() -> list[str]:
    """Return the names of the modules that draw without arguments."""
    return sorted(path.stem for path in HERE.glob("*.py") if draws(path))


def draws(path: Path) -> bool:
    """Return whether a module has a function `draw` without arguments."""
    parts = ast.parse(path.read_text(encoding="utf-8")).body
    return any(
        isinstance(part, ast.FunctionDef) and part.name == "draw" and not part.args.args
        for part in parts
    )


def source_of(name: str) -> str:
    """Return the line of a file that records the sources of its drawing."""
    sources = [(HERE / f"{each}.py").read_bytes() for each in (name, "style")]
    digest = hashlib.sha256(b"\0".join(sources)).hexdigest()[:16]
    return f"<!-- {name}.py and style.py, {digest} -->"


def main(names: list[str]) -> None:
    """Write some drawings, or all."""
    import style

    for name in names or drawings():
        picture = style.svg(importlib.import_module(name).draw())
        path = HERE / f"{name}.svg"
        path.write_text(f"{source_of(name)}\n{picture.strip()}\n", encoding="utf-8")
        print(path.relative_to(HERE.parent.parent))


if __name__ == "__main__":
    main(sys.argv[1:])
