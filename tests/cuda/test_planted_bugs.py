"""Test that the emulation finds bugs. Each of these bugs, planted in the kernels' source, is found
in the way that the table states, and nothing is found without them."""

import re
from typing import NamedTuple

import numpy as np
import pytest

import cuda_emulation
from error_limits import assert_matches

RACE = "data race"
OVERFLOW = "heap-buffer-overflow"
WRONG = "wrong result"
CONFLICTS = "bank conflicts"


class Bug(NamedTuple):
    name: str
    file: str
    before: str
    after: str
    found: str  # as this constant, or by a message that matches
    sanitizer: str = "quick"
    element: str = "bfloat16"


BUGS = [
    Bug(
        "no barrier before a panel is read",
        "panel_stream.hpp",
        "    block_barrier();\n",
        "",
        RACE,
        "thread",
    ),
    Bug(
        "no wait for copies",
        "panel_stream.hpp",
        "wait_for_copies<kStages - 2>();",
        "",
        "read before data has arrived: ldmatrix",
    ),
    Bug(
        "no wait where no tile is seen",
        "forward.hpp",
        "wait_for_copies<0>();",
        "",
        "a thread ends while copies are pending",
    ),
    Bug(
        "keys are loaded beyond the last one",
        "panels.hpp",
        "first_row + step * kRowsAtOnce < end - first_key && bytes > 0",
        "bytes > 0",
        OVERFLOW,
        "address",
    ),
    Bug(
        "fragments of keys are swapped",
        "tensor_core_tile.hpp",
        "2 * j, query.word, key.word[0], key.word[1]",
        "2 * j, query.word, key.word[1], key.word[0]",
        WRONG,
    ),
    Bug(
        "pieces of rows lie one below the other",
        "panels.hpp",
        "(piece ^ (row % kPieces))",
        "piece",
        CONFLICTS,
    ),
    Bug(
        "a barrier for some threads only",
        "forward.hpp",
        "    wait_for_copies<0>();\n",
        "    wait_for_copies<0>();\n    if (threadIdx.x < 32) block_barrier();\n",
        "deadlock",
    ),
    Bug(
        "a shuffle that some lanes skip",
        "softmax_state.hpp",
        "top = fmaxf(top, shuffle_xor(top, lanes));",
        "if (top > 0) top = fmaxf(top, shuffle_xor(top, lanes));",
        "meet in different instructions|deadlock",
    ),
    Bug(
        "too little shared memory",
        "forward.hpp",
        "PanelStream<Tile, kOptions>::kRingBytes + Tile::kScratchBytes +",
        "PanelStream<Tile, kOptions>::kRingBytes - kPanelBytes + Tile::kScratchBytes +",
        "shared memory out of bounds",
    ),
    Bug(
        "rows that are not aligned are copied 16 bytes at a time",
        "attention.cu",
        "arguments.key_is_aligned = rows_begin_at(problem.key, problem.element, 16);",
        "arguments.key_is_aligned = true;",
        "misaligned global memory: cp.async",
    ),
    Bug(
        "a hidden value is multiplied by 0",
        "special_values.hpp",
        "  return any_thread(found);",
        "  return any_thread(found && false);",
        WRONG,
    ),
]


def problems(element):
    """Yield a few problems that reach every part of the kernels: query, key, value, options.

    No query sees the last key.
    """
    random = np.random.default_rng(0)
    for (q_len, kv_len), (dim, value_dim) in (
        ((40, 200), (70, 40)),
        ((1, 600), (17, 40)),
        ((40, 70), (64, 64)),
    ):
        shapes = ((1, 2, q_len, dim), (1, 1, kv_len, dim), (1, 1, kv_len, value_dim))
        query, key, value = (
            random.standard_normal(s).astype(cuda_emulation.dtype_of(element)) for s in shapes
        )
        mask = random.random((1, 1, q_len, kv_len)) < 0.7
        mask[..., : q_len // 2, :] = mask[..., -1:] = False
        yield query, key, value, {"is_causal": True, "query_offset": kv_len - q_len - 3}
        yield query, key, value, {"mask": mask, "sinks": np.ones(2)}
        yield query, key, value, {"mask": np.zeros_like(mask)}


def symptom(runner, element):
    """Return what is wrong with a program's results, or None if they are right."""
    found = None
    for query, key, value, options in problems(element):
        spoilt = value.copy()
        spoilt[..., -1, 3] = np.inf
        got = runner.solve(query, key, spoilt, **options)
        try:
            assert_matches(
                cuda_emulation.expected(query, key, value, **options),
                output=got.output,
                lse=got.lse,
            )
        except AssertionError:
            return WRONG
        if got.conflicts:
            found = CONFLICTS
    return found


def run(folder, sanitizer, element, changes):
    sources = cuda_emulation.patched(folder, element, changes)
    runner = cuda_emulation.Runner(cuda_emulation.build(sanitizer, sources=sources))
    try:
        return symptom(runner, element)
    except cuda_emulation.EmulationError as error:
        return str(error)
    finally:
        runner.close()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("sanitizer", ["quick", "address", "thread"])
@pytest.mark.parametrize("element", ["bfloat16", "float32"])
def test_nothing_is_found_without_bugs(sanitizer, element, tmp_path):
    assert run(tmp_path / "cuda", sanitizer, element, ()) is None


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_is_found(bug, tmp_path):
    change = (bug.file, bug.before, bug.after)
    found = run(tmp_path / "cuda", bug.sanitizer, bug.element, (change,))
    assert found is not None
    assert re.search(bug.found, found), found
