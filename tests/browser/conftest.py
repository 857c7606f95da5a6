"""A real server and a real browser: one of each for all tests, a fresh context for each."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

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


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a lab that runs as a user would start it."""
    home = tmp_path_factory.mktemp("lab")
    command = [sys.executable, "-m", "trueloop", "lab", "--port", "0", "--no-browser"]
    environment = {"XDG_CACHE_HOME": str(home / "cache"), "XDG_DATA_HOME": str(home / "data")}
    with started(command, environment) as address:
        yield address


class started:
    """A lab in a process of its own, for as long as the block lasts."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        import os

        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment, "COLUMNS": "200"}
        )

    def __enter__(self) -> str:
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], 60)
        line = out.readline() if ready else ""
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, f"the lab said {line!r}"
        return found[0]

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("There is no /usr/bin/chromium here: `make test` installs it where it may.")
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
    yield opened
    for context in contexts:
        context.close()
    assert not trouble, "\n".join(trouble)


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
