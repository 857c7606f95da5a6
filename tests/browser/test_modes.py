"""The page on train and eval: passes of both networks, their differences, and measured memory."""
# ruff: noqa: RUF001 - arithmetic is shown as it is written

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Browser, Page, expect

Opened = Callable[..., Page]


def open_modes(open_page: Opened, params: str = "", **options: object) -> Page:
    page = open_page("modes", params=params, **options)
    expect(page.locator(".status")).to_contain_text(re.compile(r"Both have the same weights|Pass \d"), timeout=30_000)
    return page


def open_numbers(page: Page) -> None:
    for summary in page.locator(".all-numbers > summary").all():
        summary.click()


def test_masked_units_fade_and_running_statistics_move_in_train_mode_only(open_page: Opened):
    page = open_modes(open_page)
    expect(page.locator(".status")).to_contain_text("Pass 1:")  # one pass is made on arrival
    expect(page.locator(".bars tbody tr")).to_have_count(4)  # and memory is measured
    masked = "(units) => units.map((unit) => unit.classList.contains('masked'))"
    opacity = "(units) => units.map((unit) => Number(getComputedStyle(unit.querySelector(':scope > circle')).opacity))"
    places = "(marks) => marks.map((mark) => mark.style.transform)"
    left, right = page.locator(".side.left"), page.locator(".side.right")
    masks, moved, still = [], [], []
    for _ in range(3):
        mask = left.locator(".unit").evaluate_all(masked)
        faded = [value < 0.6 for value in left.locator(".unit").evaluate_all(opacity)]
        assert faded == mask
        assert not any(right.locator(".unit").evaluate_all(masked))
        masks.append(mask)
        moved.append(left.locator(".running-mark").evaluate_all(places))
        still.append(right.locator(".running-mark").evaluate_all(places))
        page.get_by_role("button", name="Forward both").click()
    assert len({str(mask) for mask in masks}) > 1
    assert len({str(each) for each in moved}) == 3
    assert len({str(each) for each in still}) == 1
    expect(left.locator(".batch-mark.used")).to_have_count(6)
    expect(right.locator(".running-mark.used")).to_have_count(6)


def test_it_plays_on_arrival(lab: str, browser: Browser):
    page = browser.new_page(reduced_motion="no-preference")
    page.goto(f"{lab}#/modes")
    expect(page.locator(".status")).to_contain_text(re.compile(r"Pass [3-9]"), timeout=30_000)
    page.close()


def test_repeated_passes_differ_only_in_train_mode(open_page: Opened, axe: Callable[[Page], None]):
    page = open_modes(open_page, "pass=0")
    open_numbers(page)
    left, right = page.locator(".side.left"), page.locator(".side.right")
    forward = page.get_by_role("button", name="Forward both")
    expect(left).to_contain_text("No forward pass yet.")
    forward.click()
    first = right.locator("table").last.inner_text()
    forward.click()
    expect(page.locator(".status")).to_contain_text("the right ones are bitwise equal")
    expect(left.locator(".badge.differs")).to_be_visible()
    expect(right.locator(".badge.same")).to_have_text("= bitwise equal to the previous pass")
    assert right.locator("table").last.inner_text() == first
    expect(left.locator("td.masked")).not_to_have_count(0)
    expect(right.locator("td.masked")).to_have_count(0)
    expect(left.locator("tr.used th").first).to_contain_text("batch mean")
    expect(right.locator("tr.used th").first).to_contain_text("running mean")
    left.get_by_role("button", name=re.compile("^running mean of unit 0")).hover()
    expect(left.locator(".calculation-text")).to_have_text(re.compile(r"^\S+ = 0\.9 × \S+ \+ 0\.1 × \S+$"))
    left.get_by_role("button", name=re.compile("^running mean of unit 0")).focus()
    page.keyboard.press("ArrowDown")
    expect(left.get_by_role("button", name=re.compile("^running variance of unit 0"))).to_be_focused()
    assert left.locator("table.units button[tabindex='0']").count() == 3
    expect(page.locator("#announcements")).to_contain_text("Pass 2")
    axe(page)


def test_a_batch_of_one_shows_the_error_of_torch(open_page: Opened):
    page = open_modes(open_page, "batch=1&pass=1")
    expect(page.locator(".side.left .error")).to_contain_text("Expected more than 1 value per channel when training")
    expect(page.locator(".side.right .block")).to_have_count(4)


def test_without_dropout_repeated_passes_are_equal(open_page: Opened):
    page = open_modes(open_page, "dropout=0&pass=2")
    open_numbers(page)
    expect(page.locator(".side.left .badge.same")).to_be_visible()
    page.get_by_label("dropout").focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".side.left .badge.differs")).to_be_visible()
    expect(page).to_have_url(re.compile("dropout=0.3"))


def test_memory_is_measured_with_and_without_a_graph(open_page: Opened, axe: Callable[[Page], None]):
    page = open_modes(open_page)
    measure = page.get_by_role("button", name=re.compile("Measure"))
    rows = page.locator(".bars tbody tr")
    expect(rows).to_have_count(4)
    page.locator(".memory").get_by_label("batch").fill("1024")
    rows.evaluate_all("(rows) => rows.forEach((row) => row.remove())")
    measure.click()
    expect(rows).to_have_count(4)
    expect(rows.nth(2)).to_contain_text("0.50 MiB")  # the outputs: 1024 × 128 numbers of 4 bytes
    widths = "(bars) => bars.map((bar) => bar.getBoundingClientRect().width)"
    train, evaluation, no_grad, inference = rows.locator(".bar").evaluate_all(widths)
    assert train > evaluation > 2 * no_grad
    assert no_grad == inference
    assert all(re.search(r"\d ms", row.inner_text()) for row in rows.all())
    rows.nth(3).get_by_text("refused").click()
    expect(rows.nth(3)).to_contain_text("Inference tensors cannot be saved for backward")
    expect(page.locator("#announcements")).to_contain_text("times as much as without a graph")
    axe(page)


def test_the_page_is_usable_on_a_phone_and_in_dark_mode(open_page: Opened, axe: Callable[[Page], None]):
    page = open_modes(open_page, "width=10&batch=8&pass=4", width=360, height=740, dark=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360
    axe(page)
