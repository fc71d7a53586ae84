"""Damaged and foreign files are refused with the reason, and the error names the file."""

import struct

import numpy as np
import pytest

import regard
from gguf_files import (
    ARRAY,
    ENTRIES,
    Q8_0,
    STRING,
    UINT32,
    entry,
    gguf_file,
    tensor,
    text,
    u32,
    u64,
)
from test_safetensors import one, safetensors_file

pytest.importorskip("gguf")
pytest.importorskip("safetensors")

HUGE = 2**60


def of_entry(*arguments):
    return gguf_file(entries=[entry(*arguments)])


def of_tensor(**facts):
    return gguf_file(tensors=[tensor(**facts)])


GGUF = [
    (bytes(200), "GGUF"),
    (gguf_file(version=4), "version 4"),
    (gguf_file(entry_count=HUGE), "file ends at"),
    (gguf_file(tensor_count=HUGE), "file ends at"),
    (gguf_file(entries=[u64(HUGE) + b"key"]), "file ends at"),
    (gguf_file(entries=ENTRIES[:1] * 2), "Duplicate"),
    (of_entry("k", STRING, text(b"\xc3(")), "utf-8"),
    (of_entry("k", ARRAY, u32(UINT32) + u64(HUGE)), "file ends at"),
    (of_entry("k", ARRAY, u32(99) + u64(HUGE)), "99"),
    (of_entry("k", ARRAY, (u32(ARRAY) + u64(1)) * 5000), "recursion"),
    (of_entry("general.alignment", UINT32, u32(48)), "alignment"),
    (gguf_file(tensors=[text("a") + u32(2**32 - 1) + bytes(20)]), "file ends at"),
    (of_tensor(shape=(0, 2**60)), "shape"),
    (of_tensor(shape=(2**32, 2**32)), "a"),
    (gguf_file(tensors=[tensor(shape=(32,), kind=9)], data=bytes(40)), "Q8_1"),
    (of_tensor(shape=(2, 33), kind=Q8_0), "block size"),
    (of_tensor(offset=2**64 - 32), "overflow"),
    (gguf_file(tensors=[tensor(), tensor(offset=32)], data=bytes(64)), "duplicated"),
]
SAFETENSORS = [
    (bytes(100), "invalid JSON"),
    (b"PK\x03\x04" + bytes(100), "invalid header length"),  # a zip, as PyTorch writes
    (struct.pack("<Q", 2**64 - 1) + b"{}", "header too large"),
    (safetensors_file(b'{"\xff": 1}'), "UTF-8"),
    (safetensors_file(one("F31"), bytes(8)), "F31"),
    (safetensors_file(one(), bytes(7)), "incomplete"),
    (safetensors_file(one(shape=(2**58,), offsets=(0, 2**60)), bytes(8)), "incomplete"),
    (safetensors_file(one(shape=(2**40, 2**40, 0)), bytes(8)), "shape"),
    (safetensors_file(one(offsets=(8, 16)), bytes(16)), "offset"),
    (safetensors_file(one() | {"b": one()["a"]}, bytes(8)), "offset"),
    (safetensors_file(b'{"a":' * 5000, bytes(8)), "recursion"),
    (safetensors_file(one(shape=(2,) + (1,) * 64), bytes(8)), "shape"),  # 65 axes
]
WHOLE = {
    "gguf": gguf_file(
        entries=[*ENTRIES, entry("k", ARRAY, u32(STRING) + u64(1) + text("ab"))],
        tensors=[tensor(shape=(2, 32), kind=Q8_0)],
        data=bytes(range(68)),
    ),
    "safetensors": safetensors_file(one("F16", (4,)) | {"__metadata__": {"b": "c"}}, b"\0\x7c" * 4),
}


@pytest.fixture
def load(tmp_path):
    def load(kind, data):
        path = tmp_path / f"model.{kind}"
        path.write_bytes(data)
        return getattr(regard.checkpoints, f"load_{kind}")(path)[0]

    return load


def reason_of(load, kind, data):
    """Return why a file is refused, or None, and check that its arrays are arrays."""
    try:
        found = load(kind, data)
    except ValueError as error:
        _, name, reason = str(error).partition(f"model.{kind}: ")
        return reason if name and type(error) is ValueError else f"another error: {error}"
    assert all(isinstance(array, np.ndarray) for array in found.values())
    return None


@pytest.mark.parametrize(("kind", "cases"), [("gguf", GGUF), ("safetensors", SAFETENSORS)])
def test_malformed_files(load, kind, cases):
    for number, (data, reason) in enumerate(cases):
        told = reason_of(load, kind, data)
        assert told is not None, number
        assert reason in told, number
        assert not told.startswith("another error")


EACH = pytest.param(1, id="each", marks=pytest.mark.slow)


@pytest.mark.parametrize("step", [3, EACH])
@pytest.mark.parametrize("kind", WHOLE)
def test_every_truncation(load, kind, step):
    whole = WHOLE[kind]
    for length in range(0, len(whole), step):
        assert reason_of(load, kind, whole[:length]), length
    assert reason_of(load, kind, whole) is None
