"""Test the check of the kernels' hot loops, cpp/tests/loops: how it reads assembly, what it
accepts, and that it finds changes of the source that cost registers."""

import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
FAMILY = "rows"  # a unit of families that are compiled together
# The target with the fewest registers: a tile of 4 x 3 vectors fills all 16.
TARGET = "x86_v3"
NEEDED = ("cmake", "ctest", "ninja", "objdump")


class Change(NamedTuple):
    name: str
    file: str
    edits: dict[str, str]
    found: str  # a message that matches


ROWS = """#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> left = broadcast(rows[r][k]);"""
PRODUCT = """fma(left, right[v], acc[r][v]);
    }
  }
"""
CHANGES = [
    Change(
        "more sums than registers",
        "kernels/micro_kernel.hpp",
        {
            "  const T* rows[kRows];\n": "  const T* rows[kRows];\n  Vec<T> more[2] = {};\n",
            PRODUCT: """fma(left, right[v], acc[r][v]);
    }
    for (int i = 0; i < 2; ++i) more[i] = more[i] + right[i * (kVectors - 1)];
  }
  acc[0][0] = acc[0][0] + (more[0] - more[1]);
""",
        },
        r"loops of 48 fma: \d+ spills instead of \d+",
    ),
    Change(
        "the rows of a tile are a loop",
        "kernels/micro_kernel.hpp",
        {ROWS: ROWS.replace("16", "1", 1)},
        "loops of 48 fma: gone",
    ),
    Change(
        "the exponential is a call",
        "simd/exp.hpp",
        {"REGARD_INLINE Vec<T> polynomial(": "REGARD_NOINLINE Vec<T> polynomial("},
        r"what is around: \d+ spills instead of \d+",
    ),
]


# A loop on each machine: products, a spill, a pointer on the stack, and a loop around it.
LISTINGS = {
    "x86": """
        push %rbp | mov %rsp,%rbp
        outer: vmovups (%rax),%zmm0
        inner: vfmadd231ps 0x40(%rdi,%rcx,4){1to16},%zmm1,%zmm2
        vfmadd231ps -0x80(%rbp),%zmm1,%zmm3 | vmovaps %zmm3,-0x80(%rbp) # a spill
        mov 0x8(%rsp),%rdx | vpcmpeqd %zmm5,%zmm6,%k1 | vmovups %zmm2,(%rdx){%k1}
        lea 0x10(%rsp),%r8 | prefetcht0 (%rdi) | add $0x4,%rcx | cmp %rcx,%r9 | jne inner
        vaddps %zmm2,%zmm3,%zmm4 | jg outer
        pop %rbp | ret""",
    "aarch64": """
        stp x29, x30, [sp, #-64]! | mov x29, sp
        outer: ldr q0, [x0]
        inner: ld1r {v1.4s}, [x2] | fmla v2.4s, v1.4s, v0.s[0]
        ldr q3, [sp, #32] | fmla v3.4s, v1.4s, v4.4s | str q3, [x29, #32]
        ldr x3, [sp, #16] | cmeq v5.4s, v6.4s, v7.4s | str q2, [x3], #16
        prfm pldl1keep, [x2] | add x2, x2, #4 | cmp x2, x4 | b.ne inner
        fadd v2.4s, v3.4s, v4.4s | cbnz x5, outer
        ldp x29, x30, [sp], #64 | ret""",
}


@pytest.fixture
def loops(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "cpp/tests/loops")
    return importlib.import_module("check_loops")


@pytest.fixture
def disassembly(loops):
    return importlib.import_module("disassembly")


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)
def test_assembly_is_read(disassembly, listing):
    lines = re.split(r"\s*[|\n]\s*", listing.strip())
    places = {line.partition(": ")[0]: f"{i:x} <f+{i:#x}>" for i, line in enumerate(lines)}
    text = "0000000000000000 <f>:\n"
    for i, line in enumerate(lines):
        instruction = line.rpartition(": ")[2]
        text += (
            f"   {i:x}:\t{re.sub('(inner|outer)$', lambda name: places[name[0]], instruction)}\n"
        )
    (function,) = disassembly.read(text)
    inner, outer, rest = disassembly.parts_of(function)
    assert (inner.is_innermost, outer.is_innermost, rest.is_innermost) == (True, False, False)
    assert inner.contents == disassembly.Contents(
        fmas=2, comparisons=1, loads=1, stores=1, spills=2, scalars=1
    )
    assert outer.contents == disassembly.Contents(loads=1)
    assert rest.contents.products == rest.contents.spills == 0


