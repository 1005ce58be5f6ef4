"""Take the two pictures of the README from a report.

python tests/report/screenshots.py RUN/report.html docs/images [LAYER HEAD]
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from browser import FLAGS

WIDTH, HEIGHT = 1280, 860
COLOURS = 256  # enough for a page, a third of the bytes


def take(tab, path: Path) -> None:
    """Save what is seen, without the shade the pointer leaves."""
    tab.mouse.move(2, 2)
    tab.wait_for_timeout(700)
    image = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path} {path.stat().st_size / 1000:.0f} kB")


def main(report: Path, folder: Path, layer: str = "12", head: str = "0") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        browser = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=shutil.which("chromium"),
            args=FLAGS,
            headless=True,
            viewport={"width": WIDTH, "height": HEIGHT},
        )
        tab = browser.new_page()
        tab.goto(report.resolve().as_uri())
        tab.wait_for_selector("body[data-ready]", timeout=60_000)
        tab.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
        tab.select_option("#pick-layer", label=f"layer {layer}")
        tab.select_option("#pick-head", label=f"head {head}")
        tab.wait_for_timeout(500)
        scroll = "place => scrollBy(0, document.querySelector(place).getBoundingClientRect().top - 52)"
        tab.evaluate(scroll, ".toolbar")
        take(tab, folder / "report-map.png")
        tab.emulate_media(color_scheme="dark")
        tab.select_option("#colour", "layer")
        tab.evaluate(scroll, ".head_tree")
        tab.evaluate("scrollBy(0, -46)")
        take(tab, folder / "report-tree.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
