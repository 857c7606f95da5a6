"""The wall of silent failures in a real browser: tiles, search, and the page of one failure."""

from __future__ import annotations

import re

from playwright.sync_api import expect


def test_a_tile_is_measured_described_and_opens_the_page_of_its_failure(open_page, axe):
    page = open_page("signatures", width=1440)
    tile = page.get_by_role("link", name="GRD001: Gradients are never cleared")
    expect(tile.locator("polyline")).to_have_count(2, timeout=120_000)
    about = page.locator(".sig-about")
    page.get_by_role("link", name=re.compile("^OPT006")).hover()
    expect(about).to_contain_text("optimizer.step() is never called")
    tile.focus()
    expect(about.locator("h2")).to_have_text("Gradients are never cleared")
    expect(about.get_by_role("img")).to_have_attribute("aria-label", re.compile("^Gradient norm. At the end: healthy"))
    assert 1700 < page.evaluate("() => document.documentElement.scrollHeight") < 2300
    axe(page)
    page.route("**/api/signature", lambda route: None)  # its curves are not measured yet
    tile.press("Enter")
    expect(page.locator(".sig-measured .sig-plot")).to_have_count(1)  # that of the wall
    expect(page).to_have_url(re.compile("code=GRD001$"))
    expect(page.get_by_role("heading", name="Gradients are never cleared")).to_be_focused()
    expect(page.locator(".sig-wall")).to_have_count(0)
    page.get_by_role("link", name="All signatures").click()
    expect(tile).to_be_focused()
    expect(tile.locator("polyline")).to_have_count(2)


def test_the_curves_and_the_page_of_a_failure_are_shown(open_page, axe):
    page = open_page("signatures", params="code=GRD001")
    article = page.locator("#sig-GRD001")
    expect(article.locator(".sig-plot").first).to_be_visible(timeout=120_000)
    expect(article.locator(".sig-finding-text")).to_contain_text("used all 6 gradients from an earlier step again")
    titles = article.locator(".sig-all .sig-plot figcaption b")
    expect(titles.first).to_have_text("Training loss")
    for title in ("Gradient norm", "Learning rate", "Graphs alive", "Held-out accuracy"):
        expect(titles.filter(has_text=title)).not_to_have_count(0)
    expect(article.locator("svg[role=img]").first).to_have_attribute("aria-label", re.compile("healthy .* broken"))
    expect(article).to_contain_text("Why it happens")
    expect(article.get_by_text("optimizer.zero_grad()", exact=True).first).to_be_visible()
    article.get_by_text("Show the code").click()
    expect(article.locator(".code .broken").first).to_be_visible()
    expect(article.get_by_role("link", name="Open in the simulator")).to_have_attribute(
        "href", re.compile(r"^#/simulator\?dataset=moons&.*&hidden=16&.*&bugs=GRD001&twin=1$")
    )
    for link in article.locator("a[target=_blank]").all():
        assert (link.get_attribute("href") or "").startswith("https://")
    axe(page)
    article.get_by_role("link", name="next").click()
    expect(page.locator("#sig-GRD002")).to_be_visible()


def test_words_filter_the_wall_and_the_other_failures(open_page, axe):
    page = open_page("signatures", width=390, height=844)
    tile, other = page.get_by_role("link", name=re.compile("^GRD001")), page.get_by_role("link", name="torch.load runs")
    expect(page.get_by_role("link", name="Freezing has no effect")).to_be_visible()
    expect(other).to_be_hidden()  # in a family that is folded
    expect(tile).to_contain_text("Gradients are never cleared")  # nothing points at a tile on a phone
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page.get_by_label("Search").fill("clear gradients")
    expect(other).to_be_hidden()
    expect(tile).to_be_visible()
    expect(page).to_have_url(re.compile("search=clear"))
    page.get_by_label("Search").fill("CKP003")
    expect(tile).to_be_hidden()
    expect(other).to_be_visible()
    axe(page)
    other.click()
    article = page.locator("#sig-CKP003")
    expect(article).to_contain_text("cannot be injected into the teaching loop")
    expect(article.locator(".sig-two")).to_contain_text("A script with the failure")


def test_an_unknown_failure_is_reported_above_the_wall(open_page):
    page = open_page("signatures", params="code=XYZ999")
    expect(page.get_by_role("alert")).to_have_text("There is no failure XYZ999.")
    expect(page.get_by_role("link", name=re.compile("^GRD001"))).to_be_visible()
