"""Results of imaginary runs, with the numbers that a test needs."""

from benchmarks.table.cases import CASES, COMPARISONS
from benchmarks.table.measuring import ComparisonResult, TableResults

from regard._bench import machine
from regard._bench.results import CaseResult, Results, Samples

TABLE = {row.name: row for row in (*CASES, *COMPARISONS)}


def run_of(cases=(), **fields):
    usual = {
        "date": "2030-01-01T00:00:00+00:00",
        "machine": machine.describe()
        | {"target": "x86_v4", "targets": ["x86_v4", "x86_v3", "baseline"]},
        "threads": 2,
        "rounds": 2,
        "versions": {"regard": "1", "NumPy": "2", "PyTorch": "3", "ONNX Runtime": "4"},
        "missing": [],
        "broken": {},
        "peak": [400e9, 390e9],
        "bandwidth": [20e9, 19e9],
        "streamed_bytes": 1 << 30,
        "seconds": 1.0,
    }
    return Results(**usual | fields, cases=list(cases))


def table_run_of(cases=(), comparisons=(), **fields):
    return TableResults(run_of(cases, **fields), list(comparisons), {"NumPy": "openblas"})


def case_result(case, left_out=None, failed=None, **seconds):
    """Return the time that each engine took for a case, given as a case or by its name in the
    table."""
    names = {"ORT": "ONNX Runtime"}
    samples = {names.get(key, key): Samples([[value]]) for key, value in seconds.items()}
    case = TABLE.get(case, case)
    return CaseResult(case, samples, dict.fromkeys(samples, 1e-7), left_out or {}, failed or {})


def comparison_result(name, seconds=None, reference=None, failed=""):
    samples = [None if one is None else Samples([[one]]) for one in (seconds, reference)]
    return ComparisonResult(TABLE[name], *samples, failed)
