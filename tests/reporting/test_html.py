from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from trueloop.core.findings import ExplainedError, LayerState, Report, Series, SourceLocation
from trueloop.reporting.html import to_html

VOID = {"meta"}


class Page(HTMLParser):
    """Parses a page, checks that elements are closed in order, and records tags and texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_complete_and_loads_nothing(report: Report, folder: Path):
    page = to_html(report, base=folder)
    parsed = Page(page)
    assert parsed.open == []
    assert not {"script", "link", "img", "iframe"} & set(parsed.tags)
    assert not [value for name, value in parsed.attributes if name in ("src", "href") or name.startswith("on")]
    assert "url(" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_the_page_has_the_content_of_the_terminal_report(report: Report, folder: Path):
    page = to_html(report, base=folder)
    assert "1 error, 1 warning, 1 note: this run is not training what you think</h1>" in page
    for expected in (
        "train.py:11",
        "added here",
        "since update 1, 1199 times",
        "Call optimizer.zero_grad()",
        "no held-out loader was swept",
        "seen 312 more times",
        "loaders.py:41",
        "1.2 %",
    ):
        assert expected in page, expected
    assert page.count("<svg") == 4
    assert page.count('class="mark"') == 2 * 3, "a first update on each plot whose updates reach it"


def test_texts_of_the_program_are_escaped(report: Report, folder: Path):
    (folder / "train.py").write_text("x = '</pre><script>alert(1)</script>'\n" * 20)
    evil = "<script>alert(1)</script>\" onload='x'\x1b\udcff"
    finding = replace(
        report.findings[0],
        message=evil,
        title=evil,
        fix=evil,
        location=SourceLocation(str(folder / "train.py"), 3, evil),
        related=((SourceLocation(f"/{evil}.py", 1, evil), evil),),
    )
    hostile = replace(report, findings=(finding,), problems=(evil,))
    page = to_html(hostile)
    assert "<script" not in page
    assert "script" not in Page(page).tags
    page.encode("utf-8")


@pytest.mark.parametrize("values", [(), (float("nan"),), (1.0,), (0.0, 0.0), (1e-30, 1e30), (-1.0, float("inf"), 2.0)])
def test_any_series_can_be_plotted(report: Report, values: tuple[float, ...]):
    series = Series(updates=tuple(range(len(values))), values=values)
    page = to_html(replace(report, series={"loss": series}))
    assert not re.search(r'(?:x|y|cx|cy|points)[12]?="[^"]*(?:nan|inf)', page)


def test_an_empty_report_is_a_page():
    assert "Not judged" in to_html(Report(findings=()))


def test_the_error_that_ended_the_run_comes_first(report: Report, error: ExplainedError, folder: Path):
    page = to_html(replace(report, error=replace(error, message="<b>mat1</b>")), base=folder)
    assert page.index("Error that ended the run") < page.index("<h2>Findings")
    assert "&lt;b&gt;mat1&lt;/b&gt;" in page
    assert "Build the layer with in_features=392." in page
    assert "`x` comes from here" in page
    assert "Error that ended the run" not in to_html(report, base=folder)


def test_the_layers_have_bars(report: Report):
    layers = [
        LayerState("stem", gradient=1e-9, update_ratio=1e-9, activation="relu", idle=0.98),
        LayerState("head", gradient=1.0, update_ratio=1e-3),
    ]
    page = to_html(replace(report, layers=tuple(layers)))
    assert Page(page).open == []
    table = page[page.index("<h2>Layers</h2>") : page.index("<h2>Time per update</h2>")]
    assert re.findall(r"width: ([\d.]+)%", table) == ["0.0", "0.0", "98.0", "100.0", "50.0"]
    assert re.findall(r'class="warning">([^<]+)', table) == ["1.00e-09", "1.00e-09", "98 % dead"]
    assert "<h2>Layers</h2>" not in to_html(report)


def test_of_very_many_layers_the_first_and_last_are_listed(report: Report):
    page = to_html(replace(report, layers=tuple(LayerState(f"blocks.{each}", gradient=1.0) for each in range(100))))
    assert "36 more layers" in page
    assert "blocks.31<" in page
    assert "blocks.32<" not in page
    assert "blocks.99<" in page


def test_held_out_losses_are_drawn_behind_the_loss(report: Report):
    held_out = Series(updates=(0, 1199), values=(2.0, 3.0))
    page = to_html(replace(report, series={**report.series, "held_out_loss": held_out}))
    assert "Loss; grey: of held-out samples" in page
    assert page.count("curve reference") == 1
