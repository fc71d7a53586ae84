"""Test the size of the L2 cache: as Linux reports it, as a variable replaces it, and that no bits
depend on it."""

import sys

import pytest

import regard
from call_families import with_families

testing = regard._core.testing

SIZE = "from regard import _core; print(_core.l2_cache_bytes())"


def write_cache(root, index, **facts):
    cache = root / f"sys/devices/system/cpu/cpu0/cache/index{index}"
    cache.mkdir(parents=True)
    for name, text in facts.items():
        (cache / name).write_text(f"{text}\n")


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="reads Linux files")
@pytest.mark.parametrize(
    ("size", "wanted"), [("512K", 512 << 10), ("2M", 2 << 20), ("262144", 262144), ("", 0)]
)
def test_what_linux_says(size, wanted, tmp_path):
    write_cache(tmp_path, 0, level=1, type="Data", size="32K")
    write_cache(tmp_path, 1, level=1, type="Instruction", size="32K")
    write_cache(tmp_path, 2, level=2, type="Unified", size=size)
    write_cache(tmp_path, 3, level=3, type="Unified", size="32M")
    assert testing.l2_cache_of_linux(str(tmp_path)) == wanted


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="reads Linux files")
def test_a_system_that_says_nothing(tmp_path):
    assert testing.l2_cache_of_linux(str(tmp_path)) == 0


def test_limits(output_of):
    assert 128 << 10 <= int(output_of(SIZE)) <= 2 << 20
    assert int(output_of(SIZE, REGARD_L2_CACHE="4096")) == 4096


@pytest.mark.parametrize("text", ["512K", "0", "-1", " ", "9" * 26])
def test_no_number_of_bytes(text, run_python):
    done = run_python(SIZE, REGARD_L2_CACHE=text)
    assert f"REGARD_L2_CACHE must be a positive number of bytes, got '{text}'" in done.stderr


def test_no_bits_depend_on_it(output_of):
    """With several pieces of keys or one, the gradients of queries, and of masks that keys or
    queries share, are summed in the same order."""
    script = """
    import hashlib
    calls = call_families(1000)
    results = [a for f in calls.values() for a in f(2)]
    random = np.random.default_rng(0)
    query, key = random.normal(size=(2, 4, 130, 16)), random.normal(size=(2, 4, 2000, 16))
    for shape in ((4, 1, 1), (130, 1), (2000,), (1, 1)):
        mask = np.zeros(shape)
        given = query, key, key
        output, lse = regard.scaled_dot_product_attention(*given, mask, return_lse=True)
        results.append(
            regard.scaled_dot_product_attention_backward(
                query, *given, output, lse, mask, with_respect_to=["mask"]
            ).mask
        )
    print(hashlib.sha256(b"".join(a.tobytes() for a in results)).hexdigest())
    """
    sizes = ("1", "300000", "524288", "100000000")
    assert len({output_of(with_families(script), REGARD_L2_CACHE=size) for size in sizes}) == 1
