"""The arena in a real browser: configure, practise, submit, compare, replay."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from trueloop.lab.arena.leaderboard import Leaderboard, Submission
from trueloop.lab.arena.tracks import DEEP
from trueloop.lab.arena.trial import Trial

Opened = Callable[..., Page]
QUICK = "track=deep&optimizer=sgd&lr=0.1&momentum=0.9&batch=64&clip=1&initialisation=orthogonal"
NAME = 'Ada <img src="x" onerror="alert(1)">'[:32]
PATIENCE_MS = 120_000  # the first run waits for torch


@pytest.fixture
def baseline(lab: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Store an invented result of the baseline, so that only one entry has to be run."""
    board = Leaderboard(tmp_path_factory.getbasetemp() / "lab0" / "data" / "trueloop" / "arena.sqlite3")
    if board.has_baseline("deep", DEEP.fingerprint):
        return
    submission = Submission(
        track="deep",
        track_fingerprint=DEEP.fingerprint,
        name="baseline",
        config=DEEP.baseline.as_json(),
        seeds=(1, 2),
        baseline=True,
    )
    number = board.submit(submission, time.time())
    board.claim_next()
    trials = [Trial(seed=seed, end="reached", updates=400 * seed, examples=12800 * seed, time=1.0) for seed in (1, 2)]
    curve = [(update, 32 * update, update / 420) for update in range(1, 401)]
    board.record_result(number, trials, {1: curve}, versions={}, now=time.time())


@pytest.mark.slow(reason="judges a whole entry")
def test_an_entry_is_practised_submitted_judged_and_replayed(open_page: Opened, baseline: None, axe):
    page = open_page("arena", params=QUICK)
    expect(page.get_by_label("learning rate")).to_have_attribute("aria-valuetext", "0.1")
    expect(page.locator(".lead-now[data-track=deep]")).to_have_text("to beat: 600 updates")

    pressed = page.evaluate("""() => {
        const button = [...document.querySelectorAll("button")].find((each) => each.innerText.includes("Practise"));
        button.click();
        return [button.innerText, button.disabled, button.getAttribute("aria-busy")];
    }""")
    assert pressed == ["Starting …", True, "true"]
    says = page.get_by_label("Practice").locator(".says")
    expect(says).to_contain_text("✓ reached", timeout=PATIENCE_MS)
    expect(says).to_contain_text(re.compile(r"after \d+ updates and [\d,]+ examples, on seed 1"))
    expect(page.locator("#announcements")).to_contain_text("✓ reached")
    expect(page.get_by_label("Held-out accuracy", exact=True).locator("canvas")).to_be_visible()

    page.get_by_label("name on the leaderboard").fill(NAME)
    page.get_by_role("button", name="Submit").click()
    expect(page.locator(".seeds li")).to_have_count(5, timeout=PATIENCE_MS)
    result = page.get_by_label("Submit").locator(".says")
    expect(result).to_contain_text("reached the target on all 5 seeds", timeout=PATIENCE_MS)
    expect(result).to_contain_text("Rank 1 in fewest updates")

    first = page.locator(".boards tbody tr").first
    expect(first.locator("button")).to_have_text(NAME)
    assert page.locator("img[src=x]").count() == 0
    entry = page.get_by_role("region", name="Entry", exact=True)
    expect(entry.get_by_role("heading", level=2)).to_contain_text(NAME)
    expect(entry.get_by_role("region", name="Seeds").locator("tbody tr")).to_have_count(5)
    axe(page)

    entry.get_by_role("button", name="Replay").click()
    expect(entry.locator(".again")).to_contain_text("bitwise equal", timeout=PATIENCE_MS)
    expect(entry.locator(".again li")).to_have_count(5)


def test_rankings_can_be_chosen_and_entries_opened(open_page: Opened, baseline: None):
    page = open_page("arena", params="track=deep")
    page.get_by_role("button", name="Fewest examples").click()
    expect(page.get_by_role("button", name="Fewest examples")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".boards th").nth(2)).to_have_text("examples to target")
    for column in ("final accuracy, %", "time per step, ms", "peak memory, MiB", "lines"):
        expect(page.locator(".boards th", has_text=column)).to_be_visible()
    page.get_by_role("button", name="baseline: show the entry").focus()
    page.keyboard.press("Enter")
    entry = page.get_by_role("region", name="Entry", exact=True)
    expect(entry).to_be_focused()
    expect(entry).to_contain_text("on all 2 seeds, after 400, 800 updates")
    entry.get_by_role("button", name="Use these settings").click()
    expect(page.get_by_label("optimizer", exact=True)).to_have_value("adam")


def test_settings_are_in_the_address_and_in_the_code(open_page: Opened):
    page = open_page("arena", params="track=spiral&seed=4")
    page.get_by_text("Show the code").click()
    code = page.locator(".code-panel", has_text="Show the code").locator(".code")
    expect(code).to_contain_text("SEED = 4")
    expect(page.get_by_label("momentum")).to_be_hidden()
    page.get_by_label("optimizer", exact=True).select_option("nesterov")
    page.get_by_label("momentum").fill("0.9")
    page.get_by_label("batch", exact=True).fill("128")
    expect(code).to_contain_text("momentum=0.9, nesterov=True")
    expect(page.get_by_label("beta 1")).to_be_hidden()
    expect(page).to_have_url(re.compile(r"#/arena\?track=spiral&seed=4&optimizer=nesterov&momentum=0\.9&batch=128"))
    page.reload()
    expect(page.get_by_label("batch", exact=True)).to_have_value("128")
    page.get_by_role("button", name=re.compile("Digits to")).click()
    expect(code).to_contain_text("load_digits")
    expect(page).to_have_url(re.compile("track=digits"))


def test_the_baseline_is_not_submitted_as_an_own_entry(open_page: Opened, baseline: None):
    page = open_page("arena", params="track=deep")
    submission = page.get_by_role("region", name="Submit", exact=True)
    expect(submission.get_by_role("button", name="Submit")).to_be_disabled()
    expect(submission).to_contain_text("These are the baseline's settings")
    page.get_by_label("batch", exact=True).fill("64")
    expect(submission.get_by_role("button", name="Submit")).to_be_enabled()
    expect(submission).not_to_contain_text("These are the baseline's settings")


def test_an_invalid_setting_is_refused_and_cannot_be_run(open_page: Opened):
    open_page.allowed = "status of 400"  # type: ignore[attr-defined] - the browser may log the refusal
    page = open_page("arena", params="track=deep")
    page.get_by_label("batch", exact=True).fill("1000000000")
    alert = page.get_by_label("Your loop").get_by_role("alert")
    expect(alert.filter(visible=True)).to_contain_text(
        "entry.batch is 1000000000. It must be a whole number from 1 to 256"
    )
    expect(page.get_by_role("button", name="Practise")).to_be_disabled()
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    page.get_by_label("batch", exact=True).fill("64")
    expect(page.get_by_role("button", name="Practise")).to_be_enabled()


@pytest.mark.parametrize(("width", "dark"), [(360, False), (1440, True)])
def test_the_page_fits_and_is_accessible(open_page: Opened, axe, baseline: None, width: int, dark: bool):
    page = open_page("arena", params="track=deep", width=width, dark=dark)
    expect(page.locator(".boards tbody tr").first).to_be_visible()
    page.evaluate("() => { for (const each of document.querySelectorAll('details')) each.open = true; }")
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    axe(page)
