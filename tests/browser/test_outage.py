"""Pages continue by themselves when the server is stopped and started again."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect

OUTAGE = ".outage"


def test_pages_recover_by_themselves(served, tmp_path, browser: Browser):
    context = browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(30_000)

    def opened(name: str, heading: str) -> Page:
        page = context.new_page()
        page.goto(f"{address}#/{name}")
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
        return page

    with served(tmp_path) as address:
        requesting, navigating = opened("arithmetic", "The whole run"), opened("sheet", "DataLoader arguments")
        expect(navigating.get_by_text("num_workers").first).to_be_visible()
    requesting.get_by_label("Batch size B").fill("64")
    expect(requesting.locator(OUTAGE)).to_contain_text("does not answer")
    navigating.get_by_role("link", name="Pipeline").click()
    expect(navigating.locator(OUTAGE)).to_contain_text("does not answer")
    with served(tmp_path, port=urlsplit(address).port):
        for page in (requesting, navigating):  # bring each page to the front, because hidden tabs send no requests
            page.bring_to_front()
            expect(page.locator(OUTAGE)).to_be_empty()
        requesting.bring_to_front()
        effective_batch = requesting.locator("[data-key='effective_batch'] .value")
        expect(effective_batch).to_have_text("256")
        navigating.bring_to_front()
        expect(navigating.get_by_role("heading", name="What happened")).to_be_visible()
        context.close()
