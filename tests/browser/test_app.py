"""The frame around all pages: navigation by mouse and keyboard, colours, phones, the tour and the class view."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from trueloop.lab.serving import STATIC

Opened = Callable[..., Page]
PAGES = sorted(file.stem for file in (STATIC / "pages").glob("*.js"))


def test_every_page_is_in_the_navigation(open_page: Opened):
    page = open_page("arithmetic")
    links = page.locator("#nav a")
    assert sorted(link.get_attribute("href").removeprefix("#/") for link in links.all()) == PAGES


def test_a_page_is_reached_by_keyboard_and_announced(open_page: Opened):
    page = open_page("arithmetic")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    link = page.get_by_role("link", name="Pipeline")
    link.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(re.compile("ipeline"))
    expect(page.locator("#announcements")).to_contain_text("trueloop lab")
    expect(link).to_have_attribute("aria-current", "page")
    page.go_back()
    expect(page.get_by_role("link", name="Arithmetic")).to_have_attribute("aria-current", "page")


def test_an_unknown_address_opens_the_simulator(open_page: Opened):
    page = open_page("nonsense")
    expect(page.get_by_role("link", name="Simulator")).to_have_attribute("aria-current", "page")


def test_the_chosen_colours_are_stored(open_page: Opened):
    page = open_page("arithmetic")
    background = "() => getComputedStyle(document.body.parentElement).backgroundColor"
    light = page.evaluate(background)
    for theme in ("dark", "light", "follow the system", "dark"):  # the first click changes what is shown
        page.locator("#theme").click()
        expect(page.locator("#theme")).to_have_attribute("aria-label", f"Colours: {theme}")
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    assert page.evaluate(background) == dark


def test_a_printed_page_is_light_and_shows_numbers(open_page: Opened):
    page = open_page("modes", params="pass=1", dark=True)
    page.locator(".all-numbers > summary").first.click()
    expect(page.locator(".side .cell").first).to_be_visible()
    page.emulate_media(media="print")
    assert page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor") == "rgb(251, 250, 248)"
    expect(page.locator(".side .cell").first).to_be_visible()
    expect(page.locator(".player").first).to_be_hidden()


def test_on_a_phone_the_menu_opens_and_nothing_overflows(open_page: Opened, axe: Callable[[Page], None]):
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


def test_every_page_downloads_less_than_400_kb(open_page: Opened):
    for name in PAGES:
        page = open_page(name)
        if name == "simulator":  # no worker is ever up, so the recorded run plays, and is downloaded
            page.emulate_media(reduced_motion="no-preference")
            page.route_web_socket("**/live/simulator", lambda socket: None)
            page.reload()
            expect(page.locator(".state")).to_have_text("recorded run")
            expect(page.locator("dl.live dd[data-k=update]")).to_have_text(re.compile("[1-9]"))
        page.wait_for_timeout(1000)  # files that are requested late count, too
        sizes = page.evaluate("() => performance.getEntries().map((entry) => [entry.name, entry.transferSize ?? 0])")
        assert any("opening_run" in url and size for url, size in sizes) == (name == "simulator"), sizes
        assert sum(size for _, size in sizes) < 400_000, (name, sizes)


def test_functions_of_the_modules(open_page: Opened):
    page = open_page("arithmetic")
    result = page.evaluate("""async () => {
        const { formatNumber, h } = await import("./dom.js");
        const { decodeFrame } = await import("./net.js");
        const { finite } = await import("./chart.js");
        const header = new TextEncoder().encode('{"frame":3,"planes":[{"width":2,"height":1}]}   ');
        const data = new Uint8Array(4 + header.length + 2);
        new DataView(data.buffer).setUint32(0, header.length, true);
        data.set(header, 4);
        data.set([7, 9], 4 + header.length);
        const [head, planes] = decodeFrame(data.buffer);
        return {
            numbers: ["nan", "-inf", 1234567, 0.1234567, 1e-7, null].map((value) => formatNumber(value)),
            finite: ["nan", null, 2].map(finite),
            text: h("p", {}, "<b>", 0, null, false, ["x"]).innerHTML,
            frame: [head.frame, [...planes[0]]],
        };
    }""")
    assert result["numbers"] == ["NaN", "−∞", "1,234,567", "0.1235", "1.00e−7", "–"]  # noqa: RUF001 - minus signs
    assert result["finite"] == [None, None, 2]
    assert result["text"] == "&lt;b&gt;0x"
    assert result["frame"] == [3, [7, 9]]


def test_the_tour_highlights_elements_and_can_be_repeated(open_page: Opened, axe):
    page = open_page("arithmetic", params="batch=7")
    offer = page.locator("#tour")
    expect(offer).to_have_text("New here? Take the tour")
    expect(page.get_by_role("dialog")).to_have_count(0)  # the tour does not start by itself
    offer.press("Enter")
    dialog = page.get_by_role("dialog", name="Train a network")
    expect(dialog).to_be_focused()
    expect(page.locator("h1")).to_have_text("Simulator")
    play, ring = page.locator(".sim-bar .play"), page.locator(".tour-ring")
    expect(ring).to_be_visible()
    surrounds = """([inner, outer]) => {
        const [inside, around] = [inner, outer].map((each) => each.getBoundingClientRect());
        return around.left < inside.left && around.right > inside.right;
    }"""
    page.wait_for_function(surrounds, arg=[play.element_handle(), ring.element_handle()])
    axe(page)
    titles = []
    while page.locator(".tour").get_by_role("button", name="Next").is_visible():
        titles.append(page.locator("#tour-title").inner_text())
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tour")).to_be_focused()
        expect(ring).to_be_visible()
    assert len(titles) == len(set(titles)) == 7  # eight with the last, which has no button Next
    page.get_by_role("link", name="Back to the first page").click()
    expect(page.locator("h1")).to_have_text("Arithmetic")
    expect(page.get_by_label("Batch size B")).to_have_value("7")
    expect(page.locator(".tour, .tour-ring")).to_have_count(0)
    page.reload()
    expect(offer).to_have_text("Tour")
    requests = []
    page.route("**/pages/simulator.js", lambda route: requests.append(route))  # noqa: PLW0108 - a builtin has no signature
    offer.click()
    expect(page.locator(".tour")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".tour")).to_have_count(0)
    page.wait_for_function("document.activeElement.id === 'tour'")
    requests.pop().continue_()
    expect(page.locator("h1")).to_have_text("Simulator")
    expect(offer).to_be_focused()  # a page that loads late leaves the focus where the user has put it


def test_the_class_view_shows_steps_and_hides_failures(open_page: Opened, axe):
    page = open_page("simulator", params="samples=60&epochs=1000&bugs=GRD001")
    page.get_by_role("button", name="Class", exact=True).click()
    page.get_by_label("Text size").select_option("very large")
    page.get_by_label("Steps, one per line").fill("Press Train\n\n<b>Look</b>")
    axe(page)
    page.get_by_role("button", name="Open the class view").click()
    expect(page.locator(".steps label")).to_have_text(["Press Train", "<b>Look</b>"])
    expect(page).not_to_have_url(re.compile("GRD001|samples"))
    page.get_by_role("button", name="Train").click()
    expect(page.locator("#announcements")).to_have_text("The sanitizer has found something.")
    for part in (".findings", ".bugs-panel", ".sim-events", "#nav"):
        expect(page.locator(part)).to_be_hidden()
    assert page.evaluate("() => getComputedStyle(document.documentElement).fontSize") == "22.5px"
    axe(page)
    page.get_by_role("button", name="Reveal").click()
    expect(page.locator(".finding")).to_be_visible()
    expect(page.locator(".sim-events")).to_contain_text("GRD001 seen")
    page.reload()
    expect(page.locator(".steps li")).to_have_count(2)
    expect(page.locator(".findings")).to_be_hidden()
    page.get_by_role("button", name="Close the class view").click()
    expect(page.locator(".bugs-panel")).to_be_visible()
    expect(page).to_have_url(re.compile("bugs=GRD001"))


def test_an_invalid_class_link_is_ignored(open_page: Opened):
    page = open_page("arithmetic", params="class=%21%21")
    assert page.evaluate("""async () => {
        const { encodeView, decodeView } = await import("./classroom.js");
        const result = { size: 125, hide: ["spoilers"], steps: ["größer → kleiner"] };
        const word = encodeView(result, { bugs: "GRD001" });
        const bad = { size: 9999, hide: ["everything", 3], steps: [1, "x".repeat(5000), ...Array(99).fill("y")] };
        const { view, params } = decodeView(encodeView(bad, { a: 1, b: "2" }));
        const same = JSON.stringify(decodeView(word)) === JSON.stringify({ view: result, params: { bugs: "GRD001" } });
        return [same, /^[\\w-]+$/.test(word), decodeView("!!"), decodeView("A".repeat(9000)),
          view.size, view.hide, view.steps.map(({ length }) => length), params];
    }""") == [True, True, None, None, 125, [], [160, *[1] * 11], {"b": "2"}]  # fmt: skip
    expect(page.locator("#steps")).to_be_hidden()


def test_buttons_pressed_before_the_first_answer_take_effect_after_it(open_page: Opened):
    page = open_page("arithmetic")
    assert page.evaluate("""async () => {
        const { player } = await import("./player.js");
        const { fromText } = await import("./controls.js");
        let there = false;
        const shown = [], show = (step) => shown.push(step);
        const made = player({ count: () => 9, ready: () => there, show, perStep_ms: 1e6 });
        const [play, , on] = made.element.querySelectorAll("button");
        on.click(); on.click();
        const before = [...shown];
        there = true;
        made.go(1);
        made.go(1);
        there = false;
        play.click();
        there = true;
        const waits = made.playing();
        made.go(0);
        const texts = ["7", "abc", "NaN", "", "1e400"].map((text) => fromText({ kind: "int" }, text));
        const plays = made.playing();
        made.pause();
        return [before, shown, waits, plays, texts];
    }""") == [[], [3, 1, 0], True, True, [7, "abc", "NaN", "", "1e400"]]


def test_a_late_address_of_the_previous_page_is_ignored(open_page: Opened):
    page = open_page("sheet")
    expect(page.get_by_role("searchbox")).to_be_visible()
    moved = """() => {
      location.hash = '#/arithmetic';  // the event comes after this script
      const field = document.querySelector('input[type=search]');
      field.value = 'GRD';
      field.dispatchEvent(new Event('input', { bubbles: true }));
    }"""
    page.evaluate(moved)
    expect(page.locator("h1")).to_have_text("Arithmetic")
    expect(page.get_by_role("link", name="Arithmetic")).to_have_attribute("aria-current", "page")
