from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from trueloop.core.findings import ExplainedError, Report, SourceLocation
from trueloop.reporting.text import print_report


def printed(report: Report, base: Path, *, width: int = 80, colour: bool = False, verbose: bool = True) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=colour, color_system="standard" if colour else None)
    print_report(report, console, base=base, verbose=verbose)
    return file.getvalue()


def test_the_full_report(report: Report, folder: Path):
    error, warning, _ = report.findings
    output = printed(replace(report, findings=(error, warning)), folder)
    assert output == PAGE


PAGE = """
trueloop: 1 error, 1 warning: this run is not training what you think

error GRD001  Gradients are never cleared
  The step used gradients of 4 parameters that an earlier step had used; their
  norm is 23.9.

  train.py:11 in train
   9 │     loss = torch.nn.functional.cross_entropy(model(x), y)
  10 │     loss.backward()
     │     --------------- added here
  11 │     optimizer.step()  # consumed here
     │     ^^^^^^^^^^^^^^^^
  12 │     history.append(loss)
  13 │ return history

  seen  since update 1, 1199 times
  fix   Call optimizer.zero_grad() before each backward.
        + optimizer.zero_grad()
          loss.backward()
  more  trueloop explain GRD001
  GRD001 was seen 312 more times, at other lines.

warning MEM001  Graphs are kept
  The step used gradients of 4 parameters that an earlier step had used; their
  norm is 23.9.

  train.py:12 in train
  10 │     loss.backward()
  11 │     optimizer.step()  # consumed here
  12 │     history.append(loss)
     │     ^^^^^^^^^^^^^^^^^^^^
  13 │ return history

  seen  at update 40
  fix   Keep loss.item().
  more  trueloop explain MEM001

judged      4 of 8 checks judged (3 fired, 1 passed); 1 not applicable, 3 not
            judged
not judged  DAT001, DAT002: no held-out loader was swept
            1 that only trueloop lint or trueloop doctor can judge
suppressed  2 findings by comments or settings
traced      1200 updates in 4.0 s, 52 fully; tracing took at least 1.2 % of the
            time (50.0 ms)
update      3.40 ms each: data 12 %, forward 25 %, backward 38 %, optimizer
            12 %, other 12 %
learning    slowly: loss nan → 0.810; always answering the mean costs 0.900
values      loss nan to 0.810, gradient norm 0.500 to 120, learning rate 0.00100
problem     loader batches are no longer traced: KeyError: 'x' (loaders.py:41)
            These are internal errors of trueloop; they did not affect the
            program.
"""


def test_without_verbose_only_the_number_of_what_was_not_judged_is_printed(report: Report, folder: Path):
    lines = printed(report, folder, width=100, verbose=False).splitlines()
    assert "judged      4 of 8 checks judged (3 fired, 1 passed); 3 not judged: --verbose says why" in lines
    assert not any(line.startswith(("not judged", "update ")) for line in lines)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_console(report: Report, folder: Path, width: int):
    assert max(map(len, printed(report, folder, width=width).splitlines())) <= width


def test_colours_are_for_terminals_only(report: Report, folder: Path):
    assert "\x1b[" not in printed(report, folder)
    assert "\x1b[1;31m" in printed(report, folder, colour=True)


def test_a_finding_without_source_or_location(report: Report, folder: Path):
    finding = replace(report.findings[0], location=SourceLocation("<stdin>", 3), related=(), change=None)
    output = printed(replace(report, findings=(finding, replace(finding, location=None))), folder)
    assert "\n  <stdin>:3\n" in output
    assert output.count("error GRD001") == 2


def test_control_characters_of_the_program_are_escaped(report: Report, folder: Path):
    (folder / "train.py").write_text("x = '\x1b[2J'\n" * 20)
    evil = replace(report.findings[0], message="gone \x1b[2J\n\n now", fix="\x1b]0;title\x07", title="\x1b[31m")
    output = printed(replace(report, findings=(evil,), problems=("\x1b[2J",)), folder)
    assert "\x1b" not in output
    assert "gone \ufffd[2J now" in output


def test_rich_markup_is_plain_text(report: Report, folder: Path):
    output = printed(
        replace(report, findings=(replace(report.findings[0], message="a [bold]list[0][/] :smile:"),)), folder
    )
    assert "a [bold]list[0][/] :smile:" in output


def test_an_ascii_terminal_is_supported(report: Report, folder: Path):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    finding = replace(report.findings[0], message="größer · 3 µs")
    print_report(replace(report, findings=(finding,)), Console(file=file, width=80), base=folder)
    file.flush()
    output = raw.getvalue().decode("ascii")
    assert "gr??er ? 3 ?s" in output
    assert "11 |" in output


def test_clean_and_untrained_runs_have_short_reports(folder: Path):
    clean = printed(Report(findings=(), updates=3, seconds=1.0, overhead_s=0.004), folder)
    assert clean.splitlines()[1] == "trueloop: No silent failure found in 3 updates"
    never = printed(Report(findings=(), seconds=1.0), folder)
    assert never.splitlines()[1] == "trueloop: Not judged: no update was seen"


def test_the_error_comes_after_the_findings(report: Report, error: ExplainedError, folder: Path):
    output = printed(replace(report, error=error), folder)
    assert output.index("RuntimeError, explained below. 1 error") < output.index("error GRD001") < output.index(RAISED)


def test_the_error_without_a_user_line(report: Report, error: ExplainedError, folder: Path):
    output = printed(replace(report, error=replace(error, location=None, origin=None, other_locations=())), folder)
    assert "RuntimeError  Shapes that do not fit together\n  torch: mat1 and mat2" in output
    assert "fix   Build the layer" in output


RAISED = """
RuntimeError  Shapes that do not fit together
  torch: mat1 and mat2 shapes cannot be multiplied (16x392 and 288x10)
  `head` (Linear of Net) expects in_features=288, and `x` has the shape (16,
  392).

  train.py:9 in train
   5 │ def train(model, loader):
   6 │     optimizer = torch.optim.AdamW(model.parameters())
     │     ------------------------------------------------- made here
   7 │     history = []
   8 │     for x, y in loader:
     │     ------------------- `x` comes from here
   9 │         loss = torch.nn.functional.cross_entropy(model(x), y)
     │         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  10 │         loss.backward()
  11 │         optimizer.step()  # consumed here

  fix   Build the layer with in_features=392.
"""
