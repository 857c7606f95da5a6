"""The worker process of "It does not learn": runs a script that does not learn, then tries changes in copies of it.

The scripts are those of the catalogue's family "learning". One JSON command per line comes in: ``{"do": "open",
"code"}``, then ``{"do": "diagnose"}``. JSON messages go out, distinguished by ``kind``:

- ``script``: ``code``, ``title``, ``lines`` (highlighted);
- ``run``: ``updates`` and ``values`` of the script's loss, ``constant`` (loss of the best answer that does not depend
  on the input, or null), ``says`` (the start and the end in words), ``finding`` (null, or as in the report's JSON);
- ``trying``: ``title`` of the experiment that runs now, ``left`` (how many are to come);
- ``trial``: ``key`` ("" = the unchanged script), ``title``, ``curve`` (``updates`` and ``values``, of the first seed);
- ``ranking``: ``headline``, ``notes``, ``done``, ``constant``, and ``outcomes``: the changes tried so far, the best
  first, each with ``key``, ``effect``, ``before``, ``after``, ``says``, ``line``, ``code``, ``advice``;
- ``refused``: ``what``, ``why``, ``fix``.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trueloop.app.diagnosis.conclusions import Diagnosis, Outcome, conclude, is_worse, main_curve, promising
from trueloop.app.diagnosis.diagnosis_output import sentence, split_location
from trueloop.app.diagnosis.experiments import ExperimentRunner, Trial, Trials
from trueloop.app.web.wire_format import error_body, to_json_value
from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import Report
from trueloop.core.learning import LearningSummary
from trueloop.failures.load import Entry, catalogue
from trueloop.lab.channel import Channel
from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.program import Program
from trueloop.reporting.json_report import finding_to_json
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.experiments.fork_server import ForkServer
from trueloop.sanitizer.run_program import ProgramCommand
from trueloop.sanitizer.watch import Watch

PREFIX: Final = "trueloop-lab-"  # of a session's folder; the process id of its worker follows
FAMILY: Final = "learning"
SCRIPT: Final = "train.py"
BUDGET_S: Final = 60.0  # time for all experiments
UPDATES: Final = 100  # of each experiment
PROBES: Final = ("one batch only", "random labels")
"""Titles of experiments that change nothing, but tell causes apart."""


def serve(read_fd: int, write_fd: int) -> None:
    """Serve one page until it disconnects."""
    channel = Channel(read_fd, write_fd)
    _remove_folders_of_killed_workers()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    session = _Session(channel, folder)
    try:
        while True:
            for message in channel.receive(None):
                try:
                    session.execute(message)
                except InvalidConfig as error:
                    channel.send_json({"kind": "refused", **error_body(error)})
    except EOFError:
        return
    finally:
        session.close()
        shutil.rmtree(folder, ignore_errors=True)


def _remove_folders_of_killed_workers() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, ValueError, OverflowError):
            shutil.rmtree(folder, ignore_errors=True)
        except PermissionError:  # another user's
            continue


def learning_failures() -> Mapping[str, Entry]:
    """Return the failures whose scripts do not learn, by code."""
    return {entry.code: entry for entry in catalogue().values() if entry.family == FAMILY}


class _Session:
    """One script: its own run, then the experiments."""

    def __init__(self, channel: Channel, folder: Path) -> None:
        self._channel, self._folder = channel, folder
        self._server: ForkServer | None = None
        self._learning: LearningSummary | None = None
        self._baseline: Trial | None = None
        self._changes: list[Trial] = []

    def execute(self, message: Mapping[str, Any]) -> None:
        """Execute one command.

        Raises:
            InvalidConfig: it is not a valid command.
            EOFError: the page has disconnected.
        """
        match message:
            case {"do": "open", "code": str(code)} if code in learning_failures() and self._server is None:
                self._open(learning_failures()[code])
            case {"do": "diagnose"} if self._server is not None:
                self._diagnose(self._server)
            case _:
                raise InvalidConfig("This command is not valid here.", fix="Open a script, then diagnose it.")

    def close(self) -> None:
        """End the processes of the experiments."""
        if self._server is not None:
            self._server.close()

    def _open(self, entry: Entry) -> None:
        text = entry.failure.bad.strip() + "\n"
        path = self._folder / SCRIPT
        path.write_text(text, encoding="utf-8")
        self._channel.send_json(
            {"kind": "script", "code": entry.code, "title": entry.failure.title, "lines": highlight(text.rstrip())}
        )
        self._server = ForkServer(ProgramCommand(target=str(path)), self._folder)  # before the script has run here
        watch = Watch([WatchedFailure(each.failure, each.slug) for each in learning_failures().values()])
        with watch:
            Program(text, name=str(path)).run()
        report = watch.report()
        self._learning = report.learning
        self._channel.send_json({"kind": "run", **_run_json(report)})

    def _diagnose(self, server: ForkServer) -> None:
        learning = self._learning
        self._baseline, self._changes = None, []
        runner = ExperimentRunner(
            server, updates=UPDATES, budget_s=BUDGET_S, on_trial=self._send_trying, on_result=self._add
        )
        trials = runner.run(
            promising=lambda baseline, changes: promising(baseline, changes, learning), is_worse=is_worse
        )
        self._send_ranking(conclude(trials, learning), done=True)

    def _send_trying(self, title: str, left: int) -> None:
        self._channel.receive()  # raises if the page has disconnected
        self._channel.send_json({"kind": "trying", "title": title, "left": left})

    def _add(self, trial: Trial) -> None:
        """Send an experiment, and the ranking of all so far."""
        if trial.change.title in PROBES:
            return
        if self._baseline is None:
            self._baseline = trial
        else:
            self._changes.append(trial)
        main = main_curve(trial.curves[0])
        curve = {"updates": list(main.updates), "values": list(main.values)} if main else None
        change = trial.change
        message = {"kind": "trial", "key": change.key, "title": change.title, "curve": curve}
        self._channel.send_json(to_json_value(message))
        so_far = Trials(self._baseline, self._changes, (), {}, len(self._changes), "", "")
        self._send_ranking(conclude(so_far, self._learning), done=False)

    def _send_ranking(self, found: Diagnosis, *, done: bool) -> None:
        self._channel.send_json({
            "kind": "ranking", "done": done, "headline": found.headline, "notes": list(found.notes),
            "constant": found.constant, "outcomes": [self._outcome_json(each, found) for each in found.outcomes],
        })  # fmt: skip

    def _outcome_json(self, outcome: Outcome, found: Diagnosis) -> dict[str, Any]:
        change = outcome.trial.change
        line, code = split_location(change.location, self._folder)
        return {
            "key": change.key, "title": change.title, "effect": outcome.effect.name.lower(),
            "words": outcome.effect.value, "says": sentence(outcome, found), "line": line, "code": code,
            "advice": change.advice, "before": _finite(outcome.before), "after": _finite(outcome.after),
        }  # fmt: skip


def _run_json(report: Report) -> dict[str, Any]:
    losses, learning = report.series.get("loss"), report.learning
    return to_json_value({
        "updates": list(losses.updates) if losses else [], "values": list(losses.values) if losses else [],
        "constant": learning.constant if learning else None, "says": learning.losses if learning else "",
        "finding": finding_to_json(report.findings[0]) | {"path": SCRIPT} if report.findings else None,
    })  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
