"""Files of pages that are torn, truncated or foreign: what is whole counts, or an error says so."""

import errno
import os
import zlib

import numpy as np
import pytest

import regard
from cache_model import tokens, told
from messages import says
from paged_files import HEAD, HEADER, RECORDS, make


def test_a_torn_record_gives_what_was_before(path):
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    before = told(cache)
    cache.append(*tokens(1, 2, 1))
    ledger = (
        HEADER + cache._content.state.table._ledger.run.start * cache._content.state.pool.stride
    )
    newest = cache._content.state.table._number % 2
    cache.close()
    content = bytearray(path.read_bytes())
    content[ledger + newest * 32 + 20] ^= 1
    path.write_bytes(content)
    with regard.KVCache.open(path, "r") as opened:
        assert told(opened) == before
    content[ledger + (1 - newest) * 32 + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: neither of its records of lengths"):
        regard.KVCache.open(path)


def test_a_torn_header_has_its_like(path):
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    cache.reorder([1, 0, 1])
    wanted = told(cache)
    cache.close()
    content = bytearray(path.read_bytes())
    assert content[RECORDS : RECORDS + HEAD] == content[RECORDS + HEAD : RECORDS + 2 * HEAD]
    for at in range(RECORDS, RECORDS + 2 * HEAD):
        torn = bytearray(content)
        torn[at] ^= 1
        path.write_bytes(torn)
        with regard.KVCache.open(path, "r") as opened:
            assert told(opened) == wanted
        assert path.read_bytes() == torn
        with regard.KVCache.open(path) as opened:  # which mends it
            assert told(opened) == wanted
        mended = path.read_bytes()[RECORDS : RECORDS + 2 * HEAD]
        assert mended[:HEAD] == mended[HEAD:]
    content[RECORDS] ^= 1
    content[RECORDS + HEAD] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: neither of its two records"):
        regard.KVCache.open(path)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("number", [-1, 0, 1, 3, 1000, 2**31, 2**62, -(2**63)])
def test_a_foreign_header_with_the_right_checksum(place, number, path):
    """No crash, and never more memory than the file has room for; some are no wrong ones."""
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    cache.close()
    content = bytearray(path.read_bytes())
    numbers = np.frombuffer(content, "<i8", 3, RECORDS + 16).copy()
    same = numbers[place] == number
    numbers[place] = number
    for which in range(2):
        at = RECORDS + which * HEAD
        body, order = numbers.tobytes(), bytes(content[at : at + 8])
        content[at + 8 : at + 12] = zlib.crc32(body, zlib.crc32(order)).to_bytes(4, "little")
        content[at + 16 : at + HEAD] = body
    path.write_bytes(content)
    for mode in ("r", "r+"):
        if same:
            regard.KVCache.open(path, mode).close()
            continue
        with pytest.raises(ValueError, match=r"damaged|truncated"):
            regard.KVCache.open(path, mode)
        assert path.read_bytes() == content


@pytest.mark.parametrize("number", [-1, 0, 3, 4, 1000, 2**31 - 1, -(2**31)])
def test_a_table_with_impossible_pages(number, path):
    """The ledger lies in page 0, the tokens in 1 to 4."""
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    table = cache._content.state.table.pages
    assert table[:, :2].tolist() == [[1, 2], [3, 4]]
    table[1, 0] = number
    cache.close()
    if number in (3, 4):
        regard.KVCache.open(path).close()
        return
    with pytest.raises(ValueError, match=r"cache is (damaged|truncated): "):
        regard.KVCache.open(path)


@pytest.mark.parametrize("pages", range(6))
def test_a_file_without_its_last_pages(pages, path):
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    stride = cache._content.state.pool.stride
    wanted = told(cache)
    cache.close()
    content = path.read_bytes()
    path.write_bytes(content[: HEADER + pages * stride])
    if pages == 5:  # all that are used
        with regard.KVCache.open(path) as opened:
            assert told(opened) == wanted
        return
    with pytest.raises(ValueError, match=says(str(path), "truncated", "bytes or more")):
        regard.KVCache.open(path)


def test_the_last_number_of_a_record_is_refused(path):
    """The next one would not be a number any more that fits."""
    make(path)[0].close()
    content = bytearray(path.read_bytes())
    body = bytes(content[RECORDS + 16 : RECORDS + HEAD])
    number = (2**62).to_bytes(8, "little")
    for at in (RECORDS, RECORDS + HEAD):
        content[at : at + 8] = number
        content[at + 8 : at + 12] = zlib.crc32(body, zlib.crc32(number)).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        regard.KVCache.open(path)


def test_a_damaged_file_takes_no_more_room(path):
    make(path)[0].close()
    with path.open("r+b") as file:
        file.seek(RECORDS)
        file.write(b"\0" * 2 * HEAD)
        file.truncate(50_000_000)
    with pytest.raises(ValueError, match="damaged"):
        regard.KVCache.open(path)
    assert path.stat().st_blocks * 512 < 1_000_000


def test_what_cannot_be_mapped_is_named(path, monkeypatch):
    make(path)[0].close()

    def none_left(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("mmap.mmap", none_left)
    with pytest.raises(OSError, match=f"memory, to map {path.stat().st_size} bytes") as raised:
        regard.KVCache.open(path)
    assert raised.value.filename == str(path)
