"""The pipeline page in a real browser: the batches are shown, stepped through and described."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from trueloop.lab.teaching.pipeline import PipelineRun, run_pipeline
from trueloop.lab.teaching.programs.pipeline import Pipeline, pipeline

Opened = Callable[..., Page]
expect.set_options(timeout=30_000)  # the first answer waits for torch


def expect_run(page: Page, run: PipelineRun, *, epoch: int = 0) -> None:
    """Expect the order, batches and facts of a run on the page."""
    expect(page.locator(".notes li")).to_have_text(list(run.facts))
    draws = run.epochs[epoch]
    expect(page.locator(".lane")).to_have_count(len(draws))
    for lane, draw in zip(page.locator(".lane").all(), draws, strict=True):
        chips = lane.locator(".order .chip").all_inner_texts()
        assert [int(chip.rstrip("↻")) for chip in chips] == list(draw.order)
    expect(page.locator(".batch")).to_have_count(sum(len(draw.batches) for draw in draws))


def to_the_end(page: Page) -> None:
    page.locator(".player input[type=range]").evaluate("(input) => { input.value = input.max; }")
    page.locator(".player input[type=range]").dispatch_event("input")


def test_examples_are_followed_into_batches(open_page: Opened):
    page = open_page("pipeline")
    run = run_pipeline(Pipeline())
    expect_run(page, run)
    first = run.epochs[0][0].batches[0]
    says = page.locator(".page .says")
    expect(says).to_have_text(f"Batch 0: the sampler gives {', '.join(f'#{number}' for number in first.indices)}.")
    expect(page.locator(".examples .example.now")).to_have_count(8)
    on = page.get_by_label("One step forward")
    on.click()
    expect(says).to_contain_text("read by the main process")
    on.click()
    expect(says).to_have_text("Batch 0: collate makes a tensor of shape [8].")
    expect(page.locator("#announcements")).to_contain_text("tensor of shape [8]")
    on.click()
    expect(page.locator(".examples .example.drawn")).to_have_count(8)
    bars = page.locator(".batch").first.locator(".part")
    expect(bars).to_have_text(
        [f"{name} {count}" for name, count in zip("ABC", first.composition, strict=True) if count]
    )
    page.get_by_role("button", name="Epoch 1").click()
    expect_run(page, run, epoch=1)
    page.locator("summary", has_text="Show the code").click()
    expect(page.locator(".code")).to_have_text(pipeline(Pipeline()).text)


def test_examples_move_unless_the_user_prefers_reduced_motion(open_page: Opened):
    page = open_page("pipeline", params="sampler=distributed")
    count_moving = "() => document.getAnimations().filter(({ effect }) => effect.target.matches('.chip')).length"
    expect(page.locator(".station").first).to_be_visible()  # before the answer there is no step to go to
    page.get_by_label("One step forward").click()
    expect(page.locator(".station.active").first).to_be_visible()
    assert page.evaluate(count_moving) == 0
    page.get_by_label("One step back").click()
    page.emulate_media(reduced_motion="no-preference")
    ranks = run_pipeline(Pipeline(sampler="distributed")).epochs[0]
    clicked = "() => { document.querySelector('[aria-label=\"One step forward\"]').click(); return (%s)(); }"
    assert page.evaluate(clicked % count_moving) == sum(len(draw.batches[0].indices) for draw in ranks)


def test_left_out_examples_and_the_address(open_page: Opened, axe: Callable[[Page], None]):
    page = open_page("pipeline", params="examples=43")
    expect(page.locator(".batch.ahead").first).to_be_visible()
    axe(page)
    page.get_by_label("drop_last").check()
    run = run_pipeline(Pipeline(examples=43, drop_last=True))
    left_out = run.epochs[0][0].left_out
    expect(page.locator(".left-out")).to_have_text(f"left out: {', '.join(f'#{number}' for number in left_out)}")
    to_the_end(page)
    expect(page.locator(".examples .example.never")).to_have_count(3)
    expect(page).to_have_url(re.compile(r"#/pipeline\?examples=43&drop_last=true&step="))
    page.reload()
    expect_run(page, run)
    expect(page.locator(".examples .example.never")).to_have_count(3)  # still at the end


def test_repeated_examples_of_ranks_are_marked(open_page: Opened):
    page = open_page("pipeline")
    expect(page.get_by_label("Ranks")).to_be_hidden()
    page.get_by_label("Sampler", exact=True).select_option("distributed")
    expect_run(page, run_pipeline(Pipeline(sampler="distributed")))
    expect(page.locator(".chip.repeated")).to_have_count(3)  # two, and the one in the legend
    page.get_by_label("Call set_epoch").uncheck()
    expect(page.locator(".notes")).to_contain_text("`set_epoch` was not called")
    page.get_by_label("Made by").select_option("trueloop")
    page.get_by_label("Call set_epoch").check()
    expect_run(page, run_pipeline(Pipeline(sampler="distributed", made_by="trueloop")))
    to_the_end(page)
    expect(page.locator(".examples .example.twice")).to_have_count(0)
    page.get_by_label("Sampler", exact=True).select_option("weighted")
    expect_run(page, run_pipeline(Pipeline(sampler="weighted", made_by="trueloop", shuffle=False)))
    expect(page.get_by_label("shuffle")).to_be_hidden()


def test_sequences_are_padded_and_the_mask_is_drawn(open_page: Opened):
    page = open_page("pipeline", params="workers=2")
    page.get_by_label("Sequences of different lengths").check()
    settings = Pipeline(sequences=True, workers=2)
    run = run_pipeline(settings)
    expect_run(page, run)
    batch = run.epochs[0][0].batches[0]
    expect(page.locator(".matrix tr")).to_have_count(len(batch.indices))
    expect(page.locator(".matrix td.token")).to_have_count(sum(batch.lengths))
    expect(page.locator(".matrix td")).to_have_count(len(batch.indices) * batch.shape[1])
    page.get_by_label("Batch similar lengths").check()
    expect(page.locator(".notes")).to_contain_text(re.compile("Without batches of similar lengths it would be"))
    page.get_by_label("Show batch 3").click()
    expect(page.locator(".station.active h4").first).to_have_text("Reading: worker 1")


def test_an_invalid_address_shows_an_error(open_page: Opened):
    open_page.allowed = "status of 400"  # type: ignore[attr-defined] - the browser may log the refusal
    page = open_page("pipeline", params="sampler=random&shuffle=true")
    expect(page.locator(".error")).to_contain_text("torch refuses these settings together.")
    expect(page.locator(".error")).to_contain_text("Set shuffle=False")
    page.get_by_label("Sampler", exact=True).select_option("sequential")
    expect_run(page, run_pipeline(Pipeline(sampler="sequential", shuffle=False)))


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (360, False)])
def test_the_page_is_accessible(open_page: Opened, axe: Callable[[Page], None], width: int, dark: bool):
    params = "sampler=distributed&sequences=true&examples=200&batch=16&ranks=8&drop_last=true"
    page = open_page("pipeline", params=params, width=width, dark=dark)
    expect(page.locator(".lane")).to_have_count(8)
    expect(page.locator(".matrix")).to_have_count(8)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    axe(page)
