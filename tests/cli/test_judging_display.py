"""How far the judging is, in words."""

from __future__ import annotations

import io

from trueloop.cli.judging_display import JudgingDisplay, progress_text
from trueloop.lab.arena.leaderboard import Row, State


def row(**progress: object) -> Row:
    return Row(
        id=3, track="digits", track_fingerprint="m", name="ada", baseline=False, config="{}", seeds=(1, 2),
        state=State.JUDGING,
        submitted=0.0, ended=None, progress=progress, trials=(), versions={}, why="", seal="",
    )  # fmt: skip


def test_progress_is_described_from_the_queue_to_the_last_seed():
    assert progress_text(row(), 2) == ("in the queue, 2 ahead", 0, None)
    assert progress_text(row(), 0) == ("the judge is starting", 0, None)
    progress = {"seed": 1, "of": 5, "update": 120, "accuracy": 0.931}
    assert progress_text(row(**progress), 0) == ("seed 2 of 5 · update 120: 93.1% held out", 1, 5)
    assert (
        progress_text(row(**progress, again=True), 0)[0]
        == "seed 2 of 5 · update 120: run again, to compare and to measure its time"
    )


def test_without_a_terminal_each_stage_is_one_line():
    out = io.StringIO()
    with JudgingDisplay(out) as display:
        for update in (1, 50, 100):
            display.show(row(seed=0, of=5, update=update, accuracy=0.5), 0)
        display.show(row(seed=1, of=5, update=1, accuracy=0.5), 0)
    assert out.getvalue() == "seed 1 of 5\nseed 2 of 5\n"


def test_a_quiet_display_prints_nothing():
    out = io.StringIO()
    with JudgingDisplay(out, quiet=True) as display:
        display.show(row(), 1)
    assert out.getvalue() == ""
