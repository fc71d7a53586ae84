"""Test files that are torn, truncated or foreign: intact parts count, or an error says so."""

import errno
import os
import struct
import zlib

import numpy as np
import pytest

import regard
from cache_model import tokens, told
from file_caches import FIRST_PAGE, HEAD, RECORDS, make
from inside_cache import ledger_of, page_bytes
from messages import says
from regard._cache.storage import header


def test_a_torn_record_gives_what_was_before(path):
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    before = told(cache)
    cache.append(*tokens(1, 2, 1))
    lines = ledger_of(cache)._lines
    ledger, newest, size = 4096 + lines.place * 32768, lines.number % 2, lines.records.shape[1]
    cache.close()
    content = bytearray(path.read_bytes())
    content[ledger + newest * size + 20] ^= 1
    path.write_bytes(content)
    with regard.KVCache.open(path, "r") as opened:
        assert told(opened) == before
    content[ledger + (1 - newest) * size + 20] ^= 1
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
        with regard.KVCache.open(path) as opened:  # opening repairs the file
            assert told(opened) == wanted
        mended = path.read_bytes()[RECORDS : RECORDS + 2 * HEAD]
        assert mended[:HEAD] == mended[HEAD:]
    content[RECORDS] ^= 1
    content[RECORDS + HEAD] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: both records"):
        regard.KVCache.open(path)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("number", [-1, 0, 1, 3, 1000, 2**31, 2**62, -(2**63)])
def test_a_foreign_header_with_the_right_checksum(place, number, path):
    """Such a header causes no crash, and never needs more memory than the file has room for. Some
    of the numbers are not wrong."""
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
        if same or (place == 1 and number in (3, 1000)):
            regard.KVCache.open(path, mode).close()
            continue
        with pytest.raises(ValueError, match=r"damaged|truncated"):
            regard.KVCache.open(path, mode)
        assert path.read_bytes() == content


@pytest.mark.parametrize("number", [-1, 2, 3, 4, 1000, 2**31 - 1, -(2**31)])
def test_a_table_with_impossible_pages(number, path):
    """The tokens are in pages 0 to 3."""
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    table = ledger_of(cache)._lines.table
    assert table[:, :2].tolist() == [[0, 1], [2, 3]]
    table[1, 0] = number
    cache.close()
    if number in (2, 3):
        regard.KVCache.open(path).close()
        return
    with pytest.raises(ValueError, match=r"cache is (damaged|truncated): "):
        regard.KVCache.open(path)


LENGTHS = [  # lengths and lost pages of an entry of 100 tokens in pages of 16, with a window of 20
    ((100, 3), True),
    ((-1, 0), False),
    ((10**9, 3), False),
    ((100, -1), False),
    ((100, 7), False),
    ((100, 2**62), False),
    ((2**62, 2**57), False),
    ((50, 3), True),
    ((40, 3), False),
]


@pytest.mark.parametrize(("numbers", "is_possible"), LENGTHS)
def test_lengths_and_lost_pages_that_cannot_be(numbers, is_possible, path):
    cache = regard.KVCache(1, 2, 8, 5, page_size=16, keep_last=20, path=path)
    for _ in range(100):
        cache.append(*tokens(0, 1, 1))
    lines = ledger_of(cache)._lines
    lines.records[...] = np.frombuffer(header.record(5, np.array(numbers)), np.uint8)
    cache.close()
    content = path.read_bytes()
    for mode in ("r", "r+"):
        if is_possible:
            regard.KVCache.open(path, mode).close()
            continue
        with pytest.raises(ValueError, match="damaged"):
            regard.KVCache.open(path, mode)
        assert path.read_bytes() == content


@pytest.mark.parametrize("pages", range(5))
def test_a_file_without_its_last_pages(pages, path):
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    stride, wanted = page_bytes(cache), told(cache)
    cache.close()
    content = path.read_bytes()
    path.write_bytes(content[: FIRST_PAGE + pages * stride])
    if pages == 4:  # all used pages
        with regard.KVCache.open(path) as opened:
            assert told(opened) == wanted
        return
    with pytest.raises(ValueError, match=says(str(path), "truncated", "bytes or more")):
        regard.KVCache.open(path)


