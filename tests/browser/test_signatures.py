"""The list of silent failures in a real browser: measured curves, filters, pages and links."""

from __future__ import annotations

import re

from playwright.sync_api import expect


def test_the_curves_and_the_page_of_a_failure_are_shown(open_page, axe):
    page = open_page("signatures", params="code=GRD001")
    row = page.locator("#sig-GRD001")
    expect(row.locator(".sig-plot").first).to_be_visible(timeout=120_000)
    expect(row.locator(".sig-finding-text")).to_contain_text("used all 6 gradients from an earlier step again")
    titles = row.locator(".sig-all .sig-plot figcaption b")
    expect(titles.first).to_have_text("Training loss")
    assert {"Gradient norm", "Learning rate", "Graphs alive", "Held-out accuracy"} <= set(titles.all_inner_texts())
    expect(row.locator("svg[role=img]").first).to_have_attribute("aria-label", re.compile("healthy .* broken"))
    expect(row.locator(".sig-page")).to_contain_text("Why it happens")
    expect(row.get_by_text("optimizer.zero_grad()", exact=True).first).to_be_visible()
    row.get_by_text("Show the code").click()
    expect(row.locator(".code .broken").first).to_be_visible()
    expect(row.get_by_role("link", name="Open in the simulator")).to_have_attribute(
        "href", re.compile(r"^#/simulator\?dataset=moons&.*&hidden=16&.*&bugs=GRD001&twin=1$")
    )
    for link in row.locator(".sig-page a").all():
        assert (link.get_attribute("href") or "").startswith("https://")
    axe(page)


def test_the_list_is_filtered_by_family_and_words(open_page, axe):
    page = open_page("signatures")
    total = page.locator(".sig").count()
    page.get_by_label("Family").select_option("evaluation")
    expect(page.locator(".sig:visible").first).to_contain_text("EVL")
    assert 0 < page.locator(".sig:visible").count() < total
    page.get_by_label("Family").select_option("")
    page.get_by_label("Search").fill("clear gradients")
    expect(page.locator("#sig-GRD001")).to_be_visible()
    expect(page.locator("#sig-CKP003")).to_be_hidden()
    expect(page).to_have_url(re.compile("search=clear"))
    page.get_by_label("Search").fill("CKP003")
    not_injectable = page.locator("#sig-CKP003")
    expect(not_injectable).to_contain_text("cannot be injected into the teaching loop")
    not_injectable.get_by_role("button", name="Open details").click()
    expect(not_injectable.locator(".sig-two")).to_contain_text("A script with the failure")
    not_injectable.get_by_role("button", name="Close details").click()
    expect(not_injectable.locator(".sig-page")).to_be_hidden()
    axe(page)
