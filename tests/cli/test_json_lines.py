from __future__ import annotations

import io
import json
from typing import Any

from trueloop.cli.json_lines import PROGRESS_INTERVAL_S, JsonLines
from trueloop.core.protocols import Evaluated, Notice, RunEnded, RunStarted, UpdateRow, UpdatesDone

FACTS = {"recipe": "digits", "source": {"digits.py": "x" * 1000}, "packages": {"torch": "2"}, "device": "cpu"}


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def rows(first: int, last: int, loss: float = 0.5) -> UpdatesDone:
    return UpdatesDone(rows=[UpdateRow(k, 1, loss, 1.5, 0.1, 8, 0.25, 0.5, False) for k in range(first, last + 1)])


def lines(file: io.StringIO) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    return [json.loads(line, parse_constant=refuse) for line in file.getvalue().splitlines()]


def test_each_event_is_one_line_without_long_facts():
    file, clock = io.StringIO(), Clock()
    reporter = JsonLines(file, now=clock)
    reporter.report(RunStarted(name="digits", epochs=1, updates=9, start_update=0, facts=FACTS))
    metrics, tables = {"loss": float("nan")}, {"confusion": [[1]]}
    reporter.report(Evaluated(update=3, epoch=1, split="val", metrics=metrics, tables=tables, seconds=0.5, best=True))
    reporter.report(Notice(update=3, kind="early_stop", message="enough\nnow", details={}))
    reporter.report(RunEnded(update=3, reason="early_stop", seconds=2.0))
    started, evaluated, noted, ended = lines(file)
    assert started["event"] == "run_started"
    assert started["facts"] == {"recipe": "digits", "device": "cpu"}
    assert (evaluated["metrics"], "tables" in evaluated) == ({"loss": "nan"}, False)
    assert noted["message"] == "enough\nnow"
    assert (ended["event"], ended["reason"], ended["time"]) == ("run_ended", "early_stop", 1000.0)


def test_progress_is_written_periodically():
    file, clock = io.StringIO(), Clock()
    reporter = JsonLines(file, now=clock)
    reporter.report(RunStarted(name="digits", epochs=1, updates=8, start_update=0, facts={}))
    reporter.report(rows(1, 2))
    assert len(lines(file)) == 1
    clock.seconds += PROGRESS_INTERVAL_S
    reporter.report(rows(3, 4))
    reporter.report(rows(5, 6))
    _, progress = lines(file)
    assert progress == {
        "event": "progress", "time": 1000.0 + PROGRESS_INTERVAL_S, "epoch": 1, "update": 4, "updates": 8, "loss": 0.5,
        "grad_norm": 1.5, "lr": 0.1, "updates_per_s": 2.0, "examples_per_s": 16.0, "waiting_share": 0.5, "skipped": 0,
        "remaining_s": 5.0,
    }  # fmt: skip


def test_a_closed_output_does_not_end_the_run():
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    reporter = JsonLines(Gone())
    reporter.report(RunEnded(update=3, reason="finished", seconds=2.0))
    reporter.close()
    file = io.StringIO()
    file.close()
    JsonLines(file).report(RunEnded(update=3, reason="finished", seconds=2.0))
