"""A headless Chromium, for pages that the project writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str:
    """Its path. Without one, a test is skipped, but where CI installs it."""
    named = os.environ.get("EPOCHFENCE_TEST_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        reason = "no Chromium on PATH, none in EPOCHFENCE_TEST_CHROMIUM"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return found


class Window:
    """A page of the browser, and what it asked for and complained of."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))

    def is_in_view(self, selector: str) -> bool:
        """Whether an element lies wholly in what the window shows."""
        box = self.page.locator(selector).first.bounding_box()
        size = self.page.viewport_size
        assert size is not None
        return (
            box is not None
            and box["x"] >= 0
            and box["y"] >= 0
            and box["x"] + box["width"] <= size["width"]
            and box["y"] + box["height"] <= size["height"]
        )


@contextmanager
def opened_window() -> Generator[Window, None, None]:
    """A window of a browser that is started for it."""
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )
        try:
            yield Window(browser.new_page(viewport={"width": 1280, "height": 900}))
        finally:
            browser.close()
