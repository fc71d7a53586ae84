"""A cache comes back from its file with all its bits, and a file that is no cache is refused."""

import json
import os
import stat

import numpy as np
import pytest
import safetensors.numpy

import regard
from cache_tokens import normal, tokens, told
from inside_cache import assert_owners_are_right, page_bytes, taken


def make(dtype="float32", **options):
    cache = regard.KVCache(2, 2, 32, 64, dtype=dtype, **options)
    for step, lengths in enumerate([[40, 3], [1, 1], [1, 20], [1, 1]]):
        cache.append(*tokens(step, 2, max(lengths), head_dim=32, value_dim=64), lengths)
    return cache


@pytest.mark.parametrize(
    ("dtype", "mmap", "options"),
    [("bfloat16", False, {"keep_first": 3}), ("int8", True, {}), ("q4_1", True, {})],
)
def test_what_is_appended_later_never_reaches_the_file(dtype, mmap, options, path):
    cache = make(dtype, keep_last=20, page_size=16, **options)
    cache.save(path)
    content = path.read_bytes()
    again = regard.KVCache.load(path, mmap=mmap)
    assert told(again) == told(cache)
    assert again.capacity == cache.capacity
    fork, same = again.fork([1, 0]), cache.fork([1, 0])
    for step in range(8):
        for each in (again, cache):
            each.append(*tokens(step, 2, 4, head_dim=32, value_dim=64))
        for each in (fork, same):
            each.append(*tokens(step + 99, 2, 2, head_dim=32, value_dim=64), [1, 2])
    assert told(again) == told(cache)
    assert told(fork) == told(same)
    assert_owners_are_right([again, fork])
    again.close()
    assert told(fork) == told(same)
    assert path.read_bytes() == content


@pytest.mark.parametrize("mmap", [False, True])
def test_a_file_that_is_replaced_while_it_is_read(mmap, path, monkeypatch):
    """The old or the new cache is read, never pages of one and lengths of the other."""
    make().save(path)
    longer = make()
    longer.append(*tokens(0, 2, 300, head_dim=32, value_dim=64))
    open_file = safetensors.safe_open

    def replaced(*arguments, **options):
        if longer.batch:
            longer.save(path)
            expected.append(told(longer))
            longer.drop([0, 1])
        return open_file(*arguments, **options)

    expected = []
    monkeypatch.setattr(safetensors, "safe_open", replaced)
    assert [told(regard.KVCache.load(path, mmap=mmap))] == expected


def test_pages_that_entries_share_are_written_once(path):
    cache = make(page_size=16)
    cache.reorder([0, 0, 0, 1])
    cache.save(path)
    before = len(os.listdir("/proc/self/fd"))
    again = regard.KVCache.load(path, mmap=True)
    assert len(os.listdir("/proc/self/fd")) == before  # no file stays open
    assert taken(again) == taken(cache) == 3 + 2
    assert told(again) == told(cache)
    assert path.stat().st_size < 6 * page_bytes(cache) + 2000
    cache.save(path, [3])
    assert regard.KVCache.load(path).lengths.tolist() == [25]


def test_a_file_replaces_another(path):
    """Links, permissions and neighbors stay, and caches that have mapped the old file keep it."""
    first, second = make(), make()
    second.truncate(2)
    neighbor = path.with_name("cache.tmp")
    neighbor.write_bytes(b"mine")
    first.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(neighbor.stat().st_mode)
    os.chmod(path, 0o640)
    link = path.with_name("link")
    link.symlink_to(path)
    mapped = regard.KVCache.load(path, mmap=True)
    second.save(link)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert told(regard.KVCache.load(path)) == told(second)
    assert told(mapped) == told(first)
    names = sorted(each.name for each in path.parent.iterdir())
    assert names == ["cache", "cache.tmp", "link"]
    assert neighbor.read_bytes() == b"mine"


def test_a_full_disk_leaves_the_old_file(path, monkeypatch):
    cache = make()
    cache.save(path)
    content = path.read_bytes()

    def full(*arguments, **options):
        raise safetensors.SafetensorError("no space left on device")

    monkeypatch.setattr("safetensors.serialize_file", full)
    with pytest.raises(OSError, match="the existing file is unchanged"):
        cache.save(path)
    assert path.read_bytes() == content
    assert len(list(path.parent.iterdir())) == 1


def test_files_of_other_formats(path):
    refused = {
        b"Call me Ishmael. " * 100: "not a readable safetensors file",
        b"": "not a readable safetensors file",
        b"\x02" + bytes(7) + b"{}": "not a cache",
    }
    for content, reason in refused.items():
        path.write_bytes(content)
        for kind in (regard.KVCache, regard.KVCaches):
            with pytest.raises(ValueError, match=reason):
                kind.load(path)


def parts_of(path):
    with safetensors.safe_open(path, framework="np") as opened:
        description = json.loads(opened.metadata()["description"])
        return opened.metadata(), description, opened.get_tensors()


def layer_with(**fields):
    return lambda metadata, description, tensors: description["layers"][0].update(fields)


def tensor_with(name, place, number):
    def damage(metadata, description, tensors):
        tensors[name][place] = number

    return damage


DAMAGE = {
    "version 2": lambda metadata, *_: metadata.update(version="2"),
    "damaged.*5 pages": tensor_with("table.0", (0, 0), 99),
    "damaged.*lengths": tensor_with("lengths", 1, 10**12),
    "damaged.*lost": tensor_with("evicted.0", 0, 1),
    "damaged.*bytes": lambda _, __, tensors: tensors.update(
        {"pages.0": tensors["pages.0"][:, :-16]}
    ),
    "damaged.*table": lambda _, __, tensors: tensors.update(
        {"table.0": tensors["table.0"].astype(np.float64)}
    ),
    "damaged.*tensors": lambda _, __, tensors: tensors.pop("evicted.0"),
    "damaged.*num_kv_heads": layer_with(num_kv_heads=0),
    "damaged.*dtype": layer_with(dtype="int4"),
    "damaged.*no memory": layer_with(head_dim=2**62),
    "damaged.*capacity": lambda _, description, __: description.pop("capacity"),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_damaged_file_is_refused_with_the_reason(reason, path):
    make(page_size=16).save(path)
    metadata, description, tensors = parts_of(path)
    DAMAGE[reason](metadata, description, tensors)
    metadata["description"] = json.dumps(description)
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    safetensors.numpy.save_file(tensors, path, metadata)
    for mmap in (False, True):
        with pytest.raises(ValueError, match=reason):
            regard.KVCache.load(path, mmap=mmap)


@pytest.mark.parametrize("dtype", ["int8", "q4_1"])
def test_scales_of_a_damaged_file_are_no_warnings(dtype, path):
    """Data that no checksum protects may hold any number."""
    make(dtype, page_size=16).save(path)
    metadata, _, tensors = parts_of(path)
    tensors["pages.0"][...] = 0x7C
    safetensors.numpy.save_file(tensors, path, metadata)
    cache = regard.KVCache.load(path)
    assert cache.keys.shape == (2, 2, len(cache), 32)
    cache.attend(normal(1, 2, 2, 1, 32), is_causal=False)
