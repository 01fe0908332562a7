"""A real browser that has no network, and pages of each kind; tests skip loudly where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.support.page_samples import write_pages

#: Where screenshots are kept, for a person to look at.
SCREENSHOTS = os.environ.get("GRADSCOPE_SCREENSHOTS")


@dataclass
class Opened:
    """A page in the browser, and what went wrong in it."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @cached_property
    def listeners(self) -> dict[str, Callable[[Any], None]]:
        """What notes them, by event."""
        return {
            "console": lambda message: self.problems.append(message.text),
            "pageerror": lambda error: self.problems.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
        }


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("NOT TESTED: pages in a browser, because playwright is not installed (pip install playwright)")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("NOT TESTED: pages in a browser, because there is no chromium (apt-get install chromium)")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def pages(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="session")
def tab(browser: Any) -> Any:
    """A tab that tests use one after the other: another one is another process of the browser, for half a second."""
    return browser.new_context(offline=True).new_page()


@pytest.fixture
def opened(browser: Any, tab: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Opened]]:
    """Opens a page by its kind, at a place in it, in a window of some size; it must have made no request.

    The first page of a test is in the tab that all share, others and those with options are in one of their own.
    """
    contexts: list[Any] = []
    found: list[Opened] = []

    def page_for(options: dict[str, Any]) -> Any:
        if not found and not options:
            return tab
        contexts.append(browser.new_context(offline=True, **options))
        return contexts[-1].new_page()

    def open_page(kind: str, place: str = "", *, width: int = 1280, height: int = 900, **options: Any) -> Opened:
        shown = Opened(page_for(options))
        found.append(shown)
        shown.page.set_viewport_size({"width": width, "height": height})
        for event, listener in shown.listeners.items():
            shown.page.on(event, listener)
        shown.page.goto(pages[kind].as_uri() + place)
        if options.get("java_script_enabled", True):
            shown.page.wait_for_selector("html[data-ready]", timeout=30_000)
        return shown

    yield open_page
    for number, each in enumerate(found):
        if SCREENSHOTS is not None:
            with suppress(OSError):
                Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            test = os.environ.get("PYTEST_CURRENT_TEST", "page").split("::")[-1].split(" ")[0]
            each.page.screenshot(path=str(Path(SCREENSHOTS) / f"{test}-{number}.png"))
        for event, listener in each.listeners.items():
            each.page.remove_listener(event, listener)
    # From a page to itself at another place is no load.
    tab.goto("about:blank")
    for context in contexts:
        context.close()
    for each in found:
        assert each.problems == []
        assert [url for url in each.requests if not url.startswith(("file:", "blob:"))] == []
