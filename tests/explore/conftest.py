"""Pages, and a browser that opens them."""

import numpy as np
import pytest

import regard
from explorer_pages import TOKENS, Page, problem, settled


@pytest.fixture
def page_of(tmp_path):
    def made(*arguments, **options):
        return Page(regard.explore(*arguments, **options), tmp_path)

    return made


@pytest.fixture(scope="session")
def exact(tmp_path_factory):
    query, key = problem(layers=(2,))
    explorer = regard.explore(query, key, is_causal=True, tokens=TOKENS)
    return Page(explorer, tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="session")
def pooled(tmp_path_factory):
    query, key = problem(q_len=500, kv_len=500)
    regions = [(slice(100, 130), slice(60, 100))]
    options = {"is_causal": True, "detail": 64, "regions": regions, "tile_bytes": 0}
    explorer = regard.explore(query, key, **options)
    return Page(explorer, tmp_path_factory.mktemp("pooled"))


@pytest.fixture(scope="session")
def tiled(tmp_path_factory):
    """Return a page with tiles of single weights and of blocks, the same in both heads."""
    query, key = problem(q_len=1000, kv_len=1000, heads=1, kv_heads=1)
    query = np.concatenate([query, 1.01 * query])
    options = {"is_causal": True, "detail": 32, "top_k": 1, "tile_bytes": 600_000}
    explorer = regard.explore(query, key, **options)
    return Page(explorer, tmp_path_factory.mktemp("tiled"))


@pytest.fixture
def opened(chromium):
    """Open a page; whatever it logs, and every request but for itself, fails the test."""
    contexts, wrong = [], []

    def opens(path, fragment="", **options):
        options = {"viewport": {"width": 1300, "height": 900}, **options}
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        url = path.as_uri()
        page.on(
            "request",
            lambda request: request.url.partition("#")[0] == url or wrong.append(request.url),
        )
        page.goto(url + fragment)
        settled(page)
        return page

    yield opens
    for context in contexts:
        context.close()
    assert wrong == []
