"""Run the tutorial's programs in a browser, as its pages do.

The environment variable REGARD_PYODIDE names a folder made by `.ci/nightly pyodide`: Pyodide from
npm, and the wheels of NumPy and regard, in place of the address from which browsers load them.
"""

import functools
import os
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["myst_parser", "plain_pages", "run_programs"]
html_theme = "basic"
"""
PYODIDE = pytest.mark.skipif("REGARD_PYODIDE" not in os.environ, reason="see .ci/nightly")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve the tutorial, built with a wheel, and yield its address."""
    build = pytest.importorskip("sphinx.cmd.build", reason='pip install ".[docs]"')
    source, site = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    for name in ("_run", "figures", "learn"):
        (source / name).symlink_to(DOCS / name)
    conf = CONF.format(extensions=str(DOCS / "_extensions"))
    (source / "conf.py").write_text(conf, encoding="utf-8")
    (source / "index.md").write_text("# Site\n\n```{toctree}\nlearn/index\n```\n", encoding="utf-8")
    wheel = next(Path(os.environ["REGARD_PYODIDE"], "wheels").glob("regard-*.whl"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_PYODIDE_WHEEL", str(wheel))
        assert build.main(["-Q", "-b", "html", str(source), str(site)]) == 0

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/learn/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def opened(chromium, served):
    """Open a page of the tutorial, and find Pyodide's files in the folder."""
    folder = Path(os.environ["REGARD_PYODIDE"])
    context = chromium.new_context()

    def from_folder(route):
        name = route.request.url.rpartition("/")[2]
        places = (folder / "node_modules/pyodide" / name, folder / "wheels" / name)
        route.fulfill(path=next(place for place in places if place.is_file()))

    context.route("https://cdn.jsdelivr.net/pyodide/v0.27.7/full/*", from_folder)

    def opens(page_name):
        page = context.new_page()
        page.goto(served + page_name)
        return page

    yield opens
    context.close()


@PYODIDE
@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("01-stages.html", "and becomes [0.2413 0.2311]"),
        ("15-shipped.html", "target    wasm, arithmetic in float32"),
        ("18-gradients.html", "along a random value"),
    ],
)
def test_a_program_runs(opened, page, printed):
    page = opened(page)
    run = page.get_by_role("button", name="Run in this browser")
    assert run.count() == 1
    run.click()
    page.wait_for_selector("button.run-program:disabled")
    page.wait_for_selector("button.run-program:enabled", timeout=300_000)
    output = page.locator("pre.run-output").inner_text()
    assert printed in output
    assert "Error" not in output


@PYODIDE
def test_programs_that_need_a_compiler_have_no_button(opened):
    assert opened("06-loops.html").locator("button.run-program").count() == 0
