"""The command ``python -m benchmarks.table``: time all cases, or some of them."""

from __future__ import annotations

import sys
from functools import partial

from benchmarks.table.cases import select
from benchmarks.table.measuring import TableRequest, measure_table
from benchmarks.table.report import list_of_cases, table_document_of, table_report_of
from regard._bench import plot
from regard._cli.arguments import Parser
from regard._cli.bench import add_conditions, conditions_of, measure_and_show

DESCRIPTION = """\
Time regard, NumPy, PyTorch and ONNX Runtime on a table of cases, and compare regard
with itself. A full run takes about six minutes on two cores, or about one with --quick.
python -m regard bench times your own problems.
"""


def parser_of() -> Parser:
    """Return the parser of the command."""
    parser = Parser(prog="python -m benchmarks.table", description=DESCRIPTION)
    parser.set_defaults(parser=parser)
    what = parser.add_argument_group("cases")
    what.add_argument("--list", action="store_true", help="list the cases without timing them")
    what.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="NAME",
        help="only the cases with this in their name; may be repeated",
    )
    what.add_argument("--goals", action="store_true", help="show the goals, and which are met")
    add_conditions(parser)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit status: 1 if a regard result was wrong."""
    parser = parser_of()
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(list_of_cases()))
        return 0
    threads, rounds = conditions_of(options)
    try:
        cases, comparisons = select(options.case, quick=options.quick)
    except ValueError as error:
        parser.error(f"argument --case: {error}")
    comparisons = [row for row in comparisons if max(row.threads or (1,)) <= threads]
    if not cases and not comparisons:
        parser.error(f"argument --case: all that it selects needs more threads than {threads}")
    return measure_and_show(
        options,
        TableRequest(cases, threads, rounds, comparisons=comparisons),
        measure_table,
        report=partial(table_report_of, with_goals=options.goals),
        draw=lambda figure, table: plot.draw_bars(figure, table.results),
        document=partial(table_document_of, with_goals=options.goals),
        steps=len(comparisons),
    )


if __name__ == "__main__":
    sys.exit(main())
