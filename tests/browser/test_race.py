"""The race of runs in a real browser: several synchronised trainings on shared axes."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

from playwright.sync_api import Page, expect

Opened = Callable[..., Page]
EQUAL = {"samples": "60", "epochs": "40", "a": "optimizer=adam", "b": "optimizer=adam", "goal": "0.6"}


def rows(page: Page) -> dict[str, list[str]]:
    """Return the cells of the table of standings, by runner."""
    cells = [row.locator("th, td").all_inner_texts() for row in page.locator(".standing tbody tr").all()]
    return {row[1]: row for row in cells}


def test_three_synchronised_runs_are_compared(open_page: Opened, axe: Callable[[Page], None]):
    page = open_page("race", params=urlencode({**EQUAL, "c": "bugs=GRD001"}))
    expect(page.locator(".state")).to_have_text("ready")
    page.get_by_role("button", name="Step").click()
    expect(page.locator(".standing tbody tr td:nth-child(4)")).to_have_text(["1", "1", "1"])
    page.get_by_role("button", name="Train all").click()
    expect(page.locator(".state")).to_have_text("finished")
    expect(page.locator(".sim-status")).to_contain_text("The race is over.")
    standings = rows(page)
    assert standings.keys() == {"A", "B", "C"}
    assert [row[3] for row in standings.values()] == ["120"] * 3  # 48 points in batches of 16, 40 times
    assert standings["A"][3:8] == standings["B"][3:8] != standings["C"][3:8]  # the same seed
    assert [standings[name][2] for name in "BC"] == ["the same as A", "with GRD001"]
    assert [standings[name][8] for name in "AC"] == ["✓", "GRD001"]
    expect(page.get_by_label("Runner C", exact=True).locator(".verdict")).to_contain_text("GRD001 Gradients are never")
    updates = int(standings["A"][7].split()[0])
    page.get_by_label("counted in").select_option("examples seen")
    assert rows(page)["A"][7] == f"{updates * 16:,} examples"  # the accuracy is evaluated after each epoch
    axe(page)


def test_runners_are_added_and_removed_with_the_address(open_page: Opened):
    page = open_page("simulator", params="samples=60&epochs=40&optimizer=momentum&bugs=GRD001")
    page.get_by_role("button", name="Race").click()
    expect(page.locator(".lane h2")).to_contain_text(["Runner A", "Runner B"])
    expect(page.locator(".standing tbody")).to_contain_text("with GRD001")
    expect(page.get_by_label("Runner B", exact=True).get_by_label("optimizer")).to_have_value("SGD + momentum")
    page.goto(f"{page.url.partition('#')[0]}#/race?{urlencode(EQUAL)}")
    expect(page.locator(".standing tbody")).not_to_contain_text("GRD001")
    expect(page.locator(".state")).to_have_text("ready")
    add = page.get_by_role("button", name="Add a runner")
    for _ in "CD":
        add.click()
    expect(page.locator(".lane")).to_have_count(4)
    expect(add).to_be_disabled()
    page.get_by_label("Runner D", exact=True).get_by_label("failure").select_option("SCH002")
    expect(page.get_by_label("Runner D", exact=True).locator(".needs")).to_contain_text("batches per update 4")
    page.get_by_role("button", name="Remove runner B").click()
    expect(page.locator(".lane h2")).to_contain_text(["Runner A", "Runner C", "Runner D"])
    expect(page.locator(".state")).to_have_text("ready")
    page.wait_for_function("() => location.hash.includes('SCH002') && !location.hash.includes('&b=')")
    page.get_by_label("Runner A", exact=True).get_by_label("optimizer").select_option("AdamW")
    expect(page.locator(".standing")).to_contain_text("optimizer adamw")


def test_a_run_that_cannot_start_is_refused_with_a_message(open_page: Opened):
    open_page.allowed = "status of 400"  # type: ignore[attr-defined] - the browser may log the refusal
    page = open_page("race", params=urlencode({**EQUAL, "b": "batch=0", "c": "bugs=NO"}))
    expect(page.locator(".sim-status")).to_contain_text("batch is 0")
