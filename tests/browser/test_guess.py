"""Guess the bug in a real browser: answers by mouse and keyboard, evidence, score, link and video."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from trueloop.lab.views.guess import game

WEBM = b"\x1a\x45\xdf\xa3"  # the first bytes of a WebM file


def right_answer(seed: int, number: int) -> str:
    return game(seed)[number - 1].code


def test_a_round_is_answered_by_keyboard_and_shows_the_evidence(open_page, axe):
    page: Page = open_page("guess", params="seed=3")
    answers = page.locator(".guess-answers button")
    expect(answers).to_have_count(4)
    expect(page.locator("canvas.film")).to_have_attribute(
        "aria-label", re.compile("Training loss: correct .*, with the bug")
    )
    assert painted_colours(page) > 20, "the end of the film is shown at once where motion is reduced"
    axe(page)
    codes = answers.evaluate_all("(buttons) => buttons.map((each) => each.dataset.code)")
    page.keyboard.press(str(codes.index(right_answer(3, 1)) + 1))
    expect(page.locator(".guess-evidence h2")).to_contain_text("Right:")
    expect(page.locator(".guess-place")).to_have_text(re.compile(r"^simulation\.py:\d+$"))
    line = page.locator(".guess-place").inner_text().partition(":")[2]
    hit = page.locator(".guess-evidence .hit")
    start = int(page.locator(".guess-evidence pre").evaluate("(pre) => pre.style.counterReset.split(' ')[1]"))
    assert int(hit.get_attribute("data-line") or 0) + start == int(line), "the line has its number in the script"
    expect(page.locator(".guess-evidence")).to_contain_text("Fix:")
    expect(page.get_by_role("link", name="Train both in the simulator")).to_have_attribute(
        "href", re.compile(f"bugs={right_answer(3, 1)}&twin=1$")
    )
    expect(page.locator(".guess-score .right")).to_have_count(1)
    expect(page.get_by_role("button", name="Next round")).to_be_focused()
    axe(page)
    page.keyboard.press("Enter")
    expect(page.locator(".guess-score [aria-current=step]")).to_contain_text("2")
    expect(answers.first).to_be_enabled()
    codes = answers.evaluate_all("(buttons) => buttons.map((each) => each.dataset.code)")
    answers.nth((codes.index(right_answer(3, 2)) + 1) % 4).click()
    expect(page.locator(".guess-evidence h2")).to_contain_text("It was:")
    expect(page.locator(".guess-score .wrong")).to_have_count(1)


def test_ten_rounds_have_a_score_and_the_address_opens_them_again(open_page):
    page: Page = open_page("guess")
    expect(page).to_have_url(re.compile(r"#/guess\?seed=\d+$"))
    page.goto(f"{page.url.partition('#')[0]}#/guess?seed=5")
    for number in range(1, 11):
        page.locator(f".guess-answers [data-code={right_answer(5, number)}]").click()
        expect(page.locator(".guess-score .right")).to_have_count(number)
        if number < 10:
            page.get_by_role("button", name="Next round").click()
    expect(page.locator(".guess-end")).to_contain_text("10 of 10 found")
    expect(page).to_have_url(re.compile(r"#/guess\?seed=5$"))
    page.get_by_role("button", name="Another ten").click()
    expect(page.locator(".guess-score .right")).to_have_count(0)
    expect(page).not_to_have_url(re.compile(r"seed=5$"))


def test_a_twin_run_is_saved_as_a_video(open_page, tmp_path):
    page: Page = open_page("guess", params="code=GRD001", width=390, dark=True)
    expect(page.locator(".guess-place")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as video").click()
    assert download.value.suggested_filename == "twin-run-GRD001.webm"
    download.value.save_as(tmp_path / "film.webm")
    data = (tmp_path / "film.webm").read_bytes()
    assert data.startswith(WEBM)
    assert 50_000 < len(data) < 4_000_000
    page.get_by_label("Another twin run").select_option("SCH006")
    expect(page.locator(".guess-evidence h2")).to_have_text("scheduler.step() is never called")


def painted_colours(page: Page) -> int:
    return page.evaluate("""() => {
        const canvas = document.querySelector("canvas.film");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size;
    }""")
