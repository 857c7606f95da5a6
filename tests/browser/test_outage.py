"""The server is stopped and started again under pages that only ask: each goes on by itself."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect

OUTAGE = ".outage"


def test_pages_come_back_by_themselves(served, tmp_path, browser: Browser):
    context = browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(30_000)

    def opened(name: str, heading: str) -> Page:
        page = context.new_page()
        page.goto(f"{address}#/{name}")
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
        return page

    with served(tmp_path) as address:
        asking, leaving = opened("arithmetic", "To notice"), opened("sheet", "DataLoader arguments")
        expect(leaving.get_by_text("num_workers").first).to_be_visible()
    asking.get_by_label("Batch size B").fill("64")
    expect(asking.locator(OUTAGE)).to_contain_text("does not answer")
    leaving.get_by_role("link", name="Pipeline").click()
    expect(leaving.locator(OUTAGE)).to_contain_text("does not answer")
    with served(tmp_path, port=urlsplit(address).port):
        for page in (asking, leaving):  # one at a time is in front: a tab that nobody sees does not ask
            page.bring_to_front()
            expect(page.locator(OUTAGE)).to_be_empty()
        asking.bring_to_front()
        expect(asking.locator("[data-key='effective_batch'] .value, [data-key='effective'] .value").first).to_have_text(
            "256"
        )
        leaving.bring_to_front()
        expect(leaving.get_by_role("heading", name="What happened")).to_be_visible()
        context.close()
