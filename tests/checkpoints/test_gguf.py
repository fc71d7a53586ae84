"""GGUF files are read as they were written; damaged files are refused with the reason."""

import os
import re
import sys

import numpy as np
import pytest

import regard
from gguf_files import (
    ARRAY,
    BOOL,
    DATA,
    ENTRIES,
    F16,
    F32,
    FLOAT32,
    NUMBERS,
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
from messages import says

gguf = pytest.importorskip("gguf")

HUGE = 2**60


@pytest.fixture
def load(tmp_path):
    def load(data, *prefix, **options):
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return regard.checkpoints.load_gguf(path, *prefix, **options)

    return load


def test_a_small_file(load):
    parameters, metadata = load(gguf_file())
    assert metadata == {"size": 7, "name": "tiny"}
    assert list(parameters) == ["a"]
    assert parameters["a"].dtype == np.float32
    assert np.array_equal(parameters["a"], NUMBERS)
    parameters["a"][0] = 5  # the array belongs to the caller


def test_a_header_of_any_length(load):
    """The data begins at the next multiple of 32, or at the end of the header if that is a
    multiple."""
    for length in range(1, 33):
        named = [entry("k" * length, UINT32, u32(length))]
        parameters, _ = load(gguf_file(entries=named))
        assert np.array_equal(parameters["a"], NUMBERS), length


def test_kinds_of_metadata(load):
    entries = [
        entry("truth", BOOL, b"\1"),
        entry("real", FLOAT32, np.float32(0.1).tobytes()),
        entry("general.alignment", UINT32, u32(64)),
        entry("numbers", ARRAY, u32(UINT32) + u64(3) + u32(1, 2, 3)),
        entry("words", ARRAY, u32(STRING) + u64(2) + text("ü") + text("")),
    ]
    _, metadata = load(gguf_file(entries=entries, tensors=[], data=b""))
    assert metadata == {
        "truth": True,
        "real": float(np.float32(0.1)),
        "general.alignment": 64,
        "numbers": [1, 2, 3],
        "words": ["ü", ""],
    }
    assert metadata["truth"] is True


def test_what_the_package_writes(tmp_path):
    """For every type that the package can write and read, the result agrees with the package's own
    reader."""
    rng = np.random.default_rng(0)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    numbers = rng.standard_normal((3, 5, 64)).astype(np.float32)
    types = gguf.GGMLQuantizationType
    for kind in (types.F32, types.F16, types.BF16, types.Q8_0, types.Q4_0, types.Q4_1, types.Q5_1):
        writer.add_tensor(kind.name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    for kind in (np.float64, np.int8, np.int16, np.int32, np.int64):
        writer.add_tensor(np.dtype(kind).name, (9 * numbers).astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    parameters, metadata = regard.checkpoints.load_gguf(path)
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert metadata == {name: fields[name] for name in fields if not name.startswith("GGUF.")}
    assert list(parameters) == [tensor.name for tensor in reader.tensors]
    for name, array in parameters.items():
        assert array.shape == numbers.shape
        right = (9 * numbers).astype(name) if name.islower() else numbers
        assert array.dtype == right.dtype
        off = {"F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2}.get(name, 0.5 if name[0] == "Q" else 0)
        assert np.abs(array - right).max() <= off
    for stored in reader.tensors:
        if stored.name.isupper():
            exact = gguf.quants.dequantize(stored.data, stored.tensor_type)
            assert np.array_equal(parameters[stored.name], exact)


@pytest.mark.parametrize("weight_dtype", [None, "float16", "int8"])
@pytest.mark.parametrize("shape", [(0,), (0, 64), (3, 0), (0, 0), (2, 0, 64), (0, 2**40)])
@pytest.mark.parametrize("kind", [F32, F16, Q8_0, 24])  # 24: 8-bit integers
def test_empty_tensors(load, kind, shape, weight_dtype):
    """A tensor without elements has no bytes: any place is its place."""
    tensors = [tensor(), tensor("none", shape, kind, 0), tensor("end", shape, kind, 2**20)]
    parameters, _ = load(gguf_file(tensors=tensors), weight_dtype=weight_dtype)
    assert parameters["a"].shape == NUMBERS.shape
    for name in ("none", "end"):
        assert parameters[name].shape == shape
        if weight_dtype is None:
            assert parameters[name].dtype == (np.int8 if kind == 24 else np.float32)


@pytest.mark.parametrize("weight_dtype", ["float16", "bfloat16", "int8"])
def test_matrices_in_fewer_bits(weight_dtype, tmp_path):
    """Reading a few rows at a time gives the same numbers as reading the whole tensor."""
    if weight_dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(0)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    numbers = rng.standard_normal((900, 320)).astype(np.float32)
    types = gguf.GGMLQuantizationType
    for kind in (types.F32, types.F16, types.BF16, types.Q8_0, types.Q4_1):
        writer.add_tensor(kind.name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.add_tensor("vector", numbers[0].copy())
    writer.add_tensor("integers", (9 * numbers[:2]).astype(np.int16))
    writer.add_tensor("heads", numbers[:6].reshape(2, 3, 320))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain, metadata = regard.checkpoints.load_gguf(path)
    kept, same = regard.checkpoints.load_gguf(path, weight_dtype=weight_dtype)
    assert same == metadata
    assert list(kept) == list(plain)
    for name, wanted in plain.items():
        if name in ("vector", "integers", "heads"):
            assert kept[name].dtype == wanted.dtype
            assert np.array_equal(kept[name], wanted)
        elif weight_dtype == "int8":
            assert np.array_equal(
                kept[name].dequantize(), regard.QuantizedWeight(wanted).dequantize()
            )
        else:
            assert kept[name].dtype.name == weight_dtype
            assert np.array_equal(kept[name], wanted.astype(kept[name].dtype))


LAYERS = gguf_file(
    tensors=[tensor("blk.1.a"), tensor("blk.10.a", offset=32), tensor("b", offset=64)],
    data=(DATA + bytes(8)) * 3,
)


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("", ["blk.1.a", "blk.10.a", "b"]),
        ("blk.1.", ["blk.1.a"]),
        ("blk.1", ["blk.1.a", "blk.10.a"]),
        ("b", ["blk.1.a", "blk.10.a", "b"]),
    ],
)
def test_parameters_whose_names_begin_so(prefix, names, load):
    parameters, metadata = load(LAYERS, prefix)
    assert metadata == {"size": 7, "name": "tiny"}
    assert list(parameters) == names
    for array in parameters.values():
        assert np.array_equal(array, NUMBERS)


def test_errors_of_prefix(load):
    with pytest.raises(ValueError, match="has no parameter whose name begins with 'c'"):
        load(LAYERS, "c")
    for prefix in (None, 3, b"a"):
        with pytest.raises(TypeError, match="prefix must be a str, got " + type(prefix).__name__):
            load(LAYERS, prefix)


def test_a_tensor_that_cannot_be_decoded_does_not_refuse_the_others(load, tmp_path):
    data = gguf_file(tensors=[tensor("q", (32,), kind=9), tensor(offset=64)], data=bytes(64) + DATA)
    with pytest.warns(UserWarning, match="skipped") as told:
        parameters, _ = load(data)
    assert list(parameters) == ["a"]
    assert np.array_equal(parameters["a"], NUMBERS)
    assert [str(warning.message) for warning in told] == [
        f"{tmp_path / 'model.gguf'}: skipped tensor 'q' has type Q8_1, which gguf cannot decode"
    ]
    assert list(load(data, "a")[0]) == ["a"]


MALFORMED = {
    "empty": (b"", ["GGUF"]),
    "zeros": (bytes(200), ["GGUF"]),
    "text": (b"Once upon a time there was a file that held no model." * 9, ["GGUF"]),
    "wrong magic": (gguf_file(magic=b"GGML"), ["GGUF"]),
    "magic alone": (b"GGUF", ["file ends at 4"]),
    "version 1": (gguf_file(version=1), ["version 1"]),
    "version of the future": (gguf_file(version=4), ["version 4"]),
    "big-endian": (gguf_file(version=3 << 24), []),
    "metadata entries": (gguf_file(entry_count=HUGE), ["file ends at"]),
    "tensors": (gguf_file(tensor_count=HUGE), ["file ends at"]),
    "one entry more": (gguf_file(entry_count=3), []),
    "one tensor more": (gguf_file(tensor_count=2), []),
    "key's length": (gguf_file(entries=[u64(HUGE) + b"key"]), ["file ends at"]),
    "key's bytes": (gguf_file(entries=[entry(b"\xff", BOOL, b"\1")]), ["UTF-8"]),
    "key twice": (gguf_file(entries=ENTRIES[:1] * 2), ["Duplicate", "size"]),
    "value type": (gguf_file(entries=[entry("k", 13, b"\1")]), ["13"]),
    "string's length": (gguf_file(entries=[entry("k", STRING, u64(HUGE))]), ["file ends at"]),
    "string's bytes": (gguf_file(entries=[entry("k", STRING, text(b"\xc3("))]), ["utf-8"]),
    "array's length": (
        gguf_file(entries=[entry("k", ARRAY, u32(UINT32) + u64(HUGE))]),
        ["file ends at"],
    ),
    "array of bools' length": (
        gguf_file(entries=[entry("k", ARRAY, u32(BOOL) + u64(HUGE))]),
        ["file ends at"],
    ),
    "array of strings' length": (
        gguf_file(entries=[entry("k", ARRAY, u32(STRING) + u64(HUGE))]),
        ["file ends at"],
    ),
    "array's type": (gguf_file(entries=[entry("k", ARRAY, u32(99) + u64(HUGE))]), ["99"]),
    "array in array in array": (
        gguf_file(entries=[entry("k", ARRAY, (u32(ARRAY) + u64(1)) * 5000)]),
        ["recursion"],
    ),
    "alignment": (
        gguf_file(entries=[entry("general.alignment", UINT32, u32(48))]),
        ["alignment"],
    ),
    "alignment 0": (
        gguf_file(entries=[entry("general.alignment", UINT32, u32(0))]),
        ["alignment"],
    ),
    "alignment's type": (
        gguf_file(entries=[entry("general.alignment", STRING, text("32"))]),
        ["general.alignment"],
    ),
    "tensor's name": (gguf_file(tensors=[u64(HUGE) + b"name and more bytes"]), ["file ends at"]),
    "many axes": (gguf_file(tensors=[text("a") + u32(2**32 - 1) + bytes(20)]), ["file ends at"]),
    "large empty tensor": (
        gguf_file(tensors=[tensor(shape=(0, 2**60))]),
        ["shape"],
    ),
    "product beyond 64 bits": (gguf_file(tensors=[tensor(shape=(2**32, 2**32))]), ["a"]),
    "large tensor": (gguf_file(tensors=[tensor(shape=(2**30, 2**30))]), ["file ends at"]),
    "unknown type": (gguf_file(tensors=[tensor(kind=4)]), ["a", "4"]),
    "undecodable type": (
        gguf_file(tensors=[tensor(shape=(32,), kind=9)], data=bytes(40)),
        ["a", "Q8_1"],
    ),
    "not whole blocks": (gguf_file(tensors=[tensor(shape=(2, 33), kind=Q8_0)]), ["block size"]),
    "offset beyond the file": (gguf_file(tensors=[tensor(offset=HUGE)]), ["file ends at"]),
    "offset that wraps": (gguf_file(tensors=[tensor(offset=2**64 - 32)]), ["overflow"]),
    "half a tensor": (gguf_file(tensors=[tensor(shape=(2, 4))]), ["file ends at"]),
    "name twice": (
        gguf_file(tensors=[tensor(), tensor(offset=32)], data=bytes(64)),
        ["duplicated", "a"],
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case, load, tmp_path):
    data, words = MALFORMED[case]
    with pytest.raises(ValueError, match=says(*words)) as caught:
        load(data)
    assert type(caught.value) is ValueError
    assert str(caught.value).startswith(f"{tmp_path / 'model.gguf'}: ")


def test_every_truncation(load):
    whole = gguf_file(entries=[*ENTRIES, entry("k", ARRAY, u32(STRING) + u64(1) + text("ab"))])
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=re.escape("model.gguf: ")):
            load(whole[:length])


def outcome(load, data):
    try:
        return load(data)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF])
def test_damage(change, load, tmp_path):
    """Whichever byte changes, the result is arrays or a ValueError that names the file."""
    whole = gguf_file(tensors=[tensor(shape=(2, 32), kind=Q8_0)], data=bytes(range(68)))
    told = set()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= change
        result = outcome(load, damaged)
        if isinstance(result, str):
            assert result.startswith(f"{tmp_path / 'model.gguf'}: ")
            told.add(result)
        else:
            assert all(isinstance(array, np.ndarray) for array in result[0].values())
    assert len(told) > 10


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (None, TypeError),
        (7, TypeError),
        ("", ValueError),
        ("a\0b", ValueError),
        ("missing.gguf", FileNotFoundError),
        (".", OSError),
    ],
)
@pytest.mark.parametrize("reader", ["load_gguf", "load_safetensors"])
def test_paths(path, error, reader):
    with pytest.raises(error, match="path" if error in (TypeError, ValueError) else None):
        getattr(regard.checkpoints, reader)(path)


@pytest.mark.parametrize("place", ["/dev/null", "/dev/zero", "pipe"])
@pytest.mark.parametrize("reader", ["load_gguf", "load_safetensors"])
def test_what_is_no_plain_file(reader, place, tmp_path, output_of):
    """The test runs in a separate process, since opening a pipe may wait forever."""
    if sys.platform == "win32":
        pytest.skip("Windows has no such files")
    if place == "pipe":
        place = str(tmp_path / place)
        os.mkfifo(place)
    script = f"""
    import regard
    try:
        regard.checkpoints.{reader}({place!r})
    except ValueError as error:
        print(error)
    """
    told = f"{place}: is not a plain file, but a device, a pipe or a socket"
    assert output_of(script).strip() == told


def test_bytes_and_strings_are_paths(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_file())
    for name in (str(path), os.fsencode(path)):
        assert list(regard.checkpoints.load_gguf(name)[0]) == ["a"]
