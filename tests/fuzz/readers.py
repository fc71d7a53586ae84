"""Code that reads bytes, or arguments, that regard has not made itself.

Each reader draws an input, feeds it, and raises `Fault` if the outcome is not allowed. Allowed
outcomes are a result, or a ValueError or an OSError that names the file.
"""

import contextlib
import json
import math
import random
import struct
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

import arguments
import gguf_files as gguf_bytes
import mutate
import regard

EXAMPLES = Path(__file__).parents[2] / "examples"


class Fault(Exception):
    """An outcome that is not allowed."""


class FileReader:
    """A function that reads a file, and initial files."""

    allowed = (ValueError, OSError)

    def __init__(self, folder):
        self.path = Path(folder) / "input"
        self.files = self.begin()

    def draw(self, chance):
        return mutate.mutated(chance, self.files)

    def feed(self, data):
        self.path.write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", f"{self.path}: skipped", UserWarning)
                self.read()
        except self.allowed as error:
            if str(self.path) not in str(error):
                raise Fault(f"an error that does not name the file: {error!r}") from error
            if self.path.read_bytes() != data:
                raise Fault(f"a refused file has changed: {error!r}") from error
            return False
        return True


class Gguf(FileReader):
    needs = ("gguf",)

    def begin(self):
        entry, u32, u64, text = (getattr(gguf_bytes, n) for n in ("entry", "u32", "u64", "text"))
        array, string, number = gguf_bytes.ARRAY, gguf_bytes.STRING, gguf_bytes.UINT32
        more = [
            entry("real", gguf_bytes.FLOAT32, np.float32(0.1).tobytes()),
            entry("general.alignment", number, u32(32)),
            entry("numbers", array, u32(number) + u64(3) + u32(1, 2, 3)),
            entry("words", array, u32(string) + u64(2) + text("ü") + text("")),
            entry("nested", array, u32(array) + u64(1) + u32(gguf_bytes.BOOL) + u64(2) + b"\0\1"),
        ]
        kinds = [gguf_bytes.F32, gguf_bytes.F16, gguf_bytes.Q8_0, 2, 3, 10, 12, 14, 16, 24, 30, 34]
        every = [
            gguf_bytes.gguf_file(
                tensors=[gguf_bytes.tensor(shape=(1, 256), kind=kind)], data=bytes(range(256)) * 4
            )
            for kind in kinds
        ]
        two = [gguf_bytes.tensor(), gguf_bytes.tensor("b", (2,), offset=32)]
        return [
            gguf_bytes.gguf_file(),
            gguf_bytes.gguf_file(entries=more, tensors=[], data=b""),
            gguf_bytes.gguf_file(tensors=two, data=bytes(64)),
            *every,
        ]

    def read(self):
        regard.checkpoints.load_gguf(self.path)


class Safetensors(FileReader):
    needs = ("safetensors", "ml_dtypes")
    kinds = ("F64", "F32", "F16", "BF16", "I8", "U64", "BOOL", "C64", "F8_E4M3", "F8_E8M0", "F4")

    def begin(self):
        files = []
        for kind in self.kinds:
            info = {"a": {"dtype": kind, "shape": [2, 1], "data_offsets": [0, 16]}}
            files.append(self.file_of(info | {"__metadata__": {"x": "y"}}, bytes(range(16))))
        return files

    @staticmethod
    def file_of(info, data):
        text = json.dumps(info).encode()
        return struct.pack("<Q", len(text)) + text + data

    def draw(self, chance):
        if chance.random() < 0.4:
            return super().draw(chance)
        # A header that can be parsed, with values of any kind.
        values = [None, True, -1, 1.5, "x", [], {}, [0], [2**63], "F32", mutate.number(chance)]
        shape = [chance.randrange(4) for _ in range(chance.choice((0, 1, 2, 3, 70)))]
        kind = chance.choice(self.kinds)
        item = {"F64": 8, "U64": 8, "C64": 8, "F32": 4, "F16": 2, "BF16": 2}.get(kind, 1)
        size = math.prod(shape) * item
        entry = {"dtype": kind, "shape": shape, "data_offsets": [0, size]}
        if chance.random() < 0.5:
            entry[chance.choice(list(entry))] = chance.choice(values)
        tensors = {"a": entry}
        if chance.random() < 0.3:
            name = chance.choice(("__metadata__", "a", "b"))
            tensors[name] = chance.choice([{"a": "b"}, {"a": 1}, *values])
        return self.file_of(tensors, chance.randbytes(min(size, 4096)))

    def read(self):
        regard.checkpoints.load_safetensors(self.path)


