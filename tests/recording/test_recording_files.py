"""Test files of recordings: they preserve all bits, are written completely or not at all, and
reveal damage."""

import json
import os
import struct

import numpy as np
import pytest

import regard

safetensors = pytest.importorskip("safetensors", reason='pip install ".[models]"')

RNG = np.random.default_rng(0)


def drawn(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def layer(name="one", dtype=np.float32, mask=None, **options):
    query, key = drawn(2, 4, 6, 8, dtype=dtype), drawn(2, 2, 5, 8, dtype=dtype)
    return regard.RecordedLayer(name, query, key, mask, **options)


BLOCKS = regard.masks.random_blocks(6, 5, blocks_per_row=1, block=(2, 3), rng=0)
LAYERS = {
    "plain": lambda: layer(),
    "bfloat16": lambda: layer(dtype=pytest.importorskip("ml_dtypes").bfloat16),
    "name": lambda: layer('encoder.0 "ä"\n'),
    "bool mask": lambda: layer(mask=RNG.random((2, 1, 6, 5)) < 0.5),
    "float mask": lambda: layer(mask=drawn(6, 5, dtype=np.float64)),
    "both masks": lambda: layer(mask=(RNG.random((6, 5)) < 0.5, drawn(4, 6, 5))),
    "blocks": lambda: layer(mask=BLOCKS),
    "a view of blocks": lambda: layer(
        mask=regard.masks.random_blocks(9, 9, blocks_per_row=2, block=(2, 3), rng=0)[1:7, 3:8]
    ),
    "sparse and float": lambda: layer(
        mask=(regard.masks.documents([0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1]), drawn(6, 5))
    ),
    "stacked": lambda: layer(mask=regard.masks.stack([BLOCKS, BLOCKS])[:, None]),
    "numbers": lambda: layer(
        is_causal=True, query_offset=-1, window=(2, None), scale=0.1, softcap=7.5, key_lengths=4
    ),
    "arrays": lambda: layer(
        query_offset=np.array([0, 2]),
        key_lengths=np.array([5, 3], np.int32),
        left_padding=[1, 0],
        scale=drawn(4),
        softcap=[np.inf, 1.0, 2.0, 3.0],
        alibi_slopes=drawn(2, 4),
        distance_bias=drawn(4, 7),
        sinks=drawn(4),
    ),
    "texts": lambda: layer(
        query_tokens=list("abcdef"), key_tokens=["", "\0", "ä", "a b", "\ud800"]
    ),
    "token numbers": lambda: layer(key_tokens=[2**62, -1, 0, 1, 2]),
    "nothing": lambda: regard.RecordedLayer("a", np.ones((2, 0, 4)), np.ones((2, 0, 4))),
    "special numbers": lambda: regard.RecordedLayer(
        "a", np.array([[[np.nan, -0.0, np.inf]]]), np.array([[[5e-324, -np.inf, 1]]])
    ),
}


def bits(value):
    """Return what must be the same of a value in a file."""
    if isinstance(value, np.ndarray):
        is_text = value.dtype == object
        return value.dtype, value.shape, value.tolist() if is_text else value.tobytes()
    if isinstance(value, regard.masks.SparseMask):
        return type(value), value.to_dense().tolist()
    return type(value), value


def contents(one):
    masks = one.mask if isinstance(one.mask, tuple) else (one.mask,)
    values = (one.name, one.query, one.key, one.query_tokens, one.key_tokens, *masks)
    return [bits(value) for value in values], {k: bits(v) for k, v in one.options.items()}


@pytest.mark.parametrize("name", LAYERS)
def test_the_same_bits_again(name, tmp_path):
    one = LAYERS[name]()
    path = tmp_path / "one.safetensors"
    regard.Recording([one, layer("two")]).save(path)
    loaded = regard.Recording.load(path)
    assert len(loaded) == 2
    assert contents(loaded[0]) == contents(one)
    again = tmp_path / "again.safetensors"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_what_layers_share_is_stored_once(tmp_path):
    mask, texts = np.ones((6, 5), bool), np.array(list("abcde"), object)
    texts.flags.writeable = False
    whole = regard.Recording(layer(str(i), mask=mask, key_tokens=texts) for i in range(5))
    assert whole.nbytes == 5 * (2 * 4 * 6 * 8 + 2 * 2 * 5 * 8) * 4 + 30 + texts.nbytes
    whole.save(tmp_path / "one")
    loaded = regard.Recording.load(tmp_path / "one")
    assert loaded.nbytes == whole.nbytes
    assert np.shares_memory(loaded[0].mask, loaded[4].mask)
    header = header_of((tmp_path / "one").read_bytes())[0]
    assert json.loads(header["__metadata__"]["regard.recording"])["tokens"] == [list("abcde")]


def test_an_existing_file_stays_unless_it_may_be_replaced(tmp_path):
    whole, path = regard.Recording([layer()]), tmp_path / "one"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        whole.save(path)
    assert path.read_text() == "mine"
    whole.save(path, overwrite=True)
    assert len(regard.Recording.load(path)) == 1
    assert os.listdir(tmp_path) == ["one"]


def test_a_score_function_is_refused(tmp_path):
    @regard.ScoreFunction.c_type("float32")
    def unchanged(*_):
        pass

    one = layer("the layer", score_function=regard.ScoreFunction(unchanged))
    with pytest.raises(ValueError, match="layer 'the layer' has a score_function, whose address"):
        regard.Recording([layer(), one]).save(tmp_path / "one")
    assert os.listdir(tmp_path) == []


def header_of(data):
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def changed(data, change):
    """Return a file whose facts a function has changed."""
    header, arrays = header_of(data)
    facts = json.loads(header["__metadata__"]["regard.recording"])
    facts = change(facts) or facts
    header["__metadata__"]["regard.recording"] = json.dumps(facts)
    return with_header(header, arrays)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "one"
    one = layer(mask=BLOCKS, key_tokens=list("abcde"), sinks=drawn(4), window=(2, 1))
    regard.Recording([one]).save(path)
    return path.read_bytes()


def of_layer(**fields):
    return lambda facts: facts["layers"][0].update(fields)


def of_mask(**fields):
    return lambda facts: facts["layers"][0]["masks"]["bool"].update(fields)


DAMAGES = [
    lambda facts: {"layers": []},
    lambda facts: facts | {"version": 2},
    of_layer(name=3),
    of_layer(query="0.sinks"),
    of_layer(key="0.bool_mask.spans"),
    of_layer(options={"window": "wide"}),
    of_layer(options={"key_lengths": 9}),
    lambda facts: facts["tokens"][0].pop() and None,
    of_layer(key_tokens=4),
    lambda facts: facts.update(tokens=[[1.5] * 5]),
    of_mask(sparse="Dots"),
    of_mask(shape=[-6, 5]),
    of_mask(numbers=[2, -1, 0]),
    of_mask(numbers=[2, 2**40, 0]),
    of_mask(planes=[-3]),
    of_mask(starts="0.bool_mask.bits"),
    of_mask(spans="0.sinks"),
]


def test_damage_is_noticed(saved, tmp_path):
    path = tmp_path / "one"
    for change in DAMAGES:
        path.write_bytes(changed(saved, change))
        with pytest.raises(ValueError, match=r"one: is (a damaged recording|not a)"):
            regard.Recording.load(path)


@pytest.mark.parametrize("field", ["starts", "spans"])
@pytest.mark.parametrize("number", [-1, -5, 3, 2**40, -(2**62)])
def test_damaged_sparse_masks_are_refused_or_harmless(field, number, saved, tmp_path):
    """Any element of their arrays may be damaged: kernels must not read beyond an array."""
    header, arrays = header_of(saved)
    begin, end = header[f"0.bool_mask.{field}"]["data_offsets"]
    refused = []
    for place in range(begin, end, 8):
        data = bytearray(arrays)
        data[place : place + 8] = struct.pack("<q", number)
        path = tmp_path / "one"
        path.write_bytes(with_header(header, bytes(data)))
        try:
            loaded = regard.Recording.load(path)
        except ValueError as error:
            refused.append(str(error))
        else:
            loaded.summarize(statistics="max")
    assert refused
    assert all("is a damaged recording" in reason for reason in refused)


def test_files_that_are_no_recordings(saved, tmp_path):
    path = tmp_path / "one"
    header, arrays = header_of(saved)
    ends = [saved[: len(saved) * cut // 100] for cut in range(0, 100, 7)]
    for data in (*ends, b"hello", saved[:-1], saved + b"x", with_header({}, b"")):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="one: is not a"):
            regard.Recording.load(path)
    del header["__metadata__"]
    path.write_bytes(with_header(header, arrays))
    with pytest.raises(ValueError, match="is not a recording"):
        regard.Recording.load(path)
