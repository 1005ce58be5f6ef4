"""A real browser: Debian's Chromium, driven by playwright, without network."""

import os
import shutil

import pytest

from browser import FLAGS


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """A browser with an empty profile; fails, and does not skip, where there is none."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("HEADSCAPE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail("the report is tested in Chromium: apt-get install chromium, or set HEADSCAPE_CHROMIUM to one")
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=found,
            args=FLAGS,
            headless=True,
            viewport={"width": 1280, "height": 900},
            color_scheme="light",
        )
        context.set_default_timeout(180_000)  # a busy machine is slow, not wrong
        yield context
        context.close()


@pytest.fixture(scope="module")
def visit(chromium):
    """Open a report and wait until all is drawn; `errors` and `requests` of the page are kept on it."""
    opened = []

    def open_(path, width=1280, height=900, script=None):
        page = chromium.new_page()
        opened.append(page)
        page.set_viewport_size({"width": width, "height": height})
        if script:
            page.add_init_script(script)
        page.errors, page.asked = [], []
        page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("dialog", lambda dialog: (page.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(f"file://{path}")
        page.wait_for_selector("body[data-ready]")
        page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
        page.wait_for_timeout(100)  # the first map is decoded behind the page's back
        return page

    yield open_
    for page in opened:
        page.close()
