"""The page: one HTML file, whose source is in the folder `page`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from regard._arguments.arrays import bytes_of
from regard._runtime.public import public
from regard._runtime.saving import write_whole
from regard._show.colors import diverging, sequential

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# In the order of the page: each script uses only the scripts before it.
SCRIPTS = (
    "payload",
    "scale",
    "text",
    "state",
    "overview",
    "picture",
    "tiles",
    "axes",
    "drawing",
    "pointer",
    "row",
    "arcs",
    "charts",
    "search",
    "keyboard",
    "main",
)
_MOST_BYTES_IN_A_NOTEBOOK = 5_000_000


@public
class Explorer:
    """A page to explore the attention of one or more layers in a browser.

    `regard.explore` returns it. A notebook shows the page if it has at most 5 MB, if necessary
    without its tiles.
    """

    def __init__(self, facts: dict[str, Any], blobs: Sequence[tuple[str, bytes]]) -> None:
        self._facts = facts
        self._overview, *self._blobs = blobs
        self._head, self._tail = _frame(facts, _element(*self._overview))

    @property
    def nbytes(self) -> int:
        """The size of the page in bytes."""
        return sum(map(len, self._parts()))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page to a file.

        The file needs no other files and no network. The same arguments of `regard.explore` produce
        the same bytes.

        Parameters
        ----------
        path : str or path
            The file to write, such as ``"page.html"``.
        overwrite : bool, default False
            Whether to replace an existing file.

        Raises
        ------
        FileExistsError
            If the file exists and `overwrite` is False.
        OSError
            If the folder does not exist or the file cannot be written, as on a full disk. An
            existing file remains unchanged.
        TypeError
            If `path` is not a path, or `overwrite` is not a bool.
        ValueError
            If `path` is empty or contains a null character.
        """
        write_whole(path, self._parts(), overwrite)

    def __repr__(self) -> str:
        layers = self._facts["layers"]
        heads = sum(len(layer["heads"]) for layer in layers)
        tiles = sum(len(head["tiles"]) for layer in layers for head in layer["heads"])
        words = [
            _count(len(layers), "layer"),
            _count(heads, "head"),
            f"q_len={self._facts['q_len']}",
            f"kv_len={self._facts['kv_len']}",
            *([_count(tiles, "tile")] if tiles else []),
            bytes_of(self.nbytes),
        ]
        return f"Explorer({', '.join(words)})"

    def _repr_html_(self) -> str:
        import html

        shown = self if self.nbytes <= _MOST_BYTES_IN_A_NOTEBOOK else self._without_tiles()
        if shown.nbytes > _MOST_BYTES_IN_A_NOTEBOOK:
            return (
                f"<p>{html.escape(repr(self))}<br>This page is too large for a notebook: "
                '<code>.save("page.html")</code> writes it to a file, for a browser to open.</p>'
            )
        page = html.escape(b"".join(shown._parts()).decode())
        return (
            '<iframe sandbox="allow-scripts" title="Attention, explored" width="100%" height="760" '
            f'style="border:1px solid #8886;border-radius:6px" srcdoc="{page}"></iframe>'
        )

    def _without_tiles(self) -> Explorer:
        layers = [
            layer | {"heads": [head | {"tiles": []} for head in layer["heads"]]}
            for layer in self._facts["layers"]
        ]
        blobs = [(name, blob) for name, blob in self._blobs if not name.startswith("tile-")]
        return Explorer(self._facts | {"layers": layers}, [self._overview, *blobs])

    def _parts(self) -> Iterator[bytes]:
        """Yield the bytes of the page."""
        yield self._head
        for name, blob in self._blobs:
            yield _element(name, blob)
        yield self._tail


def _element(name: str, blob: bytes) -> bytes:
    return b'<script type="application/octet-stream;base64" id="%s">%s</script>\n' % (
        name.encode(),
        blob,
    )


def _frame(facts: dict[str, Any], overview: bytes) -> tuple[bytes, bytes]:
    """Return the parts of a page before and after the blobs of the heads.

    The program precedes the blobs, so that it draws the overview while they are read.
    """
    from importlib.resources import files

    def source(name: str) -> str:
        return files(__package__).joinpath("page", name).read_text(encoding="utf-8")

    colors = {
        theme: {"sequential": sequential(theme).tolist(), "diverging": diverging(theme).tolist()}
        for theme in ("light", "dark")
    }
    program = "\n".join(source(f"{name}.js").rstrip() for name in SCRIPTS)
    filled = (
        source("page.html")
        .replace("/*style*/", source("style.css").rstrip())
        .replace("/*program*/", f'"use strict";\n(() => {{\n{program}\n}})();')
    )
    before, _, after = filled.partition("<!--heads-->\n")
    before = before.replace("<!--overview-->\n", overview.decode())
    # Last, because the caller's texts could contain the other marks.
    before = before.replace("/*facts*/", json_in_html({**facts, "colors": colors}))
    return before.encode(), after.encode()


def json_in_html(value: Any) -> str:
    """Return JSON that a script element can contain: no text in it ends the element.

    The JSON contains only ASCII, so that surrogates and line separators are escaped too.
    """
    import json

    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _count(number: int, name: str) -> str:
    return f"{number} {name}" + "s" * (number != 1)
