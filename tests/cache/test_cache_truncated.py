"""If another program truncates a file, an error replaces the memory access that would end the
process."""

import sys

import numpy as np
import pytest

import regard
from cache_model import tokens
from file_caches import FIRST_PAGE, make

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows truncates and deletes no file that is mapped"
)

SCRIPT = """
import errno, os
import numpy as np
import regard

path, mode, length = os.environ["PLACE"], os.environ["MODE"], int(os.environ["LENGTH"])
one, query = np.ones((2, 1, 1, 8), np.float32), np.ones((1, 2, 1, 8), np.float32)
with regard.KVCache(1, 1, 8, path=path, page_size=16) as cache:
    cache.append(*np.ones((2, 1, 1, 100, 8)))
cache = regard.KVCache.open(path, mode)
fork = cache.fork()
fork.append(*one)
before = os.stat(path).st_size
os.truncate(path, length)

calls = {
    "attend": lambda cache: cache.attend(query),
    "keys": lambda cache: cache.keys,
    "append a token": lambda cache: cache.append(*one),
    "append a page": lambda cache: cache.append(*np.ones((2, 1, 1, 20, 8))),
    "append padding": lambda cache: cache.append(*one, lengths=[1]),
    "truncate to an int": lambda cache: cache.truncate(3),
    "truncate": lambda cache: cache.truncate([3]),
    "reorder": lambda cache: cache.reorder([0, 0]),
    "fork": lambda cache: cache.fork(),
}
reads = ("attend", "keys", "fork")
for each, names in ((fork, calls), (cache, calls if mode == "r+" else reads)):
    for name in names:
        try:
            calls[name](each)
        except OSError as error:
            assert error.errno == errno.EIO and error.filename == os.path.realpath(path), error
            assert f"truncated it from {before} to {length} bytes" in str(error), error
        else:
            print("no error:", name)
    assert each.lengths.tolist() == [101 if each is fork else 100]
try:
    cache.close()
except OSError as error:
    assert error.errno == errno.EIO
else:
    print("no error: close, with a fork that has pages")
fork.close()
cache.close()
print("closed")
"""


@pytest.mark.parametrize("length", [0, 5000, FIRST_PAGE + 1000])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_calls_say_that_the_file_was_truncated(mode, length, path, run_python):
    done = run_python(SCRIPT, PLACE=str(path), MODE=mode, LENGTH=str(length))
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def test_a_file_that_was_deleted_stays_in_use(path):
    """Its bytes remain as long as any process has it open."""
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    path.unlink()
    cache.append(*tokens(1, 2, 50))
    assert cache.lengths.tolist() == [70, 70]


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_forks_outlive_the_file_that_was_closed_and_truncated(mode, path):
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    cache.close()
    with regard.KVCache.open(path, mode) as opened:
        fork = opened.fork()
        wanted = fork.keys
    path.write_bytes(b"")
    np.testing.assert_array_equal(fork.keys, wanted)
    fork.append(*tokens(1, 2, 50))
    assert fork.lengths.tolist() == [70, 70]
