"""The pipeline page in a real browser: what was drawn is shown, stepped through, shared, and told in words."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from trueloop.lab.teaching.pipeline import PipelineRun, run_pipeline
from trueloop.lab.teaching.programs.pipeline import Pipeline, pipeline

Opened = Callable[..., Page]
expect.set_options(timeout=30_000)  # the first answer of a process that has torch, on a busy machine


def shows(page: Page, found: PipelineRun, *, epoch: int = 0) -> None:
    """Order, batches and facts of this draw are on the page."""
    expect(page.locator(".notes li")).to_have_text(list(found.facts))
    draws = found.epochs[epoch]
    expect(page.locator(".lane")).to_have_count(len(draws))
    for lane, draw in zip(page.locator(".lane").all(), draws, strict=True):
        chips = lane.locator(".order .chip").all_inner_texts()
        assert [int(chip.rstrip("↻")) for chip in chips] == list(draw.order)
    expect(page.locator(".batch")).to_have_count(sum(len(draw.batches) for draw in draws))


def to_the_end(page: Page) -> None:
    page.locator(".player input[type=range]").evaluate("(input) => { input.value = input.max; }")
    page.locator(".player input[type=range]").dispatch_event("input")


def test_examples_walk_into_batches(open_page: Opened):
    page = open_page("pipeline")
    found = run_pipeline(Pipeline())
    shows(page, found)
    first = found.epochs[0][0].batches[0]
    says = page.locator(".page .says")
    expect(says).to_have_text(f"Batch 0: the sampler gives {', '.join(f'#{number}' for number in first.indices)}.")
    expect(page.locator(".examples .example.now")).to_have_count(8)
    on = page.get_by_label("One step forward")
    on.click()
    expect(says).to_contain_text("read by the main process")
    on.click()
    expect(says).to_have_text("Batch 0: collate makes a tensor of shape [8].")
    expect(page.locator("#said")).to_contain_text("tensor of shape [8]")
    on.click()
    expect(page.locator(".examples .example.drawn")).to_have_count(8)
    bars = page.locator(".batch").first.locator(".part")
    assert bars.all_inner_texts() == [
        f"{name} {count}" for name, count in zip("ABC", first.composition, strict=True) if count
    ]
    page.get_by_role("button", name="Epoch 1").click()
    shows(page, found, epoch=1)
    page.locator("summary", has_text="Show the code").click()
    expect(page.locator(".code")).to_have_text(pipeline(Pipeline()).text)


def test_examples_move_for_who_wants_motion(open_page: Opened):
    page = open_page("pipeline", params="sampler=distributed")
    moving = "() => document.getAnimations().filter((animation) => animation.effect.target.matches('.chip')).length"
    expect(page.locator(".station").first).to_be_visible()  # the answer is there: before, there is nothing to step to
    page.get_by_label("One step forward").click()
    expect(page.locator(".station.active").first).to_be_visible()
    assert page.evaluate(moving) == 0
    page.get_by_label("One step back").click()
    page.emulate_media(reduced_motion="no-preference")
    read = run_pipeline(Pipeline(sampler="distributed")).epochs[0]
    clicked = "() => { document.querySelector('[aria-label=\"One step forward\"]').click(); return (%s)(); }"
    assert page.evaluate(clicked % moving) == sum(len(draw.batches[0].indices) for draw in read)


def test_what_drop_last_leaves_out_and_the_address(open_page: Opened, axe: Callable[[Page], None]):
    page = open_page("pipeline", params="examples=43")
    expect(page.locator(".batch.ahead").first).to_be_visible()
    axe(page)
    page.get_by_label("drop_last").check()
    found = run_pipeline(Pipeline(examples=43, drop_last=True))
    left = found.epochs[0][0].left_out
    expect(page.locator(".left-out")).to_have_text(f"left out: {', '.join(f'#{number}' for number in left)}")
    to_the_end(page)
    expect(page.locator(".examples .example.never")).to_have_count(3)
    assert "#/pipeline?examples=43&drop_last=true&step=" in page.url
    page.reload()
    shows(page, found)
    expect(page.locator(".examples .example.never")).to_have_count(3)  # still at the end


def test_ranks_share_the_data_and_repeats_are_marked(open_page: Opened):
    page = open_page("pipeline")
    expect(page.get_by_label("Ranks")).to_be_hidden()
    page.get_by_label("Sampler", exact=True).select_option("distributed")
    shows(page, run_pipeline(Pipeline(sampler="distributed")))
    expect(page.locator(".chip.repeated")).to_have_count(3)  # two, and the one in the legend
    page.get_by_label("Call set_epoch").uncheck()
    expect(page.locator(".notes")).to_contain_text("`set_epoch` was not called")
    page.get_by_label("Made by").select_option("trueloop")
    page.get_by_label("Call set_epoch").check()
    shows(page, run_pipeline(Pipeline(sampler="distributed", made_by="trueloop")))
    to_the_end(page)
    expect(page.locator(".examples .example.twice")).to_have_count(0)
    page.get_by_label("Sampler", exact=True).select_option("weighted")
    shows(page, run_pipeline(Pipeline(sampler="weighted", made_by="trueloop", shuffle=False)))
    expect(page.get_by_label("shuffle")).to_be_hidden()


def test_sequences_are_padded_and_the_mask_is_drawn(open_page: Opened):
    page = open_page("pipeline", params="workers=2")
    page.get_by_label("Sequences of different lengths").check()
    asked = Pipeline(sequences=True, workers=2)
    found = run_pipeline(asked)
    shows(page, found)
    batch = found.epochs[0][0].batches[0]
    expect(page.locator(".matrix tr")).to_have_count(len(batch.indices))
    expect(page.locator(".matrix td.token")).to_have_count(sum(batch.lengths))
    expect(page.locator(".matrix td")).to_have_count(len(batch.indices) * batch.shape[1])
    page.get_by_label("Batch similar lengths").check()
    expect(page.locator(".notes")).to_contain_text(re.compile("Without batches of similar lengths it would be"))
    page.get_by_label("Show batch 3").click()
    expect(page.locator(".station.active h4").first).to_have_text("Reading: worker 1")


def test_what_an_address_cannot_mean_is_refused_in_words(open_page: Opened):
    open_page.allowed = "status of 400"  # type: ignore[attr-defined] - the browser says that it was refused, when it likes
    page = open_page("pipeline", params="sampler=random&shuffle=true")
    expect(page.locator(".error")).to_contain_text("torch refuses these settings together.")
    expect(page.locator(".error")).to_contain_text("Set shuffle=False")
    page.get_by_label("Sampler", exact=True).select_option("sequential")
    shows(page, run_pipeline(Pipeline(sampler="sequential", shuffle=False)))


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (360, False)])
def test_everybody_can_use_it(open_page: Opened, axe: Callable[[Page], None], width: int, dark: bool):
    params = "sampler=distributed&sequences=true&examples=200&batch=16&ranks=8&drop_last=true"
    page = open_page("pipeline", params=params, width=width, dark=dark)
    expect(page.locator(".lane")).to_have_count(8)
    expect(page.locator(".matrix")).to_have_count(8)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    axe(page)
