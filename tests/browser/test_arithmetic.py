"""The arithmetic page in a real browser: counts, timeline, one update, address."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from trueloop.core.arithmetic import Plan, plan
from trueloop.core.formatting import format_number
from trueloop.lab.teaching.one_update import step
from trueloop.lab.teaching.programs.one_step import OneStep
from trueloop.lab.views.arithmetic import counts

Opened = Callable[..., Page]
expect.set_options(timeout=30_000)  # the first answer waits for torch


def expect_counts(page: Page, expected: Plan) -> None:
    """Expect the counts of a plan on the page."""
    for key in ("effective_batch", "iterations_per_epoch", "updates", "examples_seen"):
        expect(page.locator(f"[data-key={key}] .value")).to_have_text(format_number(getattr(expected, key)))


def test_the_counts_and_the_address_follow_the_inputs(open_page: Opened):
    page = open_page("arithmetic")
    expect_counts(page, plan(dataset=10_000, batch=32, epochs=3, accumulate=4))
    page.get_by_label("Dataset size N").fill("1003")
    page.get_by_label("Accumulation K").fill("1")
    page.get_by_label("Processes P").fill("6")
    expected = plan(dataset=1003, batch=32, epochs=3, processes=6)
    expect_counts(page, expected)
    expect(page.locator("[data-key=repeated_per_epoch] .value")).to_have_text("5")
    expect(page.locator(".notes")).to_contain_text("1003 examples cannot be split evenly over 6 processes")
    page.get_by_label("Learning rate").fill("0.5")
    page.wait_for_function("() => location.hash.includes('processes=6') && location.hash.includes('lr=0.5')")
    page.reload()
    expect_counts(page, expected)
    expect(page.get_by_label("Learning rate")).to_have_value("0.5")
    expect(page.get_by_label("Dataset size N")).to_have_value("1003")
    page.locator("summary", has_text="Time, memory").click()
    page.get_by_label("Milliseconds per update").fill("200")
    expect(page.locator("[data-key=duration] .value")).to_have_text("3.6 s")
    page.locator("summary", has_text=re.compile("^Show the code$")).click()
    expect(page.locator("details.code-panel[open] .code")).to_have_text(counts(expected), use_inner_text=False)


def test_an_error_is_shown_next_to_its_field(open_page: Opened, axe: Callable[[Page], None]):
    open_page.allowed = "status of 400"  # type: ignore[attr-defined] - the browser may log the refusal
    page = open_page("arithmetic")
    batch = page.get_by_label("Batch size B")
    batch.fill("0")
    field_error = page.locator(".field.refused .error")
    expect(field_error).to_have_text("batch is 0. It must be a whole number from 1 to 1,000,000,000.")
    batch.fill("")
    expect(field_error).to_have_text("batch is empty. It must be a whole number.")
    batch.fill("2.5")
    expect(field_error).to_contain_text("batch is 2.5.")
    expect(batch).to_have_attribute("aria-invalid", "true")
    axe(page)  # outdated counts are still legible
    batch.fill("64")
    expect(page.locator(".error")).to_be_hidden()
    page.get_by_label("Dataset size N").fill("40")
    page.get_by_label("Drop the last partial batch").check()
    expect(page.locator(".error")).to_contain_text("drop_last with batch 64 on 1 process leaves nothing of the 40")
    expect(page.locator(".page")).to_have_class(re.compile("stale"))
    page.get_by_label("Drop the last partial batch").uncheck()
    expect_counts(page, plan(dataset=40, batch=64, epochs=3, accumulate=4))
    expect(page.locator(".page")).not_to_have_class(re.compile("stale"))


def test_the_timeline_is_stepped_through(open_page: Opened):
    page = open_page("arithmetic", params="dataset=100&batch=16&epochs=2&accumulate=4")
    says = page.locator(".timeline .says")
    expect(says).to_have_text(re.compile("^Epoch 1 of 2, iteration 1 of 7: 16 of 16"))
    expect(page.locator(".windows .window")).to_have_count(2)
    expect(page.locator(".windows .tick:not(.missing)")).to_have_count(7)
    expect(page.locator(".windows .tick.missing")).to_have_count(1)
    sizes = (
        "() => [...document.querySelectorAll('.windows .tick')].map((tick) => [tick.offsetWidth, tick.offsetHeight])"
    )
    full, *_, partial, _ = page.evaluate(sizes)
    assert partial[0] < full[0]
    assert partial[1] < full[1]
    page.get_by_label("Next iteration").click()
    expect(page.locator(".windows .tick.held")).to_have_count(1)
    page.get_by_role("button", name="To the last iteration of the epoch").click()
    expect(says).to_have_text(re.compile(r"iteration 7 of 7: 4 of 16 examples\. .* update 2 follows\.$"))
    expect(page.locator("#announcements")).to_contain_text("iteration 7 of 7")
    expect(page.locator(".windows .tick.spent")).to_have_count(6)
    page.get_by_role("button", name="To the next epoch").click()
    expect(says).to_have_text(re.compile("^Epoch 2 of 2, iteration 1 of 7"))
    page.locator(".timeline select").select_option(label="fast")
    page.get_by_role("button", name="Play the run").click()
    expect(says).to_have_text(re.compile("^Epoch 2 of 2, iteration 7 of 7"))
    expect(page.get_by_role("button", name="Play the run")).to_be_visible()  # the player has stopped at the end
    expect(page).to_have_url(re.compile("epoch=1&iteration=6"))


def test_one_update_shows_what_torch_computes(open_page: Opened):
    page = open_page("arithmetic", params="dataset=300&batch=8&accumulate=2&processes=2")
    panel = page.locator(".one-step")
    expected = step(OneStep(dataset=300, batch=8, accumulate=2, processes=2))
    expect(panel.locator(".chip")).to_have_count(16)
    expect(panel.locator(".dot")).to_have_count(300)
    expect(panel.locator(".dot.picked")).to_have_count(16)
    expect(panel.locator(".chip").first).to_contain_text(str(expected.micro_batches[0].indices[0]))
    for stage in expected.stages():
        expect(panel.locator(".says")).to_have_text(stage.description)
        panel.get_by_label("One step forward").click()
    cells = panel.locator("td.is-update")
    expect(cells.first).to_have_text(f"{expected.after[0]:.4g}".replace("-", "\u2212"))
    panel.get_by_role("button", name="Keep the weights, next update").click()
    weight, bias = expected.after
    again = step(OneStep(dataset=300, batch=8, accumulate=2, processes=2, update=1, weight=weight, bias=bias))
    expect(panel.locator(".says")).to_have_text(next(again.stages()).description)
    expect(page.locator(".timeline .says")).to_contain_text("update 2 follows after")


def test_slow_motion_stops_the_play_of_the_run(open_page: Opened):
    page = open_page("arithmetic", params="dataset=3000&batch=8&accumulate=2")
    panel, says = page.locator(".one-step"), page.locator(".timeline .says")
    page.get_by_role("button", name="Play the run").click()
    expect(says).not_to_have_text(re.compile("iteration 1 of"))
    panel.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Play the run")).to_be_visible()  # it is paused
    expect(panel.get_by_role("button", name="‖ Pause")).to_be_visible()
    expect(panel.locator("output.mono")).to_have_text(re.compile(r"^3 / "))
    page.get_by_role("button", name="Play the run").click()
    expect(panel.get_by_role("button", name="▶ Play")).to_be_visible()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_the_largest_run_is_legible(open_page: Opened, axe: Callable[[Page], None], width: int, dark: bool):
    params = "dataset=1000000000000&batch=32&epochs=1000&accumulate=100&processes=64&iteration=5000"
    page = open_page("arithmetic", params=params, width=width, dark=dark)
    expect_counts(page, plan(dataset=10**12, batch=32, epochs=1000, accumulate=100, processes=64))
    expect(page.locator(".timeline .drawn")).to_contain_text("Each gap states how many are left out.")
    expect(page.locator(".one-step")).to_contain_text("this page computes at most")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".windows .tick").count() < 120
    axe(page)


def test_an_invalid_address_shows_an_error(open_page: Opened):
    page = open_page("arithmetic", params="batch=abc")
    expect(page.get_by_role("alert")).to_contain_text("batch is 'abc'. It must be a whole number")
    expect(page.locator(".numbers-tiles")).to_have_text("The counts appear once the sizes are valid.")
    page.get_by_label("Batch size B").fill("8")
    expect(page.locator(".numbers-tiles")).to_contain_text("One epoch")
