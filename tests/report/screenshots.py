"""Take the two pictures of the README from a report.

python tests/report/screenshots.py RUN/report.html docs/images
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from browser import FLAGS

WIDTH, HEIGHT = 1400, 900
COLOURS = 256  # enough for a page, a third of the bytes


def take(tab, path: Path) -> None:
    """Save what is seen, without the shade the pointer leaves."""
    tab.mouse.move(2, 2)
    tab.wait_for_timeout(700)
    image = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path} {path.stat().st_size / 1000:.0f} kB")


def main(report: Path, folder: Path) -> None:
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
        tab.wait_for_selector("body[data-ready]", timeout=180_000)
        for scheme in ("light", "dark"):
            tab.emulate_media(color_scheme=scheme)
            take(tab, folder / f"first-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
