"""The watch page in a real browser: a growing journal, a watched script, several runs."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded, RunStarted, UpdateRow, UpdatesDone
from trueloop.runs.journal import Journal

HOSTILE = "<img src=x onerror=alert(1)>"
SCRIPT = """
import sys, time
from pathlib import Path
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(256, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
while not Path(sys.argv[1]).exists():
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    last = loss.item()
    time.sleep(0.005)
print(f"{last:.2e}")
"""


def rows(first: int, last: int, per_epoch: int = 20) -> UpdatesDone:
    return UpdatesDone(
        rows=[
            UpdateRow(k, (k - 1) // per_epoch + 1, 2.0 * math.exp(-k / 40), 0.5, 0.001, 8, 0.002, 0.01, False)
            for k in range(first, last + 1)
        ],
        memory_mib=100.0 + last,
    )


def started(name: str = "digits", updates: int = 200, lr: float = 0.001) -> RunStarted:
    facts = {"recipe": name, "config": {"epochs": 10, "optim": {"lr": lr}}}
    return RunStarted(name=name, epochs=10, updates=updates, start_update=0, facts=facts)


def evaluated(update: int, loss: float, *, best: bool = True) -> Evaluated:
    metrics = {"loss": loss, "accuracy": 1 - loss / 4}
    return Evaluated(update=update, epoch=update // 20, split="val", metrics=metrics, tables={}, seconds=0.1, best=best)


@pytest.fixture
def journal(lab_home: Path):
    """Write journals into the lab's folder of runs."""
    opened: list[Journal] = []

    def write(name: str, *events: object) -> Journal:
        writer = Journal(lab_home / "runs" / name / "journal.jsonl")
        opened.append(writer)
        for event in events:
            writer.report(event)  # pyright: ignore[reportArgumentType]
        return writer

    yield write
    for each in opened:
        each.close()


def test_a_growing_journal_is_followed(journal, open_page, axe):
    growing = journal("growing-1", started(), rows(1, 40), evaluated(40, 0.8))
    page = open_page("watch")
    page.get_by_label("Search").fill("growing")
    page.get_by_role("checkbox", name=re.compile("growing-1")).check()
    head = page.locator(".watch-head")
    expect(head).to_contain_text("40 of 200")
    expect(page).to_have_url(re.compile(r"runs=runs%2Fgrowing-1"))
    expect(page.locator(".chart-title").first).to_have_text("Loss")
    for title in ("Accuracy", "Learning rate", "Gradient norm"):
        expect(page.locator(".chart-title", has_text=title).first).to_be_visible()
    growing.report(rows(41, 60))
    growing.report(
        Notice(update=50, kind="not_finite", message=f"Update 50 was skipped. {HOSTILE}", details={}),
    )
    growing.report(CheckpointSaved(update=60, epoch=3, path="../../../etc", metrics={"val/loss": 0.4}, seconds=0.1))
    expect(head).to_contain_text("60 of 200")
    expect(page.get_by_text("Notes (1)")).to_be_visible()
    page.get_by_text("Notes (1)").click()
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    growing.report(RunEnded(update=60, reason="finished", seconds=2.5))
    expect(head).to_contain_text("✓ finished")
    axe(page)


def test_a_curve_of_one_value_is_a_point(journal, open_page):
    journal("brief-1", started(), rows(1, 20))  # one event, so that memory has one value
    page = open_page("watch", params="runs=runs%2Fbrief-1")
    expect(page.get_by_role("figure", name="Memory (MiB)").locator("canvas")).to_be_visible()
    page.wait_for_function("""() => {
        const canvas = document.querySelector('figure[aria-label="Memory (MiB)"] canvas');
        const seen = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const olive = (i) => Math.abs(seen[i] - 0x6b) + Math.abs(seen[i + 1] - 0x7a) + Math.abs(seen[i + 2] - 0x12) < 9;
        for (let i = 0; i < seen.length; i += 4) if (olive(i)) return true;
        return false;
    }""")


def test_several_runs_are_overlaid(journal, open_page, axe):
    for name, loss, lr in (("pair-a", 0.5, 0.001), ("pair-b", 0.7, 0.003)):
        ended = RunEnded(update=40, reason="finished", seconds=1.0)
        journal(name, started(lr=lr), rows(1, 40), evaluated(40, loss), ended)
    page = open_page("watch", params="runs=runs/pair-a,runs/pair-b")
    chosen = page.locator(".watch-chosen")
    expect(chosen).to_contain_text("pair-a")
    expect(chosen).to_contain_text("pair-b")
    loss = page.locator(".chart", has_text="Loss").first
    expect(loss.locator("figcaption")).to_contain_text("pair-a: Newest: train")
    expect(loss.locator("figcaption")).to_contain_text("pair-b: Newest: train")
    expect(loss).to_contain_text("Lines with circles: held-out data.")
    comparison = page.locator(".watch-compare")
    expect(comparison.get_by_role("row", name=re.compile("loss, val"))).to_contain_text("0.7")
    expect(comparison.get_by_role("row", name=re.compile("optim.lr"))).to_contain_text("0.003")
    expect(comparison.get_by_role("row", name=re.compile("epochs"))).to_have_count(0)
    page.get_by_label("Details of").select_option("runs/pair-b")
    page.get_by_text("Show the code").click()
    expect(page.locator(".code-body")).to_contain_text("pair-b")
    axe(page)


def test_a_script_under_run_lab_is_shown_while_it_runs_and_after(lab_home, lab, open_page, axe, tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(lab_home / "session")}
    command = [sys.executable, "-m", "trueloop", "run", "--lab", "mine.py", "enough"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr
        address = re.search(r"this run in the lab: (http\S+)", running.stderr.readline())
        assert address
        assert address[1].startswith(lab), "the lab that is running already shows the script"
        page = open_page("watch")  # without an address: the running script is selected at once
        expect(page).to_have_url(re.compile(re.escape(address[1].rpartition("/")[2])))
        head = page.locator(".watch-head")
        expect(head).to_contain_text("mine.py")
        expect(head).to_contain_text("● running")
        expect(page.locator(".watch-finding").first).to_contain_text("GRD001", timeout=60_000)
        updates = head.locator("dd").first
        before = updates.inner_text()
        expect(updates).not_to_have_text(before)
        (tmp_path / "enough").touch()
        last, report = running.communicate(timeout=60)
    assert running.returncode == 0
    expect(head).to_contain_text("✓ finished")
    loss = page.get_by_role("figure", name="Loss")
    expect(loss).to_contain_text(re.compile(r"From \S+ to \S+\."))
    page.wait_for_function(  # the curve may be drawn later than the head
        "([chart, last]) => Math.abs(/From \\S+ to (\\S+)\\./.exec(chart.innerText)[1] / last - 1) <= 0.01",
        arg=[loss.element_handle(), float(last)],
    )
    assert float(re.search(r"values +loss \S+ to ([^\s,]+)", report)[1]) == pytest.approx(float(last), rel=0.01)
    finding = page.locator(".watch-finding").first
    expect(finding).to_contain_text("GRD001")
    expect(finding.locator(".hit")).to_contain_text("optimizer.step()")
    expect(finding).to_contain_text("times")
    expect(finding.get_by_role("link")).to_have_attribute("href", "#/signatures?code=GRD001")
    expect(page.locator(".watch-parts")).to_contain_text("backward")
    cells = page.locator(".heat-cells")
    cells.focus()
    page.keyboard.press("Home")
    expect(page.locator(".heat-cell-text")).to_contain_text(re.compile(r"update \d+: norm [\d.]+"))
    expect(page.locator(".heat-names li")).to_have_text(["0", "2"])
    axe(page)


def test_curves_share_a_cursor_and_their_smoothing_can_be_chosen(journal, open_page):
    run_id = "runs=runs/wavy-1"
    losses = [UpdateRow(k, 1, 1.0 + k % 2, 0.5, 0.001, 8, 0.002, 0.01, False) for k in range(1, 201)]
    journal(
        "wavy-1",
        started(),
        UpdatesDone(rows=losses, memory_mib=1.0),
        RunEnded(update=200, reason="finished", seconds=1.0),
    )
    page = open_page("watch", params=run_id)
    loss = page.get_by_role("figure", name="Loss")
    expect(loss.locator("figcaption")).to_contain_text("train 1.4")
    loss.locator(".u-over").hover(position={"x": 60, "y": 40})
    values = loss.locator(".chart-values")
    expect(values).to_contain_text("train")
    update = values.inner_text().partition(":")[0]
    expect(page.get_by_role("figure", name="Learning rate").locator(".chart-values")).to_contain_text(f"{update}:")
    page.get_by_label("Smoothing").select_option("none")
    expect(loss.locator("figcaption")).to_contain_text("Newest: train 1.")
    expect(loss.locator("figcaption")).not_to_contain_text("train 1.4")


def test_a_missing_run_is_reported(open_page, lab_home, lab):
    (lab_home / "secret").mkdir(exist_ok=True)
    (lab_home / "secret" / "journal.jsonl").write_text(json.dumps({"event": "notice"}))
    page = open_page("watch", params="runs=runs/../secret")
    expect(page.locator(".watch-head")).to_contain_text("no longer exists")
    page = open_page("watch", params="runs=%25")  # a name that cannot be decoded
    expect(page.locator(".watch-head")).to_contain_text("'%' no longer exists")


@pytest.mark.slow(reason="starts a lab and a script of its own")
def test_without_a_run_an_example_is_one_click_away(served, browser, axe, tmp_path):
    with served(tmp_path, str(tmp_path / "runs")) as address:
        page = browser.new_page(viewport={"width": 1024, "height": 800}, reduced_motion="reduce")
        page.goto(f"{address}#/watch")
        expect(page.get_by_text("trueloop run --lab train.py")).to_be_visible()
        expect(page.get_by_role("button", name="Copy")).to_have_count(3)
        axe(page)
        page.get_by_role("button", name="Run an example").click()
        expect(page.locator(".watch-head")).to_contain_text("example.py", timeout=120_000)
        expect(page.locator(".watch-finding").first).to_contain_text("GRD001", timeout=120_000)
        page.close()


def test_the_newest_run_is_chosen_at_once(journal, open_page):
    journal("newest-1", started(), rows(1, 40))
    page = open_page("watch")
    expect(page.locator(".watch-head h2")).to_be_visible()
    expect(page.locator(".watch-runs input:checked")).to_have_count(1)
    expect(page.locator(".watch-runs input").first).to_be_checked()
