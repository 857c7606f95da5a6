"""The simulator's worker process: generates a script, runs it under the sanitizer, and streams its progress.

One JSON command per line comes in, see `simulator_commands`. JSON messages go out, distinguished by ``kind``:

- ``ready``;
- ``started``: ``run``, ``request`` (of the start command), ``config`` (with the changes that failures need; ``changed``
  lists them), ``bugs``, ``text``, ``script`` (highlighted), ``broken`` (lines that a failure has changed: ``line``,
  ``kind`` of "left out", "added" and "changed", ``before``, ``after``), ``points`` (``train``, ``held_out``: [x, y,
  class]), ``classes``, ``span`` ([low, high] of both axes of every picture), ``layers``, ``updates`` (planned),
  ``memory`` (how it is measured);
- ``finding``: ``run``, ``finding`` as in the report's JSON, ``line``, ``excerpt`` ([{number, text, fault}]);
- ``script``: ``run``, ``text``, ``script``: the script, followed by the edits made so far;
- ``refused``: ``what``, ``why``, ``fix``;
- ``scenario``: ``name``, ``state`` "running" (``progress`` 0..1), "stopped" or "done" (``title``, ``claim``,
  ``measured``, ``holds``, ``runs``: ``label``, ``config``, ``bugs`` and the curves of each);
- ``ended``: ``run``, ``why`` "finished", "another run" or a reason, ``updates``, ``headline`` and ``judged`` of the
  sanitizer, ``explained``: null, or ``title``, ``meaning``, ``fix`` and ``line`` of an error that PyTorch has raised.

A frame is binary, see `wire_format.encode_frame` and `decision_planes.Plane`: the newest pictures, and every point of
the curves since the previous frame. At most two frames are unpainted; training pauses while the page does not paint.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Final, NamedTuple

from trueloop.core.errors import InvalidConfig, MissingExtra, TrueloopError
from trueloop.core.findings import Finding, Report
from trueloop.failures.load import catalogue, known_errors
from trueloop.lab.channel import Channel
from trueloop.lab.forking import warm_up
from trueloop.lab.frames import MAX_TIME_SHARE, FrameSender
from trueloop.lab.highlight import highlight
from trueloop.lab.simulator_commands import (
    MAX_UPDATES,
    AcknowledgeFrame,
    AddPoint,
    Command,
    EditWeight,
    Pause,
    RemovePoint,
    Run,
    RunScenario,
    RunUntil,
    ShowNeurons,
    Start,
    Step,
    parse_command,
)
from trueloop.lab.teaching.datasets import AddedPoint
from trueloop.lab.teaching.decision_planes import layers
from trueloop.lab.teaching.inject import Inject, InjectedScript, injectables, write_script
from trueloop.lab.teaching.memory import describe_method
from trueloop.lab.teaching.program import Program
from trueloop.lab.teaching.scenarios import SCENARIOS, Record, Scenario, Variant, learning
from trueloop.lab.teaching.script_run import ScriptRun, Stopped
from trueloop.reporting.excerpt import excerpts
from trueloop.reporting.json_report import finding_to_json
from trueloop.reporting.summary import format_counts, format_learning, headline
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch

PROGRESS_INTERVAL_S: Final = 0.1  # time between two progress messages of an experiment
SEARCH_UPDATES: Final = 200  # updates in which most findings come: frames may then take less of the time
SEARCH_TIME_SHARE: Final = 0.15
MAX_MIB: Final = 768.0  # memory limit of a run: retained graphs would grow without limit


def serve(read_fd: int, write_fd: int) -> None:
    """Execute the commands of the page until it disconnects."""
    simulator = Simulator(Channel(read_fd, write_fd))
    warm_up()
    try:
        simulator.run()
    except EOFError:
        return


def warm_up_sanitizer() -> None:
    """Import what the sanitizer imports when it starts for the first time, so that forked workers have it."""
    with _watch(lambda finding: None):
        pass


def _watch(on_finding: Callable[[Finding], None]) -> Watch:
    """Return a sanitizer with all failures of the catalogue."""
    failures = [WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()]
    return Watch(failures, on_finding=on_finding, errors=known_errors())


class _PendingRun(NamedTuple):
    """A requested run and its script."""

    command: Start
    script: InjectedScript


class Simulator:
    """The session of one page, with one run at a time.

    Args:
        channel: the connection to the page.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._commands: deque[Command] = deque()
        self._next: _PendingRun | RunScenario | None = None
        """The requested run or experiment, which starts when the current one has stopped."""
        self._frames = FrameSender(channel.send_frame)
        self._runs = 0
        """Number of runs so far, which identifies the current run."""
        self._script_run: ScriptRun | None = None
        self._ended = False
        """True if the current run has ended."""
        self._script: InjectedScript | None = None
        self._start_to_announce: Start | None = None
        """The start command whose `started` message is not sent yet."""
        self._pause_update = 0
        """The update before which the run pauses."""
        self._missing = set[str]()
        """Codes of the injected failures that are not found yet."""
        self._paused = False
        self._needs_frame = True
        """True if a frame must be sent although no update was made."""

    def run(self) -> None:
        """Serve until the page disconnects.

        Raises:
            EOFError: the page has disconnected.
        """
        self._channel.send_json({"kind": "ready"})
        while True:
            if self._next is None:
                self._process_commands(None)
            pending, self._next = self._next, None
            if isinstance(pending, RunScenario):
                self._run_scenario(pending.name)
            elif pending is not None:
                self._run_script(pending)
            elif self._script_run is not None and self._needs_frame and self._frames.page_keeps_up:
                self._needs_frame = False
                self._frames.send(self._script_run, "ended")

    # One run -----------------------------------------------------------------------------------------------------

    def _run_script(self, pending: _PendingRun) -> None:
        script = pending.script
        self._runs += 1
        self._pause_update, self._script, self._ended = MAX_UPDATES if pending.command.train else 0, script, False
        self._missing = set(pending.command.bugs)
        self._frames.start_run(self._runs)
        watch = _watch(self._send_finding)
        clip = script.simulation.clip
        script_run = self._script_run = ScriptRun(
            Program(script.loop.text()), self._before_batch, clip=clip, isolated=watch.paused
        )
        self._start_to_announce = pending.command
        end_reason = "finished"
        watch.start()
        try:
            script_run.run()
        except Stopped as stopped:
            end_reason = str(stopped)
        except EOFError:  # the page has disconnected
            raise
        except Exception as error:  # noqa: BLE001 - the page shows the error
            watch.report_error(error)
            end_reason = f"{type(error).__name__}: {error}"[:400]
        finally:
            report = watch.stop()
        self._send_ended(script_run, end_reason, report)

    def _before_batch(self, script_run: ScriptRun) -> None:
        """Pause the script before a batch for as long as the page requests."""
        if self._start_to_announce is not None:
            self._send_started(script_run, self._start_to_announce)
        self._process_commands(0.0)
        frames = self._frames
        frames.max_time_share = (
            SEARCH_TIME_SHARE if self._missing and script_run.update < SEARCH_UPDATES else MAX_TIME_SHARE
        )
        while self._next is None:
            paused = script_run.window >= self._pause_update
            self._needs_frame |= paused and not self._paused
            self._paused = paused
            if frames.is_due and (self._needs_frame or not paused):
                self._needs_frame = False
                frames.send(script_run, "paused" if paused else "running")
            if not paused and not frames.page_stopped:
                break
            self._process_commands(0.01 if self._needs_frame and frames.page_keeps_up else None)
        if self._next is not None:
            raise Stopped("another run")
        if script_run.used_mib() > MAX_MIB:
            raise Stopped(f"The run used more than {MAX_MIB:g} MiB of memory.")

    def _send_ended(self, script_run: ScriptRun, end_reason: str, report: Report) -> None:
        if end_reason != "another run" and {"model", "train_set"} <= script_run.program.variables.keys():
            self._frames.send(script_run, "ended")
        self._needs_frame, self._ended = False, True
        self._channel.send_json({
            "kind": "ended", "run": self._runs, "why": end_reason, "updates": script_run.update,
            "headline": headline(report), "judged": format_counts(report), "explained": _error_json(report),
        })  # fmt: skip
        if self._start_to_announce is not None or end_reason == "another run":
            self._script_run = None

    def _send_started(self, script_run: ScriptRun, command: Start) -> None:
        assert self._script is not None
        self._start_to_announce, run = None, self._runs
        loop, simulation = self._script
        requested, config = asdict(command.config), asdict(simulation)
        self._needs_frame = True
        self._channel.send_json({
            "kind": "started", "run": run, "request": command.request, "config": config, "bugs": command.bugs,
            "changed": {
                name: [requested[name], value] for name, value in config.items() if value != requested[name]
            },
            "text": script_run.program.text, "script": highlight(script_run.program.text),
            "broken": [each._asdict() for each in loop.changed_lines()],
            "points": {"train": script_run.points("train_set"), "held_out": script_run.points("held_out_set")},
            "classes": simulation.classes, "span": [-script_run.half_width, script_run.half_width],
            "layers": layers(simulation.hidden, simulation.classes), "updates": simulation.updates,
            "memory": describe_method(),
        })  # fmt: skip

    def _send_finding(self, finding: Finding) -> None:
        self._missing.discard(finding.code)
        lines = [line for excerpt in excerpts(finding) for line in excerpt.lines if line is not None]
        self._channel.send_json({
            "kind": "finding", "run": self._runs, "finding": finding_to_json(finding),
            "line": finding.location and finding.location.line,
            "excerpt": [
                {"number": line.number, "text": line.text, "fault": any(note.is_primary for note in line.notes)}
                for line in lines
            ],
        })  # fmt: skip

    # Commands ----------------------------------------------------------------------------------------------------

    def _process_commands(self, timeout_s: float | None) -> None:
        """Execute received commands up to the next run; None waits for the first command without limit."""
        try:
            if not self._commands:
                self._commands.extend(self._read_commands(timeout_s))
            while self._commands and self._next is None:
                self._execute(self._commands.popleft())
        except TrueloopError as error:
            self._send_refused(error)

    def _read_commands(self, timeout_s: float | None) -> list[Command]:
        commands: list[Command] = []
        for message in self._channel.receive(timeout_s):
            try:
                commands.append(parse_command(message))
            except InvalidConfig as error:
                self._send_refused(error)
        return commands

    def _execute(self, command: Command) -> None:
        if isinstance(command, AcknowledgeFrame):
            self._frames.acknowledge(command.frame)
        elif isinstance(command, ShowNeurons):
            self._frames.neurons, self._needs_frame = command.neurons, True
        elif isinstance(command, Start):
            self._next = _PendingRun(command, _prepare(command))  # an error does not end the current run
        elif isinstance(command, RunScenario):
            self._next = command
        elif self._script_run is None:
            raise InvalidConfig(f"There is no run for {type(command).__name__}.", fix="Start a run.")
        elif self._ended and isinstance(command, AddPoint | RemovePoint):
            return  # the page keeps the point for the script of its next run
        elif isinstance(command, EditWeight | AddPoint | RemovePoint):
            self._apply_edit(self._script_run, command)
        else:
            self._pause_update = _update_to_pause_before(self._script_run, command)
            self._needs_frame = True

    def _apply_edit(self, script_run: ScriptRun, command: EditWeight | AddPoint | RemovePoint) -> None:
        assert self._script is not None
        if isinstance(command, EditWeight):
            script_run.edit(command.parameter, command.index, command.value)
        elif isinstance(command, RemovePoint):
            script_run.remove(command.x, command.y)
        elif command.label < self._script.simulation.classes:
            script_run.add(AddedPoint(command.x, command.y, command.label))
        else:
            classes = self._script.simulation.classes
            raise InvalidConfig(f"label is {command.label}.", fix=f"There are {classes} classes: 0 to {classes - 1}.")
        self._needs_frame = True
        edits = "".join(f"# {edit}\n" for edit in script_run.edits)
        text = f"{script_run.program.text}\n# Edits during the run:\n{edits}"
        self._channel.send_json({"kind": "script", "run": self._runs, "text": text, "script": highlight(text)})

    def _send_refused(self, error: TrueloopError) -> None:
        self._channel.send_json({"kind": "refused", "what": error.what, "why": error.why, "fix": error.fix})

    # Experiments -------------------------------------------------------------------------------------------------

    def _run_scenario(self, name: str) -> None:
        scenario, reported_s = SCENARIOS[name], 0.0
        self._script_run = None

        def report(progress: float) -> None:
            nonlocal reported_s
            self._process_commands(0.0)
            if self._next is not None:
                raise Stopped
            if perf_counter() - reported_s > PROGRESS_INTERVAL_S:
                reported_s = perf_counter()
                self._channel.send_json({"kind": "scenario", "name": name, "state": "running", "progress": progress})

        try:
            records = run_scenario(scenario, {code: each.inject for code, each in injectables().items()}, report)
        except Stopped:
            self._channel.send_json({"kind": "scenario", "name": name, "state": "stopped"})
            return
        verdict = scenario.judge(records)
        self._channel.send_json({
            "kind": "scenario", "name": name, "state": "done", "title": scenario.title, "claim": scenario.claim,
            "measured": verdict.measured, "holds": verdict.holds,
            "runs": [
                {
                    "label": variant.label, "config": asdict(variant.simulation), "bugs": variant.bugs,
                    "learning": format_learning(learning(record)), **asdict(record),
                }
                for variant, record in zip(scenario.variants, records, strict=True)
            ],
        })  # fmt: skip


