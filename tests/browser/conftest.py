"""A real browser for each file, with a fresh context for each; the real server is `lab` in `tests/conftest.py`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")  # playwright's loop runs until it is closed, and other files have loops of their own
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("There is no /usr/bin/chromium here: `make test` installs it where it may.")
    expect.set_options(timeout=30_000)  # where many share a machine
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(lab: str, browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page of the lab: ``open_page("simulator", width=390, dark=True)``.

    A request to anywhere else, an error of the page and an error on its console fail the test.
    """
    contexts: list[Any] = []
    trouble: list[str] = []

    def opened(name: str, *, params: str = "", width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("request", lambda request: _local(request.url, lab, trouble))
        page.on("pageerror", lambda error: trouble.append(f"page error: {error}"))
        page.on("console", lambda said: said.type == "error" and trouble.append(f"console: {said.text}"))
        page.goto(f"{lab}#/{name}{params and '?' + params}")
        page.wait_for_function("() => document.querySelector('#page > .page')?.children.length > 0")
        return page

    opened.trouble = trouble  # type: ignore[attr-defined]
    opened.allowed = "nothing"  # type: ignore[attr-defined] - part of what the browser may say on its console
    yield opened
    for context in contexts:
        context.close()
    left = [each for each in trouble if opened.allowed not in each]  # type: ignore[attr-defined]
    assert not left, "\n".join(left)


@pytest.fixture
def axe() -> Callable[[Page], None]:
    """Fail where a page cannot be used by everybody: the checks of axe-core, WCAG 2.1 A and AA."""

    def checked(page: Page) -> None:
        found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}).response
        told = [
            f"{rule['id']}: {rule['help']}: {[node['html'][:160] for node in rule['nodes'][:3]]}"
            for rule in found["violations"]
        ]
        assert not told, json.dumps(told, indent=1)

    return checked


def _local(url: str, lab: str, trouble: list[str]) -> None:
    if not url.startswith((lab, lab.replace("http", "ws", 1), "data:", "blob:")):
        trouble.append(f"a request to {url}")


def until(true: Callable[[], bool], *, patience_s: float = 30.0) -> None:
    """Wait for something that the page cannot be asked to wait for."""
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)
