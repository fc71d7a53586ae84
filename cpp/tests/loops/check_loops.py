"""Run as a test: the hot loops of one target must match the compiler's table.

    python check_loops.py --compiler GNU-12.2.0 --target x86_v4 [--update] OBJECT...

A hot loop is an innermost loop with at least 8 products: vector FMAs, or integer dot products. It
is identified by its unit (families that are compiled together) and by its computation, whatever
function it was inlined into: the 96 FMAs of `multiply_rows` on x86_v4 are 4 steps of a
tile of 8 x 3 vectors. A row of a table such as GNU-12.2.0.txt is

    target unit products kind copies loads stores spills scalars

    kind     fma; select: FMAs and comparisons, as in `multiply_columns` with hidden keys; dot
    copies   the number of loops with these numbers
    loads    of vectors, numbers to broadcast and operands in memory, except from the stack
    stores   of vectors, except to the stack: a product that stores keeps its sums in memory
    spills   of vectors: stores to the stack, and loads from it
    scalars  other accesses to the stack, such as a pointer's; the most in any of the copies

Two more rows of a unit add up the rest: `small`, innermost loops with fewer products, and
`around`, the code with products around and between loops, such as the softmax of a tile.

The test fails if a loop is missing, or is not in the table. It fails for more spills than the
table's copies have, copy by copy, the worst first; for more loads or stores than the worst copy
has; and for more scalars than the worst copy has and than one in 8 products. In `small`, it fails
for more stores or spills, and in `around` for 1% more spills, if there are also more per product.
Lower numbers and fewer copies pass. --update writes the current numbers to the table, to be
reviewed with the change.

A compiler without a table must generate the products that all tables contain, which come from the
source. Its spills are not checked, since they depend on the compiler.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from disassembly import Part, functions_of, parts_of

TABLES = Path(__file__).parent
HOT = 8  # products
LARGE = 16  # products of a loop that no compiler may leave out
HEADER = "# Written by check_loops.py --update, and explained there.\n# "


class Key(NamedTuple):
    """The identity of a loop. Loops of kind `small` and `around` are added up, with 0 products."""

    target: str
    unit: str
    kind: str
    products: int

    def __str__(self) -> str:
        loops = f"loops of {self.products} {self.kind}" if self.products else f"what is {self.kind}"
        return f"{self.target} {self.unit}, {loops}"


class Row(NamedTuple):
    """The numbers of one loop."""

    products: int
    loads: int
    stores: int
    spills: int
    scalars: int
    place: str = ""


COLUMNS = ("target", "unit", "products", "kind", "copies", "loads", "stores", "spills", "scalars")
Loops = dict[Key, list[Row]]


def place_of(part: Part) -> str:
    """Return the location of a part, without the function's namespaces, result and arguments."""
    name = part.function.replace("(anonymous namespace)::", "").replace("regard::", "")
    begin, depth = 0, 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if depth == 0 and letter == " ":
            begin = i + 1
        elif depth == 0 and letter == "(":
            name = name[begin:i]
            break
    return f"{name} at {part.address:#x}"


def kind_of(part: Part) -> str:
    """Name the kind of a part, as in the table."""
    if not part.is_innermost:
        return "around"
    if part.contents.products < HOT:
        return "small"
    if part.contents.dots:
        return "dot"
    return "select" if part.contents.comparisons else "fma"


def loops_of(objdump: str, target: str, objects: list[Path]) -> Loops:
    """Find all parts with products in the objects of a target."""
    loops = defaultdict(list)
    for path in objects:
        for function in functions_of(objdump, path):
            for part in parts_of(function):
                c = part.contents
                if c.products >= (1 if part.is_innermost else HOT):
                    kind = kind_of(part)
                    products = 0 if kind in ("small", "around") else c.products
                    row = Row(c.products, c.loads, c.stores, c.spills, c.scalars, place_of(part))
                    loops[Key(target, unit_of(path), kind, products)].append(row)
    return dict(loops)


def unit_of(path: Path) -> str:
    """Name an object's unit, such as "tiles" for tiles.cpp.o."""
    return path.name.partition(".")[0]


def sum_of(rows: list[Row]) -> Row:
    """Add up rows. The place lists the rows with the most spills."""
    worst = sorted(rows, key=lambda row: -row.spills)[:3]
    columns = zip(*(row[:-1] for row in rows), strict=True)
    return Row(*map(sum, columns), "most in " + ", ".join(row.place for row in worst))


def read(table: Path) -> Loops:
    """Read a table, with as many equal rows as a row has copies."""
    loops = defaultdict(list)
    for line in table.read_text().splitlines():
        if line and not line.startswith("#"):
            target, unit, products, kind, copies, *numbers = line.split()
            row = Row(int(products), *(0 if number == "-" else int(number) for number in numbers))
            if copies == "-":
                loops[Key(target, unit, kind, 0)].append(row)
            else:
                loops[Key(target, unit, kind, row.products)] += [row] * int(copies)
    return dict(loops)


