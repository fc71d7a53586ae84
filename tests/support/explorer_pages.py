"""Pages of `regard.explore`, read as their format says, and problems to make them of."""

import base64
import gzip
import json
import re

import numpy as np

BLOB = re.compile(rb'<script type="application/octet-stream;base64" id="([^"]+)">([^<]*)</script>')
FACTS = re.compile(rb'<script type="application/json" id="facts">(.*?)</script>', re.DOTALL)


class Page:
    """A page, read as its format says and not as its program does."""

    def __init__(self, explorer, folder):
        self.path = folder / "page.html"
        explorer.save(self.path, overwrite=True)
        self.bytes = self.path.read_bytes()
        self.facts = json.loads(FACTS.search(self.bytes)[1])
        self._blobs = dict(BLOB.findall(self.bytes))

    def arrays(self, name, described):
        raw = gzip.decompress(base64.b64decode(self._blobs[name.encode()]))
        found, start = {}, 0
        for label, kind, shape in described:
            dtype = np.dtype(f"<{kind[0]}{int(kind[1:]) // 8}")
            count = int(np.prod(shape))
            planes = np.frombuffer(raw, np.uint8, count * dtype.itemsize, start)
            start += planes.size
            ordered = np.ascontiguousarray(planes.reshape(dtype.itemsize, count).T)
            found[label] = ordered.view(dtype).reshape(shape)
        assert start == len(raw)
        return found

    def map(self, layer, head):
        described = self.facts["layers"][layer]["heads"][head]["map"]
        return self.arrays(f"map-{layer}.{head}", described)

    def rows(self, layer, head):
        described = self.facts["layers"][layer]["heads"][head]["rows"]
        return self.arrays(f"rows-{layer}.{head}", described)


def problem(q_len=40, kv_len=40, heads=4, kv_heads=2, layers=(), seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    query = 2 * rng.standard_normal((*layers, heads, q_len, 16))
    key = rng.standard_normal((*layers, kv_heads, kv_len, 16))
    return query.astype(dtype), key.astype(dtype)