class Ctranslate2(FileReader):
    needs = ()

    def begin(self):
        def text(string):
            return struct.pack("<H", len(string) + 1) + string.encode() + b"\0"

        files = []
        for kind, size in ((0, 4), (1, 1), (2, 2), (3, 4), (4, 2)):
            head = struct.pack("<I", 6) + text("Spec") + struct.pack("<II", 1, 1)
            values = bytes(range(6 * size))
            variable = text("a") + struct.pack("<BIIBI", 2, 2, 3, kind, len(values))
            alias = struct.pack("<I", 1) + text("b") + text("a")
            files.append(head + variable + values + alias)
        return files

    def read(self):
        if str(EXAMPLES) not in sys.path:
            sys.path.insert(0, str(EXAMPLES))
        from models.ctranslate2_file import load_ctranslate2

        load_ctranslate2(self.path)


class CacheFile(FileReader):
    """Caches in files, whose header or beginning is changed."""

    needs = ("safetensors",)
    kinds = (
        {},
        {"page_size": 16},
        {"keep_last": 20, "keep_first": 3, "page_size": 16},
        {"dtype": "int8", "page_size": 32},
        {"dtype": "float8_e4m3fn", "page_size": 32},
    )

    def begin(self):
        key, value = (np.arange(2 * 2 * 25 * dim).reshape(2, 2, 25, dim) % 7 for dim in (8, 5))
        files = []
        for options in self.kinds:
            cache = regard.KVCache(2, 2, 8, 5, **options)
            cache.append(key.astype("f4"), value.astype("f4"), lengths=[25, 7])
            cache.save(self.path)
            files.append(self.path.read_bytes())
            self.path.unlink()
        return files

    def draw(self, chance):
        data = bytearray(chance.choice(self.files))
        header = 8 + int.from_bytes(data[:8], "little")
        for _ in range(chance.choice((1, 1, 2, 3))):
            place = chance.randrange(header + 100)
            size = chance.choice((1, 1, 4, 8))
            number = chance.choice((mutate.number(chance), *b"0129[]{}"))
            data[place : place + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
        if chance.random() < 0.15:
            del data[chance.randrange(len(data)) :]
        self.is_mapped = chance.random() < 0.5
        return bytes(data)

    def read(self):
        with regard.KVCache.load(self.path, mmap=self.is_mapped) as cache:
            if cache.batch > 64 or len(cache) > 4096:
                return
            # The contents of an opened file can be read, and more can be appended.
            assert cache.keys.shape[0] == cache.batch
            query = np.ones((cache.batch, cache.num_kv_heads, 1, cache.head_dim), np.float32)
            if cache.head_dim > 256 or cache.num_kv_heads > 64:
                return
            if cache.lengths.max(initial=0) > 0:
                offset = np.maximum(cache.lengths - 1, 0)
                # After an undone append, the tokens that the last query sees may be evicted.
                with contextlib.suppress(ValueError):
                    cache.attend(query, query_offset=offset, threads=2)


class TrainingCheckpoint(FileReader):
    needs = ()
    place = "training"

    def begin(self):
        if str(EXAMPLES) not in sys.path:
            sys.path.insert(0, str(EXAMPLES))
        from training import run

        self.module, self.allowed = run, (run.CheckpointError,)
        fields = {name: np.arange(3) for name in run.FIELDS} | {"version": np.array(run.VERSION)}
        np.savez(self.path.with_suffix(".npz"), **fields)
        return [self.path.with_suffix(".npz").read_bytes()]

    def read(self):
        self.module.read_checkpoint(self.path)


READERS = {
    "gguf": Gguf,
    "safetensors": Safetensors,
    "ctranslate2": Ctranslate2,
    "cache": CacheFile,
    "training": TrainingCheckpoint,
    "arguments": arguments.Arguments,
}


def fuzz(name, inputs, seed=0, begin=0, told=lambda number: None):
    """Feed inputs to a reader. Return how many it accepted, or raise Fault with the input's
    number."""
    taken = 0
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        reader = READERS[name](folder)
        for number in range(begin, begin + inputs):
            told(number)
            given = reader.draw(random.Random(f"{seed} {name} {number}"))
            try:
                taken += reader.feed(given)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                shown = given.hex() if isinstance(given, bytes) and len(given) < 4096 else ""
                shown = shown or (repr(given) if not isinstance(given, bytes) else "")
                raise Fault(
                    f"{name}, seed {seed}, input {number}: {type(error).__name__}: {error} {shown}"
                ) from error
    return taken


def fast_folder():
    """Return a folder in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
