"""Test every kernel, and the CPU's tables of cases, emulated under AddressSanitizer,
UndefinedBehaviorSanitizer and ThreadSanitizer."""

import pytest

import cuda_emulation
from cases import AXES, SIZES
from cuda_emulation import Runner, flattened, gpu_problem
from element_types import each_in_one_type
from option_cases import LONG, MIXES
from test_kernels import arrays, check

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def sanitized():
    runner = Runner(cuda_emulation.build("address"))
    yield runner
    runner.close()


@each_in_one_type([*MIXES, *SIZES, *AXES, *LONG], "single_or_half")
def test_tables(case, single_or_half, sanitized):
    query, key, value, options = flattened(gpu_problem(case, single_or_half))
    check(sanitized, query, key, value, **options)


# Every kernel, at the edges of its panels of 64 elements in 16 bits, or 32 in float32.
DIMS = [(64, 64), (72, 128), (65, 129), (128, 64), (8, 256), (192, 128), (256, 256), (200, 33)]


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}], ids=["plain", "options"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_every_kernel(dims, options, single_or_half, sanitized, random):
    query, key, value = arrays(random, single_or_half, 1, (2, 1), (40, 150), dims)
    check(sanitized, query, key, value, is_causal=True, query_offset=100, **options)


@pytest.mark.parametrize("element", ["bfloat16", "float32"])
def test_threads_do_not_race(element, tmp_path, random):
    """Only barriers order threads. Kernels of one width are tested, since the others have the same
    source."""
    sources = cuda_emulation.patched(tmp_path / "cuda", element)
    runner = Runner(cuda_emulation.build("thread", sources=sources))
    dtype = cuda_emulation.dtype_of(element)
    for number, (q_len, kv_len) in enumerate([(70, 200), (3, 1100), (1, 64), (64, 65)]):
        query, key, value = arrays(random, dtype, 1, (4, 2), (q_len, kv_len), (100, 50))
        mask = random.random((1, 1, q_len, kv_len)) < 0.7
        for options in ({"is_causal": True, "query_offset": kv_len - q_len}, {"mask": mask}):
            check(runner, query, key, value, seed=number, **options)
            check(runner, query, key, value, misaligned=dtype.itemsize, **options)
    runner.close()
