"""The server of a page: what it answers, to whom, and that its tiles are the weights."""

import gzip
import http.client
import json
import pickle
import socket
import threading
from base64 import b64decode
from itertools import product

import numpy as np
import pytest

import regard
from explorer_pages import TILE_ERROR, blocks, close_levels, problem, weights_of

Q_LEN, KV_LEN = 700, 900
OPTIONS = {"is_causal": True, "query_offset": "end"}


@pytest.fixture(scope="module")
def explorer():
    return regard.explore(*problem(Q_LEN, KV_LEN), detail=32, **OPTIONS)


@pytest.fixture(scope="module")
def server(explorer):
    with explorer.serve() as running:
        yield running


def asked(server, path=None, method="GET", headers=None, host=None):
    """Return the status, headers and content of an answer; paths begin after the token."""
    scheme, _, rest = server.url.partition("://")
    address, _, token = rest.partition("/")
    assert scheme == "http"
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.putrequest(method, path or f"/{token}", skip_host=True)
        for name, value in {"Host": host or address, **(headers or {})}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


def query_of(server, **numbers):
    token = server.url.rstrip("/").rpartition("/")[2]
    words = [f"{name}={value}" for name, value in numbers.items() if name != "columns"]
    words += [f"column={each}" for each in numbers.get("columns", ())]
    return f"/{token}/tiles?{'&'.join(words)}"


def facts_of(page):
    return json.loads(page.partition(b'id="facts">')[2].partition(b"</script>")[0])


def test_the_page_has_levels_and_no_tiles(server, explorer, tmp_path):
    status, headers, page = asked(server)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    facts = facts_of(page)
    assert [level[:2] for level in facts["levels"]] == [[1, 1], [2, 2], [4, 4], [8, 8], [16, 16]]
    assert [level[2] for level in facts["levels"]] == [False] * 4 + [True]
    assert not any(head["tiles"] for head in facts["layers"][0]["heads"])
    assert b"connect-src 'self'" in page
    explorer.save(tmp_path / "page.html")
    saved = (tmp_path / "page.html").read_bytes()
    assert "levels" not in facts_of(saved)
    assert b"connect-src" not in saved.partition(b"<style>")[0]


@pytest.mark.parametrize("kind", ["arrays", "weights"])
def test_tiles_are_parts_of_the_weights(kind):
    query, key = problem(Q_LEN, KV_LEN)
    weights = weights_of(query, key, **OPTIONS)
    own = {"weights": weights} if kind == "weights" else {"query": query, "key": key, **OPTIONS}
    with regard.explore(**own, detail=32).serve() as server:
        levels = facts_of(asked(server)[2])["levels"]
        for head, (level, (rows, columns, is_exact)) in product((0, 3), enumerate(levels)):
            wanted = [0, columns // 3, columns - 1]
            for row in {0, rows // 2, rows - 1}:
                place = {"layer": 0, "head": head, "level": level, "row": row, "columns": wanted}
                status, _, content = asked(server, query_of(server, **place))
                assert status == 200
                for column, (rest, text) in zip(wanted, json.loads(content), strict=True):
                    edges = [
                        slice(at * length // count, (at + 1) * length // count)
                        for at, length, count in ((row, Q_LEN, rows), (column, KV_LEN, columns))
                    ]
                    check_tile(text, rest, weights[head][tuple(edges)], is_exact)


def check_tile(text, rest, part, is_exact):
    raw = np.frombuffer(gzip.decompress(b64decode(text)), np.uint8)
    if is_exact:
        (exponent,) = rest
        halves = np.ascontiguousarray(raw.reshape(2, -1).T).view("<f2").reshape(part.shape)
        found = np.ldexp(halves.astype("f4"), exponent)
        assert np.array_equal(found > 0, part > 0)
        assert np.allclose(found, part, rtol=TILE_ERROR, atol=1e-11)
        return
    assert rest == [min(64, size) for size in part.shape]
    largest, mean = raw.reshape(2, *rest)
    close_levels(largest, blocks(part, *rest, np.max))
    close_levels(mean, blocks(part, *rest, np.mean))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"layer": 1}, "layer must be from 0 to 0, got 1"),
        ({"head": 4}, "head must be from 0 to 3, got 4"),
        ({"level": 5}, "level must be from 0 to 4, got 5"),
        ({"row": 2}, "row must be from 0 to 1, got 2"),
        ({"columns": [0, 9]}, "column must be from 0 to 1, got 9"),
        ({"row": "-1"}, "row must be given as a number"),
        ({"row": "%D9%A1"}, "row must be given as a number"),
        ({"row": ""}, "row must be given as a number"),
        ({"row": "9" * 4000}, "row must be from 0 to 1, got 999999999"),
        ({"columns": range(70)}, "Max number of fields exceeded"),
        ({"columns": ()}, "column must be given as a number"),
        ({"row": "1;rm"}, "row must be given as a number"),
    ],
)
def test_tiles_that_do_not_exist(server, numbers, message):
    place = {"layer": 0, "head": 0, "level": 1, "row": 0, "columns": [0], **numbers}
    status, _, content = asked(server, query_of(server, **place))
    assert (status, message in content.decode()) == (400, True)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/favicon.ico", 404),
        ("/tiles?layer=0&head=0&level=0&row=0&column=0", 404),
        ("//", 404),
        ("/" + "x" * 43 + "/", 404),
        ("/%s/../../etc/passwd", 404),
        ("/%s/page.html", 404),
        ("/%s", 200),
        ("/%s/?x", 200),
        ("/" + "x" * 70000, 414),
    ],
)
def test_what_is_answered(server, path, status):
    token = server.url.rstrip("/").rpartition("/")[2]
    found, headers, content = asked(server, path.replace("%s", token))
    assert found == status
    assert token.encode() not in content
    assert "Access-Control-Allow-Origin" not in headers
    if status != 414:
        assert headers["Cache-Control"] == "no-store"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "[::1]:80", "::1"])
