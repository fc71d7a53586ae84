"""Run the emulated kernels under AddressSanitizer, UndefinedBehaviorSanitizer and
ThreadSanitizer."""

import pytest

import cuda_emulation
from cases import SIZES
from cuda_emulation import Runner, flattened, gpu_problem
from element_types import each_in_one_type
from option_cases import MIXES
from test_kernels import DIMS, arrays, check

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def sanitized():
    runner = Runner(cuda_emulation.build("address"))
    yield runner
    runner.close()


@each_in_one_type([*MIXES, *SIZES], "single_or_half")
def test_tables_with_sanitized_memory(case, single_or_half, sanitized):
    query, key, value, options = flattened(gpu_problem(case, single_or_half))
    check(sanitized, query, key, value, **options)


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}], ids=["plain", "options"])
@pytest.mark.parametrize("dims", DIMS[1::2], ids=str)
def test_every_kernel_with_sanitized_memory(dims, options, single_or_half, sanitized, random):
    query, key, value = arrays(random, single_or_half, 1, (2, 1), (9, 150), dims)
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
