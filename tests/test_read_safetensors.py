"""Files of parameters: what is read, and what is refused with its reason."""

import json
import struct

import numpy as np
import pytest

import regard
from reference import assert_same_bits

REASON = "safetensors is not installed: pip install '.[models]'"


def normal(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def framed(header, data=b""):
    """A file by hand: the length of the header, the header, the arrays."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture
def file(tmp_path):
    pytest.importorskip("safetensors", reason=REASON)

    def write(content):
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return path

    return write


def bytes_of(array, bits):
    return bits, list(array.shape), array.tobytes()


def whole(entries):
    header, data = {}, b""
    for name, (bits, shape, raw) in entries.items():
        header[name] = {
            "dtype": bits,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    return framed(header, data)


def test_arrays_come_as_they_are_stored(file):
    arrays = {
        "F32": normal((3, 4)),
        "F16": normal((2, 5)).astype(np.float16),
        "F64": normal(7).astype(float),
        "I64": np.arange(4),
        "BF16": normal((2, 2)).astype(pytest.importorskip("ml_dtypes").bfloat16),
    }
    path = file(whole({f"part.{bits}": bytes_of(a, bits) for bits, a in arrays.items()}))
    read = regard.read_safetensors(path)
    assert set(read) == {f"part.{bits}" for bits in arrays}
    for bits, array in arrays.items():
        assert read[f"part.{bits}"].dtype == array.dtype
        assert read[f"part.{bits}"].tobytes() == array.tobytes()
        assert read[f"part.{bits}"].shape == array.shape
    assert set(regard.read_safetensors(str(path), "part.F")) == {"part.F16", "part.F32", "part.F64"}


@pytest.mark.parametrize("prefix", ["", "encoder.1.attention"])
def test_a_layer_of_a_file(file, prefix):
    layer = regard.MultiHeadAttention(8, 2, qkv_bias=True, out_bias=True, rng=1)
    state = layer.state_dict("bert", "encoder.1.attention")
    path = file(whole({name: bytes_of(array, "F32") for name, array in state.items()}))
    other = regard.MultiHeadAttention(8, 2, qkv_bias=True, out_bias=True, rng=2)
    other.load_state_dict(regard.read_safetensors(path, prefix), "encoder.1.attention")
    x = normal((3, 8))
    assert_same_bits(other(x), layer(x))


GOOD = whole({"a": bytes_of(normal((2, 3)), "F32")})
ONE = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}


def one(**changes):
    return {"a": ONE["a"] | changes}


BROKEN = {
    "empty": (b"", "header too small"),
    "a few bytes": (b"\x01\x02\x03", "header too small"),
    "half a header": (GOOD[:20], "invalid header length"),
    "half an array": (GOOD[:-1], "incomplete"),
    "too long": (GOOD + b"\0", "incomplete"),
    "a header without end": (struct.pack("<Q", 2**63) + b"{}", "header too large"),
    "a header of a terabyte": (struct.pack("<Q", 10**12) + b"{}", "header too large"),
    "no JSON": (struct.pack("<Q", 4) + b"oops", "invalid JSON"),
    "no UTF-8": (struct.pack("<Q", 4) + b"{\xff\xfe}", ""),
    "no object": (framed([1, 2]), ""),
    "a zip, as PyTorch writes": (b"PK\x03\x04" + b"\0" * 100, ""),
    "a GGUF": (b"GGUF\x03\0\0\0" + b"\0" * 100, "header too large"),
    "unknown type": (framed(one(dtype="F33"), b"\0" * 16), ""),
    "shape beside size": (framed(one(shape=[2, 3]), b"\0" * 16), ""),
    "shape beyond 64 bits": (framed(one(shape=[2**40, 2**40]), b"\0" * 16), ""),
    "negative shape": (framed(one(shape=[-2, -2]), b"\0" * 16), ""),
    "end before begin": (framed(one(data_offsets=[16, 0]), b"\0" * 16), ""),
    "a hole": (framed(one(data_offsets=[8, 24]), b"\0" * 24), ""),
    "overlap": (framed(ONE | {"b": ONE["a"]}, b"\0" * 16), ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_errors_with_a_reason(file, name):
    content, reason = BROKEN[name]
    path = file(content)
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        regard.read_safetensors(path)
    start = f"{path} is no readable safetensors file: "
    assert str(raised.value).startswith(start)
    assert reason in str(raised.value).removeprefix(start)
    assert str(raised.value) != start


def test_every_shortened_file_is_refused(file):
    for length in range(len(GOOD)):
        path = file(GOOD[:length])
        with pytest.raises(ValueError, match="is no readable safetensors file"):
            regard.read_safetensors(path)
    assert set(regard.read_safetensors(file(GOOD))) == {"a"}


def test_errors_of_arguments(file, tmp_path):
    path = file(GOOD)
    with pytest.raises(ValueError, match="has no name that begins with 'b'"):
        regard.read_safetensors(path, "b")
    with pytest.raises(TypeError, match="path must be a str or path-like, got int"):
        regard.read_safetensors(3)
    with pytest.raises(TypeError, match="prefix must be a str, got NoneType"):
        regard.read_safetensors(path, None)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        regard.read_safetensors(tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError):
        regard.read_safetensors(tmp_path)


def test_without_the_package_the_error_says_what_to_install(output_of):
    script = """
        import sys
        sys.modules["safetensors"] = None
        import regard
        try:
            regard.read_safetensors("model.safetensors")
        except ImportError as error:
            print(error)
    """
    assert output_of(script) == (
        "read_safetensors needs the package safetensors: pip install 'regard[models]'"
    )
