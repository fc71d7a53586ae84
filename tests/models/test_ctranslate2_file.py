"""Test the reader of CTranslate2 files in the examples."""

import struct

import numpy as np
import pytest

VALUES = np.array([[1, 2, 3]], "<f2")


def text(string):
    return struct.pack("<H", len(string) + 1) + string.encode() + b"\0"


def file_of_one(version=6, kind=4, size=VALUES.nbytes, axes=(1, 3), count=1, target="a"):
    head = struct.pack("<I", version) + text("Spec") + struct.pack("<II", 1, count)
    variable = text("a") + struct.pack(f"<B{len(axes)}IBI", len(axes), *axes, kind, size)
    return head + variable + VALUES.tobytes() + struct.pack("<I", 1) + text("b") + text(target)


@pytest.fixture
def load(tmp_path):
    from models.ctranslate2_file import load_ctranslate2

    def load(data):
        path = tmp_path / "model.bin"
        path.write_bytes(data)
        return load_ctranslate2(path)

    return load


def test_a_small_file(load):
    parameters = load(file_of_one())
    assert parameters.keys() == {"a", "b"}
    assert parameters["a"].dtype == np.float32
    assert parameters["b"] is parameters["a"]
    assert np.array_equal(parameters["a"], VALUES)


def test_damaged_files(load):
    whole = file_of_one()
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [
        whole + b"x",
        file_of_one(version=5),
        file_of_one(axes=(2**31, 2**31)),
        file_of_one(count=2**32 - 1),
        file_of_one(target="c"),
    ]
    for data in damaged:
        with pytest.raises(ValueError, match=r"model\.bin: "):
            load(data)