def test_other_hosts_are_refused(server, host):
    assert asked(server, host=host)[0] == 421


def test_localhost_is_the_same_host(server):
    port = server.url.rpartition(":")[2].partition("/")[0]
    assert asked(server, host=f"LOCALHOST:{port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(server, method):
    assert asked(server, method=method)[0] == 501


def test_head_has_no_content(server):
    status, headers, content = asked(server, method="HEAD")
    assert (status, content) == (200, b"")
    assert int(headers["Content-Length"]) > 10_000


def test_other_machines_do_not_reach_it(server):
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    assert server._server.socket.getsockname() == ("127.0.0.1", port)


def test_tokens_differ(explorer):
    with explorer.serve() as first, explorer.serve() as second:
        tokens = {each.url.rstrip("/").rpartition("/")[2] for each in (first, second)}
        assert len(tokens) == 2
        assert min(map(len, tokens)) >= 43


def test_it_ends(explorer):
    server = explorer.serve()
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    assert asked(server)[0] == 200
    server.close()
    server.close()
    assert repr(server) == "ExplorerServer(stopped)"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert not server._thread.is_alive()
    server.wait()


def test_an_open_connection_ends_with_the_server(explorer):
    server = explorer.serve()
    address, _, token = server.url.partition("://")[2].partition("/")
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("GET", f"/{token}")
    assert connection.getresponse().read()
    server.close()

    def ask_again():
        connection.request("GET", f"/{token}")
        return connection.getresponse()

    with pytest.raises((http.client.HTTPException, OSError)):
        ask_again()
    connection.close()


def test_an_interrupted_end_can_be_repeated(explorer, monkeypatch):
    server = explorer.serve()

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(server._server, "server_close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            server.close()
    assert "stopped" not in repr(server)
    server.close()
    assert repr(server) == "ExplorerServer(stopped)"
    assert not server._thread.is_alive()


def test_the_logarithms_of_one_layer_of_given_weights_are_kept():
    weights = [weights_of(*problem(Q_LEN, KV_LEN, seed=seed), **OPTIONS) for seed in range(3)]
    explorer = regard.explore(weights=weights, detail=32)
    with explorer.serve() as server:
        for layer in (0, 1, 2, 0):
            place = {"layer": layer, "head": 1, "level": 4, "row": 5, "columns": [3]}
            status, _, content = asked(server, query_of(server, **place))
            assert status == 200
            ((rest, text),) = json.loads(content)
            edges = tuple(
                slice(at * length // 16, (at + 1) * length // 16)
                for at, length in ((5, Q_LEN), (3, KV_LEN))
            )
            check_tile(text, rest, weights[layer][1][edges], is_exact=True)
        assert len(explorer._source._calls) == 1


def test_a_silent_client_does_not_block_others(explorer):
    with explorer.serve() as server:
        port = int(server.url.rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.sendall(b"GET /")
            assert asked(server)[0] == 200


def test_many_clients_at_once(server):
    path = query_of(server, layer=0, head=1, level=4, row=3, columns=range(16))
    wanted, found = asked(server, path), []
    threads = [threading.Thread(target=lambda: found.append(asked(server, path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each[2] for each in found] == [wanted[2]] * 8


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"port": -1}, ValueError, "port must be at least 0, got -1"),
        ({"port": 65536}, ValueError, "port must be at most 65535, got 65536"),
        ({"port": "80"}, TypeError, "port must be an int, got str"),
        ({"open_browser": 1}, TypeError, "open_browser must be True or False, got int"),
    ],
)
def test_bad_arguments(explorer, arguments, error, message):
    with pytest.raises(error, match=message):
        explorer.serve(**arguments)


def test_a_port_that_is_taken(explorer, server):
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(OSError, match=f"port {port} of 127.0.0.1 cannot be used: "):
        explorer.serve(port)
    assert asked(server)[0] == 200


def test_exact_pages_and_unpickled_pages_are_served_as_they_are(explorer):
    exact = regard.explore(*problem(40, 40))
    for each in (exact, pickle.loads(pickle.dumps(explorer))):
        with each.serve() as server:
            page = asked(server)[2]
            assert len(page) == each.nbytes
            place = {"layer": 0, "head": 0, "level": 0, "row": 0, "columns": [0]}
            assert asked(server, query_of(server, **place))[0] in (400, 404)


def test_an_interrupt_ends_waiting(run_python):
    script = """
        import _thread, threading, urllib.request
        import numpy as np
        import regard

        x = np.random.default_rng(0).standard_normal((1, 40, 8))
        server = regard.explore(x, x).serve()
        with urllib.request.urlopen(server.url) as answer:
            assert answer.status == 200
        threading.Timer(0.5, _thread.interrupt_main).start()
        server.wait()
        print(server)
        """
    done = run_python(script)
    assert (done.returncode, done.stdout.strip()) == (0, "ExplorerServer(stopped)"), done.stderr
