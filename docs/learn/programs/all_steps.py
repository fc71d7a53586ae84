"""What every step reached on this machine, measured where it is unknown."""

import json
from pathlib import Path

import measure

# For each row: what its record is called, the program that writes it, and the name shown.
ROWS = (
    ("stages", "stages.py", "stages in NumPy"),
    ("stable", "stable.py", "stable softmax"),
    ("tiles", "tiles.py", "tiles in NumPy"),
    ("loops", "loops.cpp", "plain C++ loops"),
    ("vectors", "vectors.cpp", "vectors of queries"),
    ("registers", "registers.cpp", "tiles in registers"),
    ("powers", "powers.cpp", "2^x in vectors"),
    ("lanes", "lanes.cpp", "online softmax in lanes"),
    ("lazy", "lazy.cpp", "a reference that rarely moves"),
    ("threads", "threads.cpp", "threads"),
    ("blocks", "blocks.cpp", "keys outside, strips inside"),
    ("shipped, full, one core", "shipped.py", "regard, one core"),
    ("shipped, full, all cores", "shipped.py", "regard, all cores"),
    ("intervals", "intervals.py", "causal, tiles in NumPy"),
    ("causal", "causal.cpp", "causal, C++"),
    ("shipped, causal, one core", "shipped.py", "causal, regard, one core"),
    ("shipped, causal, all cores", "shipped.py", "causal, regard, all cores"),
)


def recorded(row: str, program: str) -> dict | None:
    """Return a row's record, or None where this machine and this program have none."""
    path = Path(measure.RECORDS) / f"{row}.json"
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if content["holds_for"] == measure.machine_and_source(program) else None


def rows() -> list[tuple[str, dict | None]]:
    """Return the name and the record of every row; None where it needs a missing compiler."""
    found = []
    for row, program, name in ROWS:
        if recorded(row, program) is None:
            measure.run(program)
        found.append((name, recorded(row, program)))
    return found


if __name__ == "__main__":
    first = None
    print(f"{'step':31}{'cores':>5}{'of their peak':>15}{'speed':>8}")
    for name, record in rows():
        if record is None:
            print(f"{name:31}  not measured: there is no compiler")
            continue
        first = first or record["speed"]
        speed = f"{record['speed'] / first:.1f}x"
        print(f"{name:31}{record['cores']:>5}{record['share']:>15.1%}{speed:>8}")