def run_scenario(
    scenario: Scenario, injects: Mapping[str, Inject], on_progress: Callable[[float], None] = lambda progress: None
) -> Sequence[Record]:
    """Run all variants.

    Args:
        scenario: the experiment.
        injects: the injections by failure code.
        on_progress: function that receives the progress, 0..1, before every batch; it may raise `Stopped`.

    Returns:
        One record per variant, in order.
    """
    total = sum(variant.simulation.updates for variant in scenario.variants)
    done = 0
    records: list[Record] = []
    for variant in scenario.variants:

        def before_batch(script_run: ScriptRun, done: int = done) -> None:
            on_progress((done + script_run.update) / total)

        records.append(_run_variant(variant, injects, before_batch))
        done += variant.simulation.updates
    return records


def _run_variant(variant: Variant, injects: Mapping[str, Inject], before_batch: Callable[[ScriptRun], None]) -> Record:
    loop, simulation = write_script(variant.simulation, [injects[code] for code in variant.bugs])
    script_run = ScriptRun(Program(loop.text()), before_batch, clip=simulation.clip, memory_share=1.0)
    script_run.run()
    curves = script_run.take_curves()
    return Record(
        update=curves.update, loss=curves.loss, norm=curves.norm, rate=curves.rate, evaluations=curves.evaluations,
        sweep=script_run.sweep,
    )  # fmt: skip


