"""GGUF files are read as they were written; damaged files are refused with the reason."""

import os
import sys

import numpy as np
import pytest

import regard
from gguf_files import (
    ARRAY,
    BOOL,
    DATA,
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

gguf = pytest.importorskip("gguf")


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
    for length in range(1, 33):  # the data begins at the next multiple of 32
        parameters, _ = load(gguf_file(entries=[entry("k" * length, UINT32, u32(length))]))
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


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
    finish(writer)

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
@pytest.mark.parametrize(
    ("shape", "kind"),  # 24: 8-bit integers
    [((0,), F32), ((0, 64), Q8_0), ((3, 0), F16), ((0, 0), 24), ((2, 0, 64), F32),
     ((0, 2**40), Q8_0)],
)  # fmt: skip
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
    finish(writer)
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


def test_parameters_whose_names_begin_so(load):
    tensors = [tensor("blk.1.a"), tensor("blk.10.a", offset=32), tensor("b", offset=64)]
    data = gguf_file(tensors=tensors, data=(DATA + bytes(8)) * 3)
    for prefix, names in (("blk.1.", ["blk.1.a"]), ("blk.1", ["blk.1.a", "blk.10.a"])):
        parameters, metadata = load(data, prefix)
        assert metadata == {"size": 7, "name": "tiny"}
        assert list(parameters) == names
        assert all(np.array_equal(array, NUMBERS) for array in parameters.values())


def test_a_tensor_that_cannot_be_decoded_does_not_refuse_the_others(load):
    data = gguf_file(tensors=[tensor("q", (32,), kind=9), tensor(offset=64)], data=bytes(64) + DATA)
    with pytest.warns(UserWarning, match="skipped") as told:
        parameters, _ = load(data)
    assert list(parameters) == ["a"]
    assert np.array_equal(parameters["a"], NUMBERS)
    assert "tensor 'q' has type Q8_1" in str(told[0].message)
    assert list(load(data, "a")[0]) == ["a"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_what_is_no_plain_file(tmp_path, output_of):
    """The test runs in a separate process, since opening a pipe may wait forever."""
    os.mkfifo(tmp_path / "pipe")
    script = f"""
    import regard
    for place in ("/dev/null", "/dev/zero", {str(tmp_path / "pipe")!r}):
        for load in (regard.checkpoints.load_gguf, regard.checkpoints.load_safetensors):
            try:
                load(place)
            except ValueError as error:
                assert str(error).startswith(place + ": is not a plain file")
                print("refused")
    """
    assert output_of(script).split() == ["refused"] * 6
