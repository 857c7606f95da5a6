"""The cheat sheet is complete, can be searched, and prints on four pages."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from trueloop.failures.load import catalogue

Opened = Callable[..., Page]


def wait_until_complete(page: Page) -> None:
    """Wait for the arguments of DataLoader, which come from a process that imports torch."""
    page.wait_for_selector(".arguments tbody tr:not([hidden])")


def test_the_sheet_is_complete_and_prints_on_four_pages(open_page: Opened, axe: Callable[[Page], None]):
    page = open_page("sheet")
    wait_until_complete(page)
    expect(page.locator(".bugs tbody tr")).to_have_count(len(catalogue()))
    headings = ["Words", "Counts", "DataLoader arguments", "Loops", "Silent failures"]
    expect(page.locator(".sheet h2")).to_have_text(headings)
    expect(page.locator(".loop")).to_have_count(5)
    expect(page.locator("#announcements")).to_have_text("The cheat sheet is loaded.")
    axe(page)
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 4


def test_the_sheet_can_be_searched_and_the_search_shared(open_page: Opened):
    page = open_page("sheet", params="find=clip+scaler")
    page.wait_for_selector(".bugs tbody tr:not([hidden])")
    expect(page.locator(".tools [role=status]")).to_have_text(re.compile(r"^[1-9]\d* found$"))
    expect(page.locator(".bugs tr:visible", has_text="PRC001")).to_have_count(1)
    expect(page.locator(".arguments")).to_be_hidden()
    page.get_by_label("Find").fill("pin_memory")
    wait_until_complete(page)
    expect(page.locator(".arguments tbody tr:visible")).to_have_count(2)
    assert page.evaluate("() => location.hash") == "#/sheet?find=pin_memory"
    page.get_by_label("Find").fill("")
    expect(page.locator(".bugs tbody tr:visible")).to_have_count(len(catalogue()))


def test_on_a_phone_nothing_overflows(open_page: Opened, axe: Callable[[Page], None]):
    page = open_page("sheet", width=360, height=740, dark=True)
    wait_until_complete(page)
    expect(page.locator(".bugs tbody tr")).to_have_count(len(catalogue()))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
    axe(page)
