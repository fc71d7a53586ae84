"""A server of one page, for the browsers of this machine.

The server listens on the loopback interface only. Any process of the machine, and any web page that
a browser has open, can send requests there. Three checks keep them out:

* Every address begins with a token of 256 random bits, and nothing else is answered.
* The `Host` header must name this server. Otherwise, a foreign name that resolves to 127.0.0.1
  would give the scripts of a foreign page access (DNS rebinding).
* Responses may not be embedded, stored or guessed to be of another type.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from regard._arguments.numbers import count, flag
from regard._runtime.public import public

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard._explore._tile_source import TileSource

_ADDRESS = "127.0.0.1"
_OF_ROW = ("layer", "head", "level", "row")
_MOST_COLUMNS = 64
_SECONDS_OF_SILENCE = 60
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


@public
class ExplorerServer:
    """A running server of a page, returned by `Explorer.serve`. Experimental.

    It is a context manager that stops the server at the end of the block. A server that is not
    stopped ends with the process.
    """

    def __init__(self, page: bytes, source: TileSource | None, port: int) -> None:
        self._token = secrets.token_urlsafe(32)
        try:
            self._server = _Server((_ADDRESS, port), self._token, page, source)
        except OSError as error:
            raise OSError(
                error.errno, f"port {port} of {_ADDRESS} cannot be used: {error.strerror}"
            ) from None
        self._is_open = True
        self._process = os.getpid()
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="regard-explorer", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the page, which contains the token: whoever has it can read the page."""
        return f"http://{_ADDRESS}:{self._server.server_port}/{self._token}/"

    def wait(self) -> None:
        """Wait until the server is stopped, or until an interrupt (Ctrl-C) stops it."""
        try:
            while self._thread.is_alive():
                self._thread.join(0.2)
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop the server. Further calls do nothing, unless an interrupt ended this one early.

        In a forked child, only the child's copy of the socket is closed.
        """
        if sys.is_finalizing():  # the thread no longer runs, and the sockets close with the process
            return
        if self._is_open and os.getpid() == self._process:
            self._server.shutdown()
            self._thread.join()
            self._server.end_connections()
        self._server.server_close()
        self._is_open = False

    def __enter__(self) -> ExplorerServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ExplorerServer({self.url if self._is_open else 'stopped'})"


def checked_port(port: Any, open_browser: Any) -> int:
    """Return the port as an int, or raise the errors of the arguments of `Explorer.serve`."""
    flag("open_browser", open_browser)
    return count("port", port, maximum=65535)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = False

    def __init__(
        self, address: tuple[str, int], token: str, page: bytes, source: TileSource | None
    ) -> None:
        self.token, self.page, self.source = token, page, source
        self.connections: set[socket.socket] = set()
        self._is_ending = False
        super().__init__(address, _Handler)
        self.hosts = {f"{name}:{self.server_port}" for name in (_ADDRESS, "localhost")}
        if self.server_port == 80:
            self.hosts |= {_ADDRESS, "localhost"}

    def end_connections(self) -> None:
        """End the open connections, whose threads would otherwise continue to answer."""
        self._is_ending = True
        for connection in list(self.connections):
            self._end(connection)

    def begin_connection(self, connection: socket.socket) -> None:
        """Keep track of a connection, or end it if the server ends."""
        self.connections.add(connection)
        if self._is_ending:
            self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that browsers close early."""


class _Handler(BaseHTTPRequestHandler):
    """Answer GET and HEAD requests for the page and its tiles."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "regard", ""
    timeout = _SECONDS_OF_SILENCE
    server: _Server

    def setup(self) -> None:
        """Begin a connection."""
        super().setup()
        self.server.begin_connection(self.connection)

    def finish(self) -> None:
        """End a connection."""
        self.server.connections.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        token, _, name = path.removeprefix("/").partition("/")
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, _TEXT, b"This is another server.\n")
        elif not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(HTTPStatus.NOT_FOUND, _TEXT, b"The address is not complete.\n")
        elif name == "":
            self._answer(HTTPStatus.OK, _HTML, self.server.page)
        elif name == "tiles" and self.server.source is not None:
            self._answer_tiles(self.server.source, query)
        else:
            self._answer(HTTPStatus.NOT_FOUND, _TEXT, b"There is no such page.\n")

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Write nothing: the terminal or the notebook is the user's."""

    def _answer_tiles(self, source: TileSource, query: str) -> None:
        try:
            wanted = _numbers(query)
            layer, head, level, row = (wanted[name][0] for name in _OF_ROW)
            tiles = source.tiles(layer, head, level, row, wanted["column"])
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, _TEXT, f"{error}\n".encode())
            return
        content = [[tile.facts, tile.blob.decode()] for tile in tiles]
        self._answer(HTTPStatus.OK, _JSON, json.dumps(content).encode())

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _numbers(query: str) -> dict[str, list[int]]:
    """Return the numbers of a query such as "layer=0&column=3&column=4", which name tiles."""
    given = parse_qs(query, max_num_fields=len(_OF_ROW) + _MOST_COLUMNS)
    for name in (*_OF_ROW, "column"):
        if not all(value.isascii() and value.isdigit() for value in given.get(name, ["none"])):
            raise ValueError(f"{name} must be given as a number")
    return {name: [int(value[:9]) for value in each] for name, each in given.items()}


def open_in_browser(url: str) -> bool:
    """Open an address in the user's browser, and return whether there is one."""
    import webbrowser

    opens: Callable[[str], bool] = webbrowser.open
    return opens(url)
