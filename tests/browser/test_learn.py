"""Scripts that do not learn, in a real browser: their loss on arrival, experiments one by one, and the best change."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect


def test_a_press_brings_ranked_experiments_with_their_curves(open_page, axe):
    page: Page = open_page("learn", params="code=LRN003")
    expect(page.locator(".learn-run .loss-plot")).to_have_attribute(
        "aria-label", re.compile("always answering the mean")
    )
    expect(page.locator(".learn-run")).to_contain_text("Weight decay of Adam")
    expect(page.locator(".code .hit")).to_contain_text("weight_decay=0.5")
    axe(page)
    page.evaluate("""() => {
        window.counts = [];
        new MutationObserver(() => window.counts.push(document.querySelectorAll(".learn-tile").length))
            .observe(document.querySelector(".learn-list"), { childList: true });
    }""")
    page.get_by_role("button", name="Diagnose").press("Enter")
    expect(page.locator(".learn-headline")).to_have_text("It can learn: no weight decay.", timeout=120_000)
    counts = [count for count in page.evaluate("() => window.counts") if count]
    assert counts[:3] == [1, 2, 3], "they arrive one by one"
    first = page.locator(".learn-tile").first
    expect(first).to_contain_text("helps")
    expect(first).to_contain_text("weight_decay=0 instead of 0.5")
    expect(first.locator(".learn-place")).to_have_text(re.compile(r"^train\.py:\d+$"))
    for tile in page.locator(".learn-tile").all():
        expect(tile.locator("polyline.after")).not_to_have_count(0)
        expect(tile.locator(".level")).to_have_count(1)
    axe(page)


def test_another_script_is_opened_while_experiments_run(open_page):
    page: Page = open_page("learn", width=390)
    expect(page).to_have_url(re.compile("code=LRN004"))
    page.get_by_role("button", name="Diagnose").click()
    expect(page.locator(".learn-tile").first).to_be_visible()
    page.get_by_label("Learning rate is too low or too high").check()
    expect(page.locator(".learn-tile")).to_have_count(0)
    expect(page.locator(".learn-run")).to_contain_text("Learning rate 1.00e-07")
    expect(page).to_have_url(re.compile("code=LRN006"))
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
