"""Write into the pages what their programs and examples print.

pip install ".[docs]" && python docs/write_results.py            # examples whose output changed
python docs/write_results.py --programs [NAME ...]               # the programs of the tutorial

The output of a program follows ``<!-- result: name -->``; the output of an example is the ``text``
block right after its ``python`` block, or a block ``text varies`` if it depends on the machine.
Programs measure: run them while nothing else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PROGRAMS, FIGURES = DOCS / "learn" / "programs", DOCS / "figures"
RESULT = re.compile(
    r"^(<!-- result: ([\w.]+) -->\n```text\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL
)
EXAMPLE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:\n(?P<opening>```text(?: varies)?)\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def printed(code: str, name: str, namespace: dict[str, Any]) -> str:
    """Run an example, and return what it prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, name, "exec"), namespace)
    return "\n".join(line.rstrip() for line in output.getvalue().rstrip().splitlines())


def is_same(first: str, second: str) -> bool:
    """Return whether two outputs differ at most in the last digits of some numbers."""
    if NUMBER.sub("#", first).split() != NUMBER.sub("#", second).split():
        return False
    pairs = zip(NUMBER.findall(first), NUMBER.findall(second), strict=True)
    return all(_is_near(*pair) for pair in pairs)


def _is_near(first: str, second: str) -> bool:
    mantissa, _, exponent = first.partition("e")
    last_digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    if "." not in mantissa:
        return float(first) == float(second)
    tolerance = 1.01 * last_digit
    # The last digits of a float32 that is printed in full, at most 9, differ between targets.
    if len(mantissa.lstrip("-0.").replace(".", "")) <= 9:
        tolerance = max(tolerance, 1e-6 * abs(float(first)))
    return abs(float(first) - float(second)) <= tolerance


def examples(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the code of each example of a page, and the output that it must print.

    The output is empty if the page shows none, and None if it varies with the machine.
    """
    for match in EXAMPLE.finditer(text):
        varies = match["opening"] == "```text varies"
        yield match["code"], None if varies else (match["output"] or "").rstrip()


def write_examples(path: Path) -> None:
    """Replace the outputs of a page that differ from what its examples print."""
    namespace: dict[str, Any] = {}

    def replaced(match: re.Match[str]) -> str:
        output = printed(match["code"], path.name, namespace)
        varies = match["opening"] == "```text varies"  # and may be shown only on another machine
        if is_same(output, (match["output"] or "").rstrip()) or (varies and not output):
            return match[0]
        block = f"```python\n{match['code']}```\n"
        opening = match["opening"] or "```text"
        return block + (f"\n{opening}\n{output}\n```\n" if output else "")

    text = path.read_text(encoding="utf-8")
    changed = EXAMPLE.sub(replaced, text)
    if changed != text:
        path.write_text(changed, encoding="utf-8")
        print(path.relative_to(DOCS.parent))


def write_programs(names: list[str]) -> None:
    """Run programs of the tutorial, and write their outputs and the drawing of all steps."""
    sys.path[:0] = [str(PROGRAMS), str(FIGURES)]
    import all_steps
    import learn_all_steps
    import measure
    import style

    for path in sorted((DOCS / "learn").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for match in RESULT.finditer(text):
            if not names or match[2] in names:
                output = measure.run(match[2]).rstrip()
                text = text.replace(match[0], f"{match[1]}{output}\n{match[4]}")
                print(match[2])
        path.write_text(text, encoding="utf-8")
    if not names or "all_steps.py" in names:
        picture = style.svg(learn_all_steps.draw(all_steps.rows()))
        (FIGURES / "learn_all_steps.svg").write_text(f"{picture.strip()}\n", encoding="utf-8")


def main() -> None:
    """Write the results of examples or of programs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", nargs="*", metavar="NAME", help="programs of the tutorial")
    options = parser.parse_args()
    if options.programs is not None:
        write_programs(options.programs)
        return
    for path in sorted(DOCS.rglob("*.md")):
        if path.parent.name != "learn" and "\n```text\n" in path.read_text(encoding="utf-8"):
            write_examples(path)


if __name__ == "__main__":
    main()