def test_the_last_number_of_a_record_is_refused(path):
    """The next number would no longer fit."""
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


DESCRIPTION = struct.Struct("<8sII16s8q")
NUMBERS = ["layers", "kv_heads", "head_dim", "value_dim"]
NUMBERS += ["keep_last", "keep_first", "capacity", "page_size"]
KINDS = {"float32": {}, "int8": {"dtype": "int8"}, "window": {"keep_last": 3, "keep_first": 2}}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_flipped_byte_of_the_description_is_noticed(kind, path):
    make(path, **kind)[0].close()
    content = path.read_bytes()
    for at in range(DESCRIPTION.size):
        for flip in (1, 0x80, 0xFF):
            wrong = bytearray(content)
            wrong[at] ^= flip
            path.write_bytes(wrong)
            with pytest.raises(ValueError, match=r"not a regard cache|has version|damaged"):
                regard.KVCache.open(path)
            assert path.read_bytes() == wrong


WRONG = [("version", 5), ("type", b"object"), ("type", b"\xff\xfe")]
WRONG += [(name, number) for name in NUMBERS for number in (-2, 0, 24, 2**62, -(2**63))]
FINE = [("keep_last", 24), ("keep_last", 2**62), ("keep_first", 0), ("keep_first", 24)]
FINE += [("keep_first", 2**62), ("capacity", 24), ("capacity", 2**62)]


@pytest.mark.parametrize(("name", "number"), [each for each in WRONG if each not in FINE])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_foreign_description_with_the_right_checksum(kind, name, number, path):
    cache, _ = make(path, **kind)
    cache.append(*tokens(0, 2, 20))
    cache.close()
    content = bytearray(path.read_bytes())
    describe(content, **{name: number})
    path.write_bytes(content)
    for mode in ("r", "r+"):
        with pytest.raises(ValueError, match=r"version|damaged|truncated"):
            regard.KVCaches.open(path, mode)
    assert path.read_bytes() == content


def describe(content, **changes):
    """Change the description, and give it the right checksum."""
    fields = list(DESCRIPTION.unpack_from(content))
    at = {"version": 1, "type": 3} | {name: 4 + i for i, name in enumerate(NUMBERS)}
    for name, number in changes.items():
        fields[at[name]] = number
    fields[2] = 0
    fields[2] = zlib.crc32(DESCRIPTION.pack(*fields))
    DESCRIPTION.pack_into(content, 0, *fields)


@pytest.mark.parametrize("version", [1, 3, 5])
def test_other_versions_are_refused_by_name(version, path):
    make(path)[0].close()
    content = bytearray(path.read_bytes())
    describe(content, version=version)
    path.write_bytes(content)
    remedy = "open it with the regard" if version == 5 else "make a new cache, and append"
    with pytest.raises(ValueError, match=says(f"has version {version}", "reads version 4", remedy)):
        regard.KVCache.open(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", [{}, {"capacity": 40}])
def test_a_truncated_file_says_so(kind, path):
    cache = regard.KVCache(2, 2, 8, 5, path=path, **kind)
    cache.append(*tokens(0, 2, 7))
    end = FIRST_PAGE + 2 * page_bytes(cache)
    cache.close()
    content = path.read_bytes()
    for size in [*range(0, 700, 7), 1000, 4096, FIRST_PAGE - 1, FIRST_PAGE, end - 1]:
        path.write_bytes(content[:size])
        for mode in ("r", "r+"):
            with pytest.raises(ValueError, match=r"not a regard cache|truncated"):
                regard.KVCache.open(path, mode)
        assert path.read_bytes() == content[:size]
    path.write_bytes(content)
    regard.KVCache.open(path).close()
