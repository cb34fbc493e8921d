"""A real Chromium, and pages in it that fail a test when their console has an error, as of a policy."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

from support.pagedouble import PageWorld, page_world

SIZES = {"desk": (1280, 800), "phone": (360, 740)}
SHOTS = Path(__file__).parents[3] / "build" / "screenshots"
PATIENCE_MS = 30_000  # the machine may be busy; a page that is right is there in a moment

OpenPage = Callable[..., AbstractContextManager[Page]]
Shoot = Callable[[Page, str], None]


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """For one file: as long as it lives, the thread has a running loop, which other tests must not find."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium is not None, "there is no chromium; run tools/ensure-chromium"
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []  # Chromium refuses to be root's in one
    browser = playwright.chromium.launch(executable_path=chromium, args=sandbox)
    yield browser
    browser.close()


@pytest.fixture
def world() -> Iterator[PageWorld]:
    with page_world() as served:
        yield served


@pytest.fixture
def open_page(browser: Browser) -> OpenPage:
    """Open a page that must stay without errors; `expected` is what its console may say all the same."""

    @contextmanager
    def opened(
        url: str, *, size: str = "desk", scheme: str = "light", expected: str | None = None
    ) -> Iterator[Page]:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            has_touch=size == "phone",
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(f"{error}"))
        page.on(
            "console",
            lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None,
        )
        try:
            page.goto(url)
            yield page
            unexpected = [each for each in wrong if expected is None or not re.search(expected, each)]
            assert not unexpected, f"the console of the page says: {unexpected}"
        finally:
            context.close()

    return opened


@pytest.fixture
def shoot() -> Shoot:
    """Keep how a page looks, for people."""

    def shot(page: Page, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    return shot