# Rows of products, loads, stores, spills and scalars: the actual rows, the rows in the table, the
# fault.
RULES = {
    "as in the table": ([(96, 44, 0, 0, 1)], [(96, 44, 0, 0, 1)], None),
    "less, and fewer": ([(96, 40, 0, 2, 0)], [(96, 44, 1, 3, 1), (96, 44, 1, 0, 1)], None),
    "more, as good": ([(96, 44, 0, 0, 0)] * 3, [(96, 44, 0, 0, 0)] * 2, None),
    "more, worse": (
        [(96, 44, 0, 0, 0), (96, 44, 0, 1, 0)],
        [(96, 44, 0, 0, 0)],
        "1 spills instead of 0",
    ),
    "as bad as another": (
        [(96, 44, 0, 9, 0), (96, 44, 0, 9, 0)],
        [(96, 44, 0, 9, 0), (96, 44, 0, 2, 0)],
        "9 spills instead of 2, in 1 of 2",
    ),
    "pointers": ([(96, 44, 0, 0, 12)], [(96, 44, 0, 0, 1)], None),
    "many pointers": ([(96, 44, 0, 0, 13)], [(96, 44, 0, 0, 1)], "13 scalars instead of 12"),
    "loads": ([(96, 45, 0, 0, 0)], [(96, 44, 0, 0, 0)], "45 loads instead of 44"),
    "stores": ([(96, 44, 96, 0, 0)], [(96, 44, 0, 0, 0)], "96 stores instead of 0"),
    "gone": ([], [(96, 44, 0, 0, 0)], "loops of 96 fma: gone"),
    "new": ([(96, 44, 0, 0, 0)], [], "loops of 96 fma: not in the table"),
    "around": ([(900, 0, 0, 9, 0)] * 2, [(900, 0, 0, 9, 0)], None),
    "around, worse": (
        [(900, 0, 0, 9, 0), (900, 0, 0, 10, 0)],
        [(900, 0, 0, 9, 0)],
        "19 spills instead of 9",
    ),
    "small": ([(3, 4, 3, 0, 0)], [], "3 stores instead of 0"),
}


@pytest.mark.parametrize(("found", "known", "fault"), RULES.values(), ids=RULES)
def test_what_is_accepted(loops, found, known, fault, tmp_path):
    def rows(numbers):
        kinds = {3: "small", 96: "fma", 900: "around"}
        return {
            loops.Key("x86_v4", "summary", kinds[row[0]], row[0] if row[0] == 96 else 0): [
                loops.Row(*row, "here") for row in numbers
            ]
            for row in numbers
        }

    table = tmp_path / "table.txt"
    loops.write(table, rows(known))
    faults = loops.compare(rows(found), loops.read(table))
    assert len(faults) == (fault is not None)
    assert fault is None or fault in faults[0]


def test_a_compiler_without_a_table_makes_the_products_of_all(loops):
    everywhere = loops.in_all_tables("x86_v4")
    assert loops.Key("x86_v4", "tiles", "fma", 96) in everywhere
    for table in loops.TABLES.glob("*.txt"):
        assert everywhere <= loops.read(table).keys()


@pytest.fixture(params=["g++", "clang++"])
def compiler(request):
    missing = [name for name in (*NEEDED, request.param) if not shutil.which(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    return shutil.which(request.param)


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check(compiler, folder):
    """Compile one family of the source in a folder, and run CMake's test of it."""
    build = folder / "build"
    configured = run(
        *("cmake", "-S", folder, "-B", build, "-G", "Ninja", "-DREGARD_CPP_TESTS=ON"),
        *(f"-DREGARD_TARGETS={TARGET}", f"-DCMAKE_CXX_COMPILER={compiler}"),
    )
    if f"names {TARGET}, a target of" in configured.stderr:
        pytest.skip(f"{TARGET} is not compiled here")
    assert configured.returncode == 0, configured.stderr
    tests = json.loads(run("ctest", "--test-dir", build, "--show-only=json-v1").stdout)["tests"]
    commands = {test["name"]: test.get("command") for test in tests}
    command = commands[f"loops_{TARGET}"]
    table = ROOT / "cpp/tests/loops" / f"{command[command.index('--compiler') + 1]}.txt"
    if not table.exists():
        pytest.skip(f"no table {table.name}")
    (wanted,) = [part for part in command if part.endswith(f"/unity_{FAMILY}_cxx.cxx.o")]
    built = run("ninja", "-C", build, str(Path(wanted).relative_to(build)))
    assert built.returncode == 0, built.stdout
    return run(*[part for part in command if not part.endswith(".o") or part == wanted])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "change", [None, *CHANGES], ids=lambda change: change.name if change else "unchanged"
)
def test_planted(compiler, change, tmp_path):
    shutil.copytree(ROOT / "cpp", tmp_path / "cpp", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    if change:
        source = tmp_path / "cpp" / change.file
        text = source.read_text()
        for before, after in change.edits.items():
            assert text.count(before) == 1, f"the source has changed: {before}"
            text = text.replace(before, after)
        source.write_text(text)
    checked = check(compiler, tmp_path)
    if change is None:
        assert checked.returncode == 0, checked.stderr
    else:
        assert checked.returncode == 1, checked.stdout
        assert re.search(f"{TARGET} {FAMILY}, {change.found}", checked.stderr), checked.stderr
