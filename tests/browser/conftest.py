"""A real browser for each file, with a fresh context for each; the real server is `lab` in `tests/conftest.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
WORDS = (Path(__file__).parents[2] / "benchmarks" / "words_on_screen.js").read_text()
MAX_WORDS = 120  # on a page before one scrolls
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


@pytest.fixture(scope="module")  # each file has its own event loop, and playwright's runs until it is closed
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("There is no /usr/bin/chromium here: `make test` installs it where it may.")
    expect.set_options(timeout=30_000)  # enough on a busy machine
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(lab: str, browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page of the lab: ``open_page("simulator", width=390, dark=True)``.

    A request to another server, an error of the page and an error on its console fail the test.
    """
    contexts: list[Any] = []
    problems: list[str] = []

    def open_one(name: str, *, params: str = "", width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("request", lambda request: _local(request.url, lab, problems))
        page.on("pageerror", lambda error: problems.append(f"page error: {error}"))
        page.on("console", lambda message: message.type == "error" and problems.append(f"console: {message.text}"))
        page.goto(f"{lab}#/{name}{params and '?' + params}")
        page.wait_for_function("() => document.querySelector('#page > .page')?.children.length > 0")
        return page

    open_one.problems = problems  # type: ignore[attr-defined]
    open_one.allowed = "nothing"  # type: ignore[attr-defined] - a text that the console may contain
    yield open_one
    for context in contexts:
        context.close()
    unexpected = [each for each in problems if open_one.allowed not in each]  # type: ignore[attr-defined]
    assert not unexpected, "\n".join(unexpected)


@pytest.fixture
def check_words() -> Callable[[Page], None]:
    """Return a function that fails if a page shows too many words before one scrolls: prose, labels and controls."""

    def check_page(page: Page) -> None:
        words = page.evaluate(WORDS)
        assert 20 < len(words) <= MAX_WORDS, (len(words), " ".join(words))

    return check_page


@pytest.fixture
def axe() -> Callable[[Page], None]:
    """Return a function that fails if a page violates WCAG 2.1 A or AA, by the checks of axe-core."""

    def check_page(page: Page) -> None:
        found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}).response
        violations = [
            f"{rule['id']}: {rule['help']}: {[node['html'][:160] for node in rule['nodes'][:3]]}"
            for rule in found["violations"]
        ]
        assert not violations, json.dumps(violations, indent=1)

    return check_page


def _local(url: str, lab: str, problems: list[str]) -> None:
    if not url.startswith((lab, lab.replace("http", "ws", 1), "data:", "blob:")):
        problems.append(f"a request to {url}")