def _prepare(command: Start) -> InjectedScript:
    available = injectables()
    for code in command.bugs:
        if code not in available:
            raise InvalidConfig(f"{code!r} is not an injectable failure.", fix=f"Known: {', '.join(available)}.")
    for x, y, label in command.points:
        if label >= command.config.classes:
            raise InvalidConfig(
                f"The point at ({x:g}, {y:g}) has class {label}.", fix=f"There are {command.config.classes} classes."
            )
    if command.config.dataset == "digits" and find_spec("sklearn") is None:
        raise MissingExtra("sklearn", "demo")
    bugs = [available[code].inject for code in dict.fromkeys(command.bugs)]
    return write_script(command.config, bugs, [AddedPoint(*point) for point in command.points])


def _error_json(report: Report) -> dict[str, Any] | None:
    """Return the explanation of the PyTorch error that ended a run; None if there is none."""
    error = report.error
    line = error.location.line if error and error.location else None
    return error and {"title": error.title, "meaning": error.meaning, "fix": error.fix, "line": line}


def _update_to_pause_before(script_run: ScriptRun, command: Run | Pause | Step | RunUntil) -> int:
    """Return the window before which the run pauses."""
    if isinstance(command, Step):
        return script_run.window + command.updates
    if isinstance(command, RunUntil):
        return command.update
    return MAX_UPDATES if isinstance(command, Run) else script_run.window


def main() -> None:
    """Serve on standard input and output; other prints go to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    serve(0, output)


if __name__ == "__main__":
    sys.exit(main())
