"""What a page shows before one scrolls: few words, something computed, no overflow; one row of buttons on a phone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

COMPUTED = {
    "guess": ".guess-answers button, .guess-place",
    "learn": ".learn-run .loss-plot",
    "operations": ".tensors .tensor",
    "modes": ".side .drawn svg",
}
"""Page -> what is computed on arrival."""


def open_computed(open_page, name: str, **options) -> Page:
    page: Page = open_page(name, **options)
    expect(page.locator(COMPUTED[name]).first).to_be_visible(timeout=60_000)
    return page


@pytest.mark.parametrize("name", COMPUTED)
def test_a_page_opens_with_something_computed_and_few_words(open_page, check_words, name):
    page = open_computed(open_page, name, width=1440)
    first = page.locator(COMPUTED[name]).first.bounding_box()
    assert first
    assert first["y"] + min(first["height"], 200) < 900
    check_words(page)


def test_few_words_are_on_the_screen_at_each_of_the_operations(open_page, check_words):
    page = open_computed(open_page, "operations", width=1440)
    for operation in page.locator(".station").all():
        operation.click()
        expect(operation).to_have_attribute("aria-current", "step")
        check_words(page)


@pytest.mark.parametrize("width", [390, 1024])
@pytest.mark.parametrize("name", COMPUTED)
def test_nothing_overflows(open_page, name, width):
    page = open_computed(open_page, name, width=width, height=844)
    assert page.evaluate("() => document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(
    ("name", "row", "result", "inputs"),
    [
        ("operations", ".player", ".tensors", ".settings"),
        ("operations", ".stations", ".graph", ".code-panel"),
        ("modes", ".passes > .row", ".drawn", ".settings"),
        ("guess", ".guess-film .player", "canvas.film", ".guess-answers"),
        ("learn", ".learn-programs", ".loss-plot", ".learn-script"),
    ],
)
def test_a_phone_has_one_row_of_buttons_and_results_before_inputs(open_page, name, row, result, inputs):
    page = open_computed(open_page, name, width=390, height=844)
    tops = """(row) => [...row.querySelectorAll("button, label")].filter((each) => each.offsetWidth)
        .map((each) => each.getBoundingClientRect()).map(({ top, height }) => Math.round(top + height / 2))"""
    middles = page.locator(row).first.evaluate(tops)
    assert max(middles) - min(middles) <= 2, middles
    above, below = (page.locator(part).first.bounding_box() for part in (result, inputs))
    assert above
    assert below
    assert above["y"] < below["y"]
