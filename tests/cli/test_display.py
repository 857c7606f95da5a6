import io
import math
import os
import pty
import subprocess
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console

from trueloop.cli.display import MAX_NOTES, Display, can_redraw
from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded, RunStarted, UpdateRow, UpdatesDone

HOSTILE = "[red]x[/red] [link=file:///x]\x1b[31m\n[/]"


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def started(name="digits", updates=276, start_update=0, facts=None):
    return RunStarted(name=name, epochs=12, updates=updates, start_update=start_update, facts=facts or {})


def rows(first, last, loss=0.213):
    return UpdatesDone(
        rows=[
            UpdateRow(k, (k - 1) // 23 + 1, loss, 1.23, 9.2e-4, 64, 0.001, 0.01, False) for k in range(first, last + 1)
        ]
    )


def evaluated(update=69, split="val", *, best=True, **metrics):
    metrics = metrics or {"loss": 0.102, "accuracy": 0.9713}
    return Evaluated(update=update, epoch=update // 23, split=split, metrics=metrics, tables={}, seconds=0.1, best=best)


def plain(clock=None, **console):
    out = io.StringIO()
    return Display("plain", console=Console(file=out, **console), now=clock or Clock()), out


def live(width=80, clock=None):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system="truecolor", highlight=False)
    return Display("live", console=console, now=clock or Clock()), out


def view_lines(display, width):
    page = Console(file=io.StringIO(), width=width, force_terminal=False)
    with page.capture() as printed:
        page.print(display.view())
    return printed.get().splitlines()


def test_a_plain_run_prints_these_lines():
    clock = Clock()
    display, out = plain(clock)
    display.report(started(facts={"parameters": 27722, "device": "cpu"}))
    display.report(rows(1, 23))
    clock.seconds = 4.9
    display.report(rows(24, 40))
    clock.seconds = 5.0
    display.report(rows(41, 69))
    clock.seconds = 6.0
    display.report(Notice(update=41, kind="not_finite", message="Update 41 was skipped.", details={}))
    display.report(evaluated())
    display.report(CheckpointSaved(update=69, epoch=3, path="c", metrics={}, seconds=0.1))
    display.report(evaluated(276, "test", best=False))
    display.report(RunEnded(update=276, reason="early_stop", seconds=12.34))
    display.close()
    moment = "loss 0.213  norm 1.23  lr 9.20e-04  6,400 examples/s  waiting for data 10 %  15.0 s left"
    assert out.getvalue().splitlines() == [
        "digits: 12 epochs, 276 updates, 27,722 parameters, on cpu",
        f"epoch 3/12  update 69/276  {moment}",
        "note: Update 41 was skipped.",
        "epoch 3/12  update 69/276  train loss 0.213  val loss 0.102  accuracy 0.971  best",
        "epoch 12/12  update 276/276  test loss 0.102  accuracy 0.971",
        "stopped early after 276 updates in 12.3 s",
    ]


def test_a_resumed_run_of_unknown_length_is_described():
    display, out = plain()
    display.report(started(updates=None, start_update=69))
    display.report(rows(70, 71, math.nan))
    display.report(evaluated(71, loss=math.nan))
    assert out.getvalue().splitlines() == [
        "digits: 12 epochs; resumed after update 69",
        "epoch 3/12  update 71  val loss nan  best",
    ]


def test_plain_lines_are_flushed_one_by_one():
    calls = []

    class Out(io.StringIO):
        def flush(self):
            calls.append(self.getvalue())

    display = Display("plain", console=Console(file=Out()), now=Clock())
    display.report(started())
    display.report(evaluated())
    assert [text.count("\n") for text in calls] == [1, 2]


def test_an_ascii_terminal_gets_ascii():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    display = Display(console=Console(file=out), now=Clock())
    assert display.mode == "plain"
    display.report(started(name="größe"))
    assert raw.getvalue() == b"gr??e: 12 epochs, 276 updates\n"


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_names_are_printed_as_plain_text(mode):
    display, out = plain(width=200) if mode == "plain" else live(200)
    display.report(started(name=HOSTILE))
    display.report(rows(1, 5))
    display.report(evaluated(23, **{HOSTILE: 0.5}))
    display.report(Notice(update=1, kind=HOSTILE, message=HOSTILE, details={}))
    printed = "[red]x[/red] [link=file:///x]\ufffd[31m\ufffd[/]"
    assert out.getvalue().count(printed) >= 3  # the live view repeats it as its title
    assert "\x1b[31m" not in out.getvalue()
    assert "\x1b]8" not in out.getvalue()
    if mode == "live":
        assert any(printed[:20] in line for line in view_lines(display, 200))
    display.close()


def test_quiet_writes_nothing():
    out = io.StringIO()
    display = Display("quiet", console=Console(file=out, force_terminal=True))
    for event in (started(), rows(1, 9), evaluated(), RunEnded(update=9, reason="finished", seconds=1.0)):
        display.report(event)
    display.close()
    assert out.getvalue() == ""


@pytest.mark.parametrize("width", [20, 60, 80, 120])
def test_the_live_view_fits_its_width(width):
    display, _ = live(width)
    display.report(started(name="a run with a name that is a good deal longer than any terminal is wide " * 3))
    assert any("waiting for the first update" in line for line in view_lines(display, 60))
    display.report(rows(1, 200))
    display.report(evaluated(184, **{"loss": 0.1, "a metric with a rather long name of its own": 0.123456789}))
    lines = view_lines(display, width)
    assert {cell_len(line) for line in lines} == {width}
    assert len(lines) < 16
    if width >= 60:
        text = "\n".join(lines)
        for part in ("epoch 9/12  update 200/276", "loss 0.213 ▁", "grad norm 1.23", "lr 9.20e-04", "val loss 0.100",
                      "examples/s 6,400", "waiting for data 10 %", "best val/loss 0.100"):  # fmt: skip
            assert part in text
    display.close()


def test_the_view_is_redrawn_by_time_and_never_per_update():
    clock = Clock()
    display, out = live(80, clock)
    display.report(started())
    drawn = out.getvalue().count("╭")
    for k in range(1, 1001):
        clock.seconds = k / 1000  # a thousand updates in a second
        display.report(rows(k, k))
    assert out.getvalue().count("╭") - drawn == 2
    display.close()


def test_evaluations_stay_above_the_view_and_the_view_is_removed_at_the_end():
    display, out = live(120)
    display.report(started())
    assert "\x1b[?25l" in out.getvalue()
    display.report(rows(1, 69))
    display.report(evaluated())
    assert "train loss 0.213  val loss 0.102  accuracy 0.971  best" in out.getvalue()
    display.report(RunEnded(update=69, reason="interrupted", seconds=1.0))
    assert out.getvalue().index("\x1b[?25h") < out.getvalue().index("interrupted after 69 updates in 1.0 s")
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1
    display.close()


def test_closing_shows_the_cursor_and_restores_stdout():
    before = sys.stdout
    display, out = live()
    display.report(started())
    display.close()
    display.close()
    assert out.getvalue().endswith("\x1b[?25h") or out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex(
        "\x1b[?25l"
    )
    assert sys.stdout is before


def test_an_exception_leaves_the_cursor_visible():
    script = (
        "from trueloop.cli.display import Display\n"
        "from trueloop.core.protocols import RunStarted\n"
        "display = Display()\n"
        "assert display.mode == 'live', display.mode\n"
        "display.report(RunStarted(name='x', epochs=1, updates=1, start_update=0, facts={}))\n"
        "raise SystemExit(3)\n"
    )
    controller, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    output = b""
    while chunk := _read(controller):
        output += chunk
    os.close(controller)
    assert process.wait() == 3
    assert output.count(b"\x1b[?25l") == output.count(b"\x1b[?25h") == 1


def _read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other side of a pseudo-terminal is closed
        return b""


@pytest.mark.parametrize(
    ("mode", "error"), [("plain", BrokenPipeError(32, "Broken pipe")), ("live", OSError(5, "Input/output error"))]
)
def test_a_closed_output_does_not_stop_the_run(mode, error):
    class Gone(io.StringIO):
        def write(self, text):
            raise error

    before = sys.stdout
    display = Display(mode, console=Console(file=Gone(), force_terminal=mode == "live"), now=Clock())
    display.report(started())
    display.report(evaluated())
    assert display.mode == "quiet"
    display.close()
    assert sys.stdout is before


def test_the_number_of_printed_notes_is_limited():
    display, out = plain()
    for k in range(1, 100):
        display.report(Notice(update=k, kind="not_finite", message=f"number {k}", details={}))
    display.report(Notice(update=100, kind="early_stop", message="another kind", details={}))
    lines = out.getvalue().splitlines()
    assert lines[-3:] == [
        f"note: number {MAX_NOTES}",
        "note: further notes of this kind (not_finite) are in the journal only",
        "note: another kind",
    ]
    assert len(lines) == MAX_NOTES + 2


def test_the_live_view_needs_a_capable_terminal():
    utf8 = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert can_redraw(Console(file=utf8, force_terminal=True, _environ={"TERM": "xterm"}))
    assert not can_redraw(Console(file=utf8, force_terminal=True, _environ={"TERM": "dumb"}))
    assert not can_redraw(Console(file=ascii_only, force_terminal=True, _environ={"TERM": "xterm"}))
    assert not can_redraw(Console(file=utf8))


def test_the_doctors_line_is_printed_second():
    display, out = plain()
    display.report(started(facts={"doctor": {"line": "torch 2.13.0, 2 cores; nothing is wrong", "found": []}}))
    assert out.getvalue().splitlines()[1:] == ["doctor: torch 2.13.0, 2 cores; nothing is wrong"]
