"""The page: one HTML file, whose source is in the folder `page`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from regard._explore._plan import size_in_words
from regard._runtime.public import public
from regard._runtime.saving import write_whole
from regard._show.colors import diverging, sequential

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from regard._explore._server import ExplorerServer
    from regard._explore._tile_source import TileSource

# In the order of the page: each script uses only the scripts before it.
SCRIPTS = (
    "payload",
    "scale",
    "text",
    "state",
    "overview",
    "picture",
    "tiles",
    "served",
    "axes",
    "drawing",
    "readout",
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

    def __init__(
        self,
        facts: dict[str, Any],
        blobs: Sequence[tuple[str, bytes]],
        source: TileSource | None = None,
    ) -> None:
        self._facts = facts
        self._source = source
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

    def serve(self, port: int = 0, *, open_browser: bool = False) -> ExplorerServer:
        """Serve the page to browsers on this machine, with exact tiles of all parts.

        This method is experimental. The page shows finer pictures wherever it is zoomed in, down to
        single weights. The server computes them from the arrays of the `explore` call when they are
        viewed. The arrays must not change, and remain in memory as long as the `Explorer`. Pages of
        an unpickled `Explorer`, and pages whose pictures show each weight, are served as they are
        saved.

        Parameters
        ----------
        port : int, default 0
            The port to listen on. 0 lets the operating system choose one.
        open_browser : bool, default False
            Whether to open the page in the default browser.

        Returns
        -------
        ExplorerServer
            A server that runs in separate threads: ``url`` is the address of the page, ``close()``
            stops the server, and ``wait()`` waits for Ctrl-C.

        Raises
        ------
        OSError
            If the port cannot be used.
        TypeError
            If an argument has the wrong type.
        ValueError
            If `port` is not from 0 to 65535.

        Notes
        -----
        The server listens on 127.0.0.1 only. Its addresses contain a random token, without which
        nothing is answered, and requests for other hosts are refused. Only the page and its tiles
        can be read; no request changes anything or names a file.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> query, key = np.random.default_rng(0).standard_normal((2, 4, 1000, 32))
        >>> with regard.explore(query, key, is_causal=True).serve() as server:
        ...     print(server.url.partition(":")[0])  # server.wait() waits for Ctrl-C
        http
        """
        from regard._explore._server import ExplorerServer, checked_port, open_in_browser

        port = checked_port(port, open_browser)
        shown = self
        if self._source is not None and self._source.levels:
            shown = self._without_tiles()
            levels = [[each.rows, each.columns, each.is_exact] for each in self._source.levels]
            shown = Explorer(shown._facts | {"levels": levels}, [shown._overview, *shown._blobs])
        server = ExplorerServer(b"".join(shown._parts()), self._source, port)
        if open_browser:
            open_in_browser(server.url)
        return server

    def __getstate__(self) -> dict[str, Any]:
        # A pickle contains the page, without the arrays of the call.
        return {**self.__dict__, "_source": None}

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
            size_in_words(self.nbytes),
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
    # A saved page makes no connections.
    connections = "; connect-src 'self'" if "levels" in facts else ""
    filled = filled.replace("/*connections*/", connections)
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
