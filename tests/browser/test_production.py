"""The production loop in a real browser: programs, chart and costs follow the switches."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from trueloop.lab.teaching.production.costs import costs
from trueloop.lab.teaching.production.program import production_program, trainer_program
from trueloop.lab.teaching.production.selection import NAMES, Selection, select

Opened = Callable[..., Page]
TEXT = (
    "() => [...document.querySelectorAll('.text .code-panel')].map(panel => panel.querySelector('.code').textContent)"
)


def expect_programs(page: Page, selection: Selection) -> None:
    """Wait until the page shows exactly the two programs of a selection."""
    programs = (production_program(selection), trainer_program(selection))
    lines = [sum(map(bool, program.text.split("\n"))) for program in programs]
    page.wait_for_function(
        f"() => / has {lines[0]} lines?.*trueloop {lines[1]}\\./.test(document.querySelector('.changes').textContent)"
    )
    assert page.evaluate(TEXT) == [program.text for program in programs]


def test_the_program_grows_with_each_switch(open_page: Opened, axe: Callable[[Page], None]):
    page = open_page("production")
    expect_programs(page, Selection())
    expect(page.locator(".code .changed")).to_have_count(0)
    page.get_by_label("Clipping").check()
    expect_programs(page, select("clipping"))
    changed = page.locator(".text .code-panel >> nth=0 >> .changed")
    expect(changed).to_have_text(["nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)"])
    expect(page.locator(".flow .new")).to_have_count(1)
    expect(page.locator(".flow .new")).to_have_attribute(
        "aria-label", re.compile(r"Clip the gradients' norm, new, line \d+")
    )
    expect(page.locator("#announcements")).to_have_text("The program has 27 lines: 1 new, 0 removed; with trueloop 27.")
    expect(page.locator(".costs tr.on th")).to_have_text("Clippingon")

    page.get_by_label("Early stopping").check()
    expect_programs(page, select("clipping", "early_stopping"))
    expect(page.get_by_label("Evaluation", exact=True)).to_be_checked()
    expect(page.get_by_text("Early stopping needs an evaluation.")).to_be_visible()
    page.locator(".gone summary").click()
    expect(page.locator(".gone pre")).to_contain_text("train_data = TensorDataset(images, labels)")
    axe(page)

    page.get_by_label("Autocast", exact=True).check()
    page.get_by_label("Precision of autocast").select_option("fp16")
    expect_programs(page, select("clipping", "early_stopping", "precision", precision="fp16"))
    assert (
        page.evaluate("() => location.hash") == "#/production?on=precision%2Cclipping%2Cearly_stopping&precision=fp16"
    )


def test_the_table_has_lines_time_memory_and_disk_of_each_component(open_page: Opened):
    page = open_page("production")
    table = page.locator(".costs")
    expect(table).to_be_visible()
    titles = table.locator("thead tr").last.locator("th").all_inner_texts()
    assert titles == ["Component", "lines", *["time, ×", "memory, KiB", "disk, KiB"] * 2]  # noqa: RUF001 - a sign
    rows = {row.title: row for row in costs().rows}
    assert table.locator("tbody th").all_inner_texts() == list(rows)
    checkpoint = table.get_by_role("row", name="Checkpoint and resume").locator("td").all_inner_texts()
    assert float(checkpoint[3]) == pytest.approx(rows["Checkpoint and resume"].disk_bytes["mlp"] / 1024, abs=0.06)
    accumulation = table.get_by_role("row", name="Accumulation").locator("td").all_inner_texts()
    assert accumulation[5].startswith("\u2212")  # it saves memory
    assert float(accumulation[5][1:]) == pytest.approx(-rows["Accumulation"].memory_bytes["cnn"] / 1024, abs=0.06)
    distributed = page.locator("details", has_text="The minimal loop on several processes")
    distributed.locator("summary").click()
    expect(distributed.locator(".code")).to_contain_text("model = DistributedDataParallel(model)")
    assert len(table.locator("tbody tr").all()) == len(rows)


def test_an_address_restores_a_selection_and_boxes_lead_to_lines(open_page: Opened, axe: Callable[[Page], None]):
    page = open_page("production", params="on=accumulation,checkpoint", dark=True)
    expect_programs(page, select("accumulation", "checkpoint"))
    box = page.locator(".flow .box[data-box=window]")
    box.focus()
    pointed = page.locator(".code .pointed")
    expect(pointed).to_have_count(3)
    expect(pointed.first).to_have_text("count += len(targets)")
    expect(pointed.first).to_be_in_viewport()
    page.locator(".text .code .line", has_text="optimizer.step()").click()
    expect(page.locator(".flow .box.pointed")).to_have_attribute("data-box", "update")
    page.locator("[data-name=checkpoint] summary").click()
    expect(page.locator("[data-name=checkpoint]")).to_contain_text("a crash while saving costs the checkpoint as well")
    expect(page.get_by_role("link", name="CKP003")).to_have_attribute("href", "#/signatures?code=CKP003")
    axe(page)


def test_the_page_is_usable_by_keyboard_and_programs_can_be_saved(open_page: Opened):
    page = open_page("production")
    button = page.get_by_role("button", name="Everything")
    expect(button).to_be_enabled()
    button.focus()
    page.keyboard.press("Enter")
    expect_programs(page, select(*NAMES))
    page.get_by_label("Progress", exact=True).focus()
    page.keyboard.press("Space")
    expect_programs(page, select(*[name for name in NAMES if name != "progress"]))
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as train.py").click()
    expected = production_program(select(*[name for name in NAMES if name != "progress"]))
    assert Path(download.value.path()).read_text() == expected.text
    page.get_by_role("button", name="Minimal loop").click()
    expect_programs(page, Selection())
    for name in NAMES[:2]:
        page.get_by_role("button", name="One step forward").click()
        expect(page.locator(f"#component-{name}")).to_be_checked()
    expect_programs(page, select(*NAMES[:2]))


def test_an_invalid_address_shows_an_error_and_the_minimal_loop(open_page: Opened):
    open_page.allowed = "status of 400"  # type: ignore[attr-defined] - the browser may log the refusal
    page = open_page("production", params="on=clippping")
    expect(page.locator(".components .error")).to_contain_text("Did you mean 'clipping'?")
    expect_programs(page, Selection())


def test_on_a_phone_nothing_overflows(open_page: Opened):
    page = open_page("production", params="on=checkpoint", width=360, height=740)
    expect_programs(page, select("checkpoint"))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
