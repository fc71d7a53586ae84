"""safetensors files are read as they were written; damaged files are refused with the reason."""

import json
import struct

import numpy as np
import pytest

import regard
from messages import says
from reference import assert_same_bits


def safetensors_file(header, data=b""):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


def one(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.fixture
def path(tmp_path):
    pytest.importorskip("safetensors", reason="pip install '.[models]'")
    return tmp_path / "model.safetensors"


@pytest.fixture
def load(path):
    def load(data, *prefix):
        path.write_bytes(data)
        return regard.checkpoints.load_safetensors(path, *prefix)

    return load


@pytest.mark.parametrize("weight_dtype", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "F64"])
def test_matrices_in_fewer_bits(kind, weight_dtype, path):
    """Reading a few rows at a time gives the same numbers as reading the whole tensor."""
    types = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F64": np.float64}
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((700, 600))
    if kind == "BF16":
        pytest.importorskip("ml_dtypes")
        data = (floats.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        data = floats.astype(types[kind])
    arrays = {"m": data, "v": data[0].copy(), "t": data[:4].reshape(2, 2, 600), "e": data[:0]}
    header, blob = {}, b""
    for name, array in arrays.items():
        start, blob = len(blob), blob + array.tobytes()
        offsets = [start, len(blob)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
    header["n"] = {"dtype": "I8", "shape": [2, 2], "data_offsets": [len(blob), len(blob) + 4]}
    path.write_bytes(safetensors_file(header, blob + bytes(4)))
    plain, _ = regard.checkpoints.load_safetensors(path)
    kept, _ = regard.checkpoints.load_safetensors(path, weight_dtype=weight_dtype)
    for name in "vtn":
        assert_same_bits(kept[name], plain[name])
    for name in "me":
        if weight_dtype == "int8":
            wanted = regard.QuantizedWeight(plain[name])
            assert_same_bits(kept[name].numbers, wanted.numbers)
            assert_same_bits(kept[name].scales, wanted.scales)
        else:
            assert kept[name].dtype.name == weight_dtype
            assert_same_bits(kept[name], plain[name].astype(kept[name].dtype))


def test_matrices_that_cannot_be_kept_in_fewer_bits(path):
    data = np.ones((2, 2), np.float32)
    data[1, 0] = np.inf
    header = {"big": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    path.write_bytes(safetensors_file(header, data.tobytes()))
    with pytest.raises(ValueError, match=says(str(path), "big", "finite", "int8", "inf")):
        regard.checkpoints.load_safetensors(path, weight_dtype="int8")
    kept, _ = regard.checkpoints.load_safetensors(path, weight_dtype="float16")
    assert np.isinf(kept["big"][1, 0])
    data[1, 0] = 1e6
    path.write_bytes(safetensors_file(header, data.tobytes()))
    with pytest.raises(ValueError, match=says(str(path), "big", "float16", "large")):
        regard.checkpoints.load_safetensors(path, weight_dtype="float16")


KINDS = ["float64", "float32", "int64", "uint32", "int16", "uint8", "bool"]


def test_what_the_package_writes(path):
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    arrays = {kind: (9 * rng.standard_normal((2, 0, 5))).astype(kind) for kind in KINDS[:1]}
    arrays |= {f"{kind}s": (9 * rng.standard_normal((3, 5))).astype(kind) for kind in KINDS}
    arrays["scalar"] = np.array(3.0)
    save_file(arrays, path, {"format": "np"})
    parameters, metadata = regard.checkpoints.load_safetensors(path)
    assert metadata == {"format": "np"}
    assert parameters.keys() == arrays.keys()
    for name, array in arrays.items():
        assert parameters[name].dtype == array.dtype
        assert np.array_equal(parameters[name], array)
        assert parameters[name].flags.writeable


def test_narrow_floats_widen_exactly(load):
    halves = np.array([1 / 3, -65504, 6e-8, np.inf], np.float16)
    array = load(safetensors_file(one("F16", (4,)), halves.tobytes()))[0]["a"]
    assert array.dtype == np.float32
    assert np.array_equal(array, halves.astype(np.float32))
    brain = np.array([1.5, -3e38, 1e-40, np.inf], np.float32).view(np.uint32) >> 16
    array = load(safetensors_file(one("BF16", (2, 2)), brain.astype("<u2").tobytes()))[0]["a"]
    assert array.dtype == np.float32
    assert np.array_equal(array.ravel().view(np.uint32), brain << 16)


def test_shards_of_an_index(path):
    files = {"a": "1.safetensors", "b.x": "2.safetensors", "b.y": "1.safetensors"}
    folder, index = path.parent, path.with_name("model.safetensors.index.json")
    index.write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": files}))
    for number in "12":
        with pytest.raises(FileNotFoundError, match=f"{number}.safetensors"):
            regard.checkpoints.load_safetensors(folder)
        both = one() | {"b." + " yx"[int(number)]: one(offsets=(8, 16))["a"]}
        data = np.arange(4, dtype=np.float32) + int(number)
        (folder / f"{number}.safetensors").write_bytes(safetensors_file(both, data.tobytes()))
    for path in (folder, index):
        parameters, metadata = regard.checkpoints.load_safetensors(path)
        assert {name: list(array) for name, array in parameters.items()} == {
            "a": [1, 2], "b.x": [4, 5], "b.y": [3, 4]
        }  # fmt: skip
        assert metadata == {"total_size": 24}
        assert regard.checkpoints.load_safetensors(path, "b.")[0].keys() == {"b.x", "b.y"}
    index.write_text(json.dumps({"weight_map": files | {"c": "2.safetensors"}}))
    with pytest.raises(ValueError, match=says("weight_map", "c in ", "2.safetensors")):
        regard.checkpoints.load_safetensors(index)
    for content in ("[", "[]", '{"weight_map": ["a"]}'):
        index.write_text(content)
        with pytest.raises(ValueError, match=says(str(index))):
            regard.checkpoints.load_safetensors(folder)


def test_parameters_whose_names_begin_so(load):
    numbers = np.arange(3, dtype=np.float32)
    names = ["encoder.1.self", "encoder.10", "encoder"]
    header = {"__metadata__": {"epoch": "3"}}
    for i, name in enumerate(names):
        header |= {name: one(shape=(1,), offsets=(4 * i, 4 * i + 4))["a"]}
    data = safetensors_file(header, numbers.tobytes())
    for prefix, places in (("", [0, 1, 2]), ("encoder.1", [0, 1]), ("encoder.1.", [0])):
        parameters, metadata = load(data, prefix)
        assert metadata == {"epoch": "3"}
        assert {name: array[0] for name, array in parameters.items()} == {
            names[place]: place for place in places
        }


FLOAT8 = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


@pytest.mark.parametrize("kind", FLOAT8)
def test_float8_widens_exactly(kind, load):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    every = np.arange(256, dtype=np.uint8)
    array = load(safetensors_file(one(kind, (16, 16), (0, 256)), every.tobytes()))[0]["a"]
    assert array.dtype == np.float32
    with np.errstate(invalid="ignore"):
        wanted = every.view(getattr(ml_dtypes, FLOAT8[kind])).astype(np.float64)
    np.testing.assert_array_equal(array.ravel(), wanted)
    assert np.isfinite(array).sum() > 200


UNREADABLE = one() | {
    "b": {"dtype": "F4", "shape": [4], "data_offsets": [8, 10]},
    "c": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [10, 13]},
    "d": {"dtype": "F32", "shape": [1], "data_offsets": [13, 17]},
}


def test_a_tensor_of_an_unknown_type_does_not_refuse_the_others(load, path):
    data = safetensors_file(UNREADABLE, bytes(8) + bytes(5) + np.float32(2).tobytes())
    with pytest.warns(UserWarning, match="skipped") as told:
        parameters, _ = load(data)
    assert list(parameters) == ["a", "d"]
    assert parameters["d"] == 2
    (warning,) = told
    for part in (str(path), "'b' has type F4", "'c' has type F6_E2M3"):
        assert part in str(warning.message)
    assert warning.filename == __file__
    assert list(load(data, "a")[0]) == ["a"]
    with pytest.raises(ValueError, match=says("b", "F4")):
        load(data, "b")
