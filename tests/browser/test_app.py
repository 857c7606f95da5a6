"""The shell: navigation by mouse and keyboard, colours, phones, and what happens when the server is gone."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from trueloop.faces.lab.server import STATIC

Opened = Callable[..., Page]
PAGES = sorted(file.stem for file in (STATIC / "pages").glob("*.js"))


def test_every_page_is_in_the_navigation_and_there(open_page: Opened):
    page = open_page("arithmetic")
    links = page.locator("#nav a")
    assert sorted(link.get_attribute("href").removeprefix("#/") for link in links.all()) == PAGES


def test_a_page_is_reached_by_keyboard_and_told(open_page: Opened):
    page = open_page("arithmetic")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    link = page.get_by_role("link", name="Pipeline")
    link.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(re.compile("ipeline"))
    expect(page.locator("#said")).to_contain_text("trueloop lab")
    expect(link).to_have_attribute("aria-current", "page")
    page.go_back()
    expect(page.get_by_role("link", name="Arithmetic")).to_have_attribute("aria-current", "page")


def test_an_address_that_is_none_leads_home(open_page: Opened):
    page = open_page("nonsense")
    expect(page.get_by_role("link", name="Simulator")).to_have_attribute("aria-current", "page")


def test_colours_are_chosen_and_kept(open_page: Opened):
    page = open_page("arithmetic")
    paper = "() => getComputedStyle(document.body.parentElement).backgroundColor"
    light = page.evaluate(paper)
    for kind in ("light", "dark"):
        page.locator("#theme").click()
        expect(page.locator("#theme")).to_have_attribute("aria-label", f"Colours: {kind}")
    dark = page.evaluate(paper)
    assert dark != light
    page.reload()
    assert page.evaluate(paper) == dark


def test_paper_is_white_and_keeps_numbers_that_can_be_pressed(open_page: Opened):
    page = open_page("modes", params="pass=1", dark=True)
    expect(page.locator(".side .cell").first).to_be_visible()
    page.emulate_media(media="print")
    assert page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor") == "rgb(251, 250, 248)"
    expect(page.locator(".side .cell").first).to_be_visible()
    expect(page.locator(".player").first).to_be_hidden()


def test_on_a_phone_the_menu_opens_and_nothing_hangs_over(open_page: Opened, axe: Callable[[Page], None]):
    page = open_page("arithmetic", width=360, height=740)
    expect(page.locator("#nav")).to_be_hidden()
    page.locator("#menu").click()
    expect(page.locator("#nav")).to_be_visible()
    axe(page)
    page.keyboard.press("Escape")
    expect(page.locator("#nav")).to_be_hidden()
    for name in PAGES:
        page.goto(f"{page.url.partition('#')[0]}#/{name}")
        page.wait_for_function("() => document.querySelector('#page > .page')?.innerText.length > 100")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360, name


def test_no_page_is_heavy(open_page: Opened):
    for name in PAGES:
        page = open_page(name)
        loaded = "() => performance.getEntries().map((entry) => entry.decodedBodySize ?? 0)"
        assert sum(page.evaluate(loaded)) < 400_000, name


def test_what_the_modules_do(open_page: Opened):
    page = open_page("arithmetic")
    told = page.evaluate("""async () => {
        const { number, h } = await import("./dom.js");
        const { frame } = await import("./net.js");
        const { finite } = await import("./chart.js");
        const header = new TextEncoder().encode('{"frame":3,"planes":[{"width":2,"height":1}]}   ');
        const data = new Uint8Array(4 + header.length + 2);
        new DataView(data.buffer).setUint32(0, header.length, true);
        data.set(header, 4);
        data.set([7, 9], 4 + header.length);
        const [head, planes] = frame(data.buffer);
        return {
            numbers: ["nan", "-inf", 1234567, 0.1234567, 1e-7, null].map((value) => number(value)),
            finite: ["nan", null, 2].map(finite),
            text: h("p", {}, "<b>", 0, null, false, ["x"]).innerHTML,
            frame: [head.frame, [...planes[0]]],
        };
    }""")
    assert told["numbers"] == ["NaN", "−∞", "1,234,567", "0.1235", "1.00e−7", "–"]  # noqa: RUF001 - minus signs
    assert told["finite"] == [None, None, 2]
    assert told["text"] == "&lt;b&gt;0x"
    assert told["frame"] == [3, [7, 9]]
