"""The first view of a page: something moves or is computed, few words, results before inputs on a phone."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

Opened = Callable[..., Page]
SETTLED = {  # what a page shows once its first answer is there
    "arithmetic": "[data-key=examples_seen]",
    "pipeline": ".lane .chip.now",
    "signatures": ".sig-about .sig-plot",
    "production": ".components label",
    "race": ".lane .board-points",
    "arena": ".boards p, .boards tbody",
    "watch": ".watch-runs li, .watch-ways li",
}
RESULT_AND_INPUTS = {
    "arithmetic": (".timeline", ".sizes"),
    "pipeline": (".lanes", "form.panel"),
    "production": (".text", ".components"),
    "race": (".board", ".lane .settings"),
    "arena": (".race", ".inputs"),
    "watch": (".watch-head, .watch-ways", ".watch-side"),
}
TOPS = """() => [...document.querySelectorAll(".top, .player, .sim-bar")].map(bar => {
    const parts = [...bar.querySelectorAll("button, .brand, .state")].filter(part => part.offsetParent);
    return parts.map(part => part.getBoundingClientRect()).map(({ top, bottom }) => (top + bottom) / 2);
})"""


def settled(page: Page, name: str) -> Page:
    expect(page.locator(SETTLED[name]).first).to_be_visible(timeout=120_000)
    return page


@pytest.mark.parametrize("name", SETTLED)
def test_few_words_are_on_the_first_screen(open_page: Opened, check_words: Callable[[Page], None], name: str):
    check_words(settled(open_page(name, width=1440), name))


@pytest.mark.parametrize("name", RESULT_AND_INPUTS)
def test_on_a_phone_results_are_above_inputs_and_buttons_are_in_one_row(open_page: Opened, name: str):
    page = settled(open_page(name, width=390, height=844), name)
    result, inputs = (page.locator(selector).first.bounding_box() for selector in RESULT_AND_INPUTS[name])
    assert result["y"] < inputs["y"]
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    tops = page.evaluate(TOPS)  # all at once, as what is above them may still grow
    assert (len(tops) > 1) == (name not in ("signatures", "arena", "watch"))
    assert all(max(bar) - min(bar) < 10 for bar in tops if bar), tops


@pytest.mark.parametrize("name", SETTLED)
def test_nothing_overflows_on_a_small_laptop(open_page: Opened, name: str):
    page = settled(open_page(name, width=1024, height=768), name)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1024


def test_pages_open_in_motion_unless_the_user_prefers_less(open_page: Opened, lab: str):
    page = open_page("sheet")
    moving = {
        "arithmetic": (page.locator(".timeline .says"), "iteration [3-9] of"),
        "pipeline": (page.locator(".player output"), "^[3-9] / "),
        "production": (page.locator(".player output"), "^[2-9] / "),
        "race": (page.locator(".state"), "training"),
    }
    for name, (place, moved) in moving.items():
        page.emulate_media(reduced_motion="reduce")
        page.goto(f"{lab}#/{name}")
        page.reload()
        settled(page, name)
        page.wait_for_timeout(1000)
        expect(place).not_to_have_text(re.compile(moved))
        page.emulate_media(reduced_motion="no-preference")
        page.reload()
        expect(place).to_have_text(re.compile(moved))


def test_an_empty_leaderboard_opens_with_a_practice_run(served, browser, tmp_path):
    with served(tmp_path, str(tmp_path / "runs")) as address:
        page = browser.new_page(reduced_motion="no-preference")
        page.goto(f"{address}#/arena?track=deep")
        button = page.get_by_label("Practice").get_by_role("button")
        expect(button).to_have_text(re.compile("Starting|Practise again"), timeout=60_000)
        expect(page.get_by_label("Practice").locator(".says")).to_contain_text(
            re.compile("Running: update|after .* updates"), timeout=120_000
        )
        page.close()


def test_without_a_run_the_page_of_runs_opens_with_an_example(served, browser, tmp_path):
    with served(tmp_path, str(tmp_path / "runs")) as address:
        page = browser.new_page(reduced_motion="no-preference")
        page.goto(f"{address}#/watch")
        expect(page.locator(".watch-head")).to_contain_text("example.py", timeout=120_000)
        expect(page.locator(".watch-finding").first).to_contain_text("GRD001", timeout=120_000)
        page.close()


def test_the_wall_describes_one_failure_after_another(open_page: Opened):
    page = open_page("signatures", width=1440)
    page.emulate_media(reduced_motion="no-preference")
    page.reload()
    expect(page.locator(".sig-tile svg").nth(1)).to_be_visible(timeout=120_000)
    heading = page.locator(".sig-about h2")
    first = heading.inner_text()
    expect(heading).not_to_have_text(first)
    page.get_by_role("link", name=re.compile("^GRD001")).hover()  # from now on the wall follows the pointer
    page.wait_for_timeout(3500)
    expect(heading).to_have_text("Gradients are never cleared")
