"""Pages of `regard.explore`, read according to their format, and problems to make them from."""

import base64
import gzip
import json
import re

import numpy as np

import regard

BLOB = re.compile(rb'<script type="application/octet-stream;base64" id="([^"]+)">([^<]*)</script>')
FACTS = re.compile(rb'<script type="application/json" id="facts">(.*?)</script>', re.DOTALL)


class Page:
    """A page, read according to its format and not by its own program."""

    def __init__(self, explorer, folder):
        self.path = folder / "page.html"
        explorer.save(self.path, overwrite=True)
        self.bytes = self.path.read_bytes()
        self.facts = json.loads(FACTS.search(self.bytes)[1])
        self._blobs = dict(BLOB.findall(self.bytes))

    def arrays(self, name, described):
        raw = gzip.decompress(base64.b64decode(self._blobs[name.encode()]))
        found, start = {}, 0
        for label, kind, shape, exponent in described:
            dtype = np.dtype(f"<{kind[0]}{int(kind[1:]) // 8}")
            count = int(np.prod(shape))
            planes = np.frombuffer(raw, np.uint8, count * dtype.itemsize, start)
            start += planes.size
            ordered = np.ascontiguousarray(planes.reshape(dtype.itemsize, count).T)
            numbers = ordered.view(dtype).reshape(shape)
            found[label] = np.ldexp(numbers.astype("f4"), exponent) if kind[0] == "f" else numbers
        assert start == len(raw)
        return found

    def head(self, layer, head):
        return self.facts["layers"][layer]["heads"][head]

    def map(self, layer, head):
        return self.arrays(f"map-{layer}.{head}", self.head(layer, head)["map"])

    def rows(self, layer, head):
        return self.arrays(f"rows-{layer}.{head}", self.head(layer, head)["rows"])

    def tiles(self, layer, head):
        """Return the bounds and the arrays of each tile."""
        found = []
        for number, entry in enumerate(self.head(layer, head)["tiles"]):
            (first, end, first_key, end_key), rest = entry[:4], entry[4:]
            if len(rest) == 1:
                described = [("weights", "f16", (end - first, end_key - first_key), *rest)]
            else:
                described = [(name, "u8", rest, 0) for name in ("max", "mean")]
            found.append((entry[:4], self.arrays(f"tile-{layer}.{head}.{number}", described)))
        return found


TOKENS = [f" word{i % 9}" for i in range(40)]


def problem(q_len=40, kv_len=40, heads=4, kv_heads=2, layers=(), seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    query = 2 * rng.standard_normal((*layers, heads, q_len, 16))
    key = rng.standard_normal((*layers, kv_heads, kv_len, 16))
    return query.astype(dtype), key.astype(dtype)


# Tiles of single weights have 8 significant bits.
TILE_ERROR = 2**-8 + 2**-11


def weights_of(query, key, **options):
    value = np.zeros((*key.shape[:-1], 1), key.dtype)
    call = regard.scaled_dot_product_attention
    return call(query, key, value, return_weights=True, **options)[1].astype(float)


def blocks(part, rows, columns, reduce):
    """Reduce blocks, given how many there are along each axis or where they begin and end."""
    edges = [
        np.arange(given + 1) * length // given if np.ndim(given) == 0 else given
        for length, given in zip(part.shape, (rows, columns), strict=True)
    ]
    return np.array(
        [
            [reduce(part[a:b, c:d]) for c, d in zip(edges[1], edges[1][1:], strict=False)]
            for a, b in zip(edges[0], edges[0][1:], strict=False)
        ]
    )


def settled(page):
    """Wait until a browser has drawn what was requested."""
    page.evaluate(
        """async () => {
            const frame = () => new Promise(requestAnimationFrame);
            const main = document.querySelector("main");
            for (let calm = 0; calm < 2; calm = main.ariaBusy === "false" ? calm + 1 : 0)
                await frame();
        }"""
    )


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)
        settled(page)


def address(page):
    words = page.evaluate("[...new URLSearchParams(location.hash.slice(1))]")
    return dict(words)


def drawn(page, rows, columns):
    """Return the color in the middle of each cell of the picture's plot."""
    return np.array(
        page.evaluate(
            """([rows, columns]) => {
                const canvas = document.getElementById("picture");
                const [left, top, width, height] = canvas.dataset.plot.split(" ").map(Number);
                const pen = canvas.getContext("2d");
                const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
                const found = [];
                for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
                    const x = Math.floor(left + (c + 0.5) * width / columns);
                    const y = Math.floor(top + (r + 0.5) * height / rows);
                    found.push([...data.subarray(4 * (y * canvas.width + x)).subarray(0, 3)]);
                }
                return found;
            }""",
            [rows, columns],
        )
    ).reshape(rows, columns, 3)


def indices(weights):
    """Return the level of a weight on the page's logarithmic scale."""
    bounded = np.clip(weights.astype(np.float32).astype(float), 1e-6, 1)
    return np.rint(254 * (np.log10(bounded) + 6) / 6).astype(int)


def alike(colors, table, wanted):
    """Allow the neighboring color if a logarithm in the browser rounds differently."""
    away = np.abs(colors - table[wanted].astype(int)).max(axis=-1)
    assert np.mean(away == 0) > 0.98
    near = [
        np.abs(colors - table[np.clip(wanted + step, 0, 254)].astype(int)).max(axis=-1)
        for step in (-1, 0, 1)
    ]
    assert np.min(near, axis=0).max() == 0


def close_levels(levels, weights):
    """Allow the next level: the kernels' pooled means round differently."""
    wanted = indices(weights)
    assert np.abs(levels.astype(int) - wanted).max() <= 1
    assert np.mean(levels == wanted) > 0.99