def lines_of(key: Key, rows: list[Row]) -> list[tuple]:
    """Return the lines of a table for loops that share a key."""
    if not key.products:
        total = sum_of(rows)
        stores = total.stores if key.kind == "small" else "-"
        return [(*key[:2], total.products, key.kind, "-", "-", stores, total.spills, "-")]
    scalars: dict[tuple, int] = {}
    for row in rows:
        scalars[row[1:4]] = max(row.scalars, scalars.get(row[1:4], 0))
    copies = Counter(row[1:4] for row in rows)
    return [
        (*key[:2], key.products, key.kind, copies[numbers], *numbers, scalars[numbers])
        for numbers in sorted(copies, reverse=True)
    ]


def write(table: Path, loops: Loops) -> None:
    """Write a table."""
    order = sorted(loops, key=lambda key: (key.target, key.unit, -key.products, key.kind))
    lines = [COLUMNS, *(line for key in order for line in lines_of(key, loops[key]))]
    texts = [[str(field) for field in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    left = {COLUMNS.index(name) for name in ("target", "unit", "kind")}
    rows = [
        " ".join(
            field.ljust(widths[i]) if i in left else field.rjust(widths[i])
            for i, field in enumerate(text)
        )
        for text in texts
    ]
    table.write_text(HEADER + "\n".join(rows) + "\n")


def worse_of(key: Key, found: list[Row], known: list[Row]) -> list[str]:
    """Report the numbers that exceed the table's."""
    if key.products:
        limits = sorted((row.spills for row in known), reverse=True)
        limits += [limits[-1]] * len(found)
        spilling = sorted(found, key=lambda row: -row.spills)
        pairs = [(row, "spills", limit) for row, limit in zip(spilling, limits, strict=False)]
        for column in ("loads", "stores", "scalars"):
            limit = max(getattr(row, column) for row in known)
            if column == "scalars":
                limit = max(limit, key.products // 8)
            pairs += [(row, column, limit) for row in found]
    else:
        total, limit = sum_of(found), sum_of(known)
        pairs = [(total, "spills", limit.spills)]
        if key.kind == "small":
            pairs.append((total, "stores", limit.stores))
        elif (
            total.spills * limit.products <= limit.spills * total.products
            or 100 * total.spills <= 101 * limit.spills
        ):
            pairs = []
    worse = defaultdict(list)
    for row, column, limit in pairs:
        if getattr(row, column) > limit:
            worse[column].append((getattr(row, column), limit, row.place))
    return [
        f"{key}: {max(rows)[0]} {column} instead of {max(rows)[1]}, "
        f"in {len(rows)} of {len(found)}: {max(rows)[2]}"
        for column, rows in worse.items()
    ]


def compare(found: Loops, known: Loops) -> list[str]:
    """Report loops that are missing, new or worse."""
    faults = missing(found, known)
    for key, rows in found.items():
        if key in known or not key.products:
            faults += worse_of(key, rows, known.get(key, [Row(0, 0, 0, 0, 0)]))
        else:
            faults.append(f"{key}: not in the table, {len(rows)} of them: {max(rows).place}")
    return faults


def missing(found: Loops, expected: Iterable[Key]) -> list[str]:
    """Report loops that are missing."""
    return [f"{key}: gone" for key in expected if key.products and key not in found]


def in_all_tables(target: str) -> set[Key]:
    """Return the products of a target that every compiler with a table makes.

    Loops that store, such as a softmax, are left out: compilers unroll them as they like.
    """
    tables = []
    for table in TABLES.glob("*.txt"):
        loops = {key: rows for key, rows in read(table).items() if key.target == target}
        if loops:
            tables.append(
                {
                    key
                    for key, rows in loops.items()
                    if key.products >= LARGE and not any(row.stores for row in rows)
                }
            )
    return set.intersection(*tables) if tables else set()


def main() -> None:
    """Check, or update the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--compiler", required=True, help="its name in CMake, and its version")
    parser.add_argument("--target", required=True)
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument("--update", action="store_true", help="write the compiler's table")
    parser.add_argument("objects", nargs="+", type=Path, metavar="OBJECT")
    arguments = parser.parse_args()

    units = {unit_of(path) for path in arguments.objects}
    found = loops_of(arguments.objdump, arguments.target, arguments.objects)
    if not any(key.products for key in found):
        sys.exit(f"{arguments.objdump} shows no hot loop in {', '.join(sorted(units))}")

    def is_here(key: Key) -> bool:
        return key.target == arguments.target and key.unit in units

    table = TABLES / f"{arguments.compiler}.txt"
    known = read(table) if table.exists() else {}
    if arguments.update:
        write(table, {key: rows for key, rows in known.items() if not is_here(key)} | found)
        return
    known = {key: rows for key, rows in known.items() if is_here(key)}
    if known:
        faults = compare(found, known)
    else:
        print(f"{table.name} has no rows of {arguments.target}: spills are not checked")
        faults = missing(found, filter(is_here, in_all_tables(arguments.target)))
    if faults:
        sys.exit("\n".join(sorted(faults)))
    print(f"{sum(len(rows) for key, rows in found.items() if key.products)} hot loops")


if __name__ == "__main__":
    main()
