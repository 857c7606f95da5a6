"""The simulator's worker: writes a script, runs that very text under the sanitizer, and shows what happens.

One JSON object a line comes in, see `orders`. Texts go out, told apart by their ``kind``:

- ``ready``;
- ``began``: ``run``, ``config`` (as it is run: what a failure needs is set; ``changed`` says what), ``bugs``, ``text``,
  ``script`` (its lines as coloured pieces), ``broken`` (lines that a failure has changed: ``line``, ``kind`` of "left
  out", "added" and "changed", ``before``, ``after``), ``points`` (``train``, ``held_out``: [x, y, class]), ``classes``,
  ``span`` ([low, high], of both axes, of every picture), ``layers``, ``updates`` (planned), ``memory`` (how measured);
- ``finding``: ``run``, ``finding`` as in the report's JSON, ``line``, ``excerpt`` ([{number, text, fault}]);
- ``script``: ``run``, ``text``, ``script``: the text with what was done by hand since;
- ``refused``: ``what``, ``why``, ``fix``;
- ``scenario``: ``name``, ``state`` "running" (``progress`` 0..1), "stopped" or "done" (``title``, ``claim``,
  ``measured``, ``holds``, ``runs``: ``label``, ``config``, ``bugs`` and the curves of each);
- ``ended``: ``run``, ``why`` "finished", "another run" or words, ``updates``, ``headline`` and ``judged`` of the
  sanitizer, ``explained``: null, or ``title``, ``meaning``, ``fix`` and ``line`` of an error that torch has raised.

A frame is bytes, see `wire.frame` and `pictures.Plane`: the newest pictures, and every point of the curves since the
frame before. At most two are on their way; a page that paints no more holds the training up.
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
from trueloop.lab.frames import FrameSender
from trueloop.lab.highlight import highlight
from trueloop.lab.simulator_commands import (
    MAX_UPDATES,
    AcknowledgeFrame,
    Begin,
    EditWeight,
    ShowNeurons,
    Command,
    Pause,
    AddPoint,
    Run,
    Step,
    RunScenario,
    RemovePoint,
    RunUntil,
    parse_command,
)
from trueloop.lab.teaching.datasets import Added
from trueloop.lab.teaching.decision_planes import layers
from trueloop.lab.teaching.inject import Inject, InjectedScript, write_script
from trueloop.lab.teaching.memory import measured_by
from trueloop.lab.teaching.player import Play, Stopped
from trueloop.lab.teaching.program import Program
from trueloop.lab.teaching.scenarios import SCENARIOS, Record, Scenario, Variant
from trueloop.reporting.excerpt import excerpts
from trueloop.reporting.json_report import finding_to_json
from trueloop.reporting.summary import format_counts, headline
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch


def run_scenario(
    scenario: Scenario, injects: Mapping[str, Inject], on_progress: Callable[[float], None] = lambda progress: None
) -> Sequence[Record]:
    """Run all variants.

    Args:
        scenario: the experiment.
        injects: what breaks a script, by its code.
        on_progress: told before every batch how far all is, 0..1; may raise `Stopped`.

    Returns:
        A record of each, in their order.
    """
    total = sum(variant.simulation.updates for variant in scenario.variants)
    done = 0
    records: list[Record] = []
    for variant in scenario.variants:
        records.append(_run_variant(variant, injects, lambda play, done=done: on_progress((done + play.update) / total)))
        done += variant.simulation.updates
    return records


def _run_variant(variant: Variant, injects: Mapping[str, Inject], before_batch: Callable[[Play], None]) -> Record:
    loop, simulation = write_script(variant.simulation, [injects[code] for code in variant.bugs])
    play = Play(Program(loop.text()), before_batch, clip=simulation.clip, memory_share=1.0)
    play.run()
    curves = play.take()
    return Record(
        update=curves.update, loss=curves.loss, norm=curves.norm, rate=curves.rate, evaluations=curves.evaluations,
        sweep=play.sweep,
    )  # fmt: skip


PROGRESS_INTERVAL_S: Final = 0.1  # between two words on how far an experiment is
MAX_MIB: Final = 768.0  # what a run may come to hold: graphs that are kept grow without end


def serve(read_fd: int, write_fd: int) -> None:
    """Do what the page says until it hangs up."""
    simulator = Simulator(Channel(read_fd, write_fd))
    warm_up()
    try:
        simulator.run()
    except EOFError:
        return


def warm_up() -> None:
    """Import what torch and the catalogue import late: the first optimizer brings some 800 modules."""
    import torch

    torch.set_num_threads(1)  # two threads on small tensors: 75 to 270 ms a step, not 2 to 7
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    catalogue()
    known_errors()


class _PendingRun(NamedTuple):
    """A run that is asked for, and its script."""

    command: Begin
    written: InjectedScript


class Simulator:
    """One page's session: one run at a time.

    Args:
        channel: the line to the page.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._commands: deque[Command] = deque()
        self._next: _PendingRun | RunScenario | None = None
        self._frames = FrameSender(channel.send_frame)
        self._runs = 0
        self._play: Play | None = None
        self._ended = False
        """The run that is there trains no more."""
        self._script: InjectedScript | None = None
        self._unannounced: Begin | None = None
        """What the page has begun, and has not yet heard to have begun."""
        self._goal = 0
        """The update before which the run is held."""
        self._paused = False
        self._needs_frame = True
        """Something is to be shown, though no update was made."""

    def run(self) -> None:
        """Serve until the line ends.

        Raises:
            EOFError: it has ended.
        """
        self._channel.send_json({"kind": "ready"})
        while True:
            if self._next is None:
                self._process_commands(None)
            begin, self._next = self._next, None
            if isinstance(begin, RunScenario):
                self._run_scenario(begin.name)
            elif begin is not None:
                self._begin(begin)
            elif self._play is not None and self._needs_frame and self._frames.page_keeps_up:
                self._needs_frame = False
                self._frames.send(self._play, "ended")

    # One run -----------------------------------------------------------------------------------------------------

    def _begin(self, begin: _PendingRun) -> None:
        written = begin.written
        self._runs += 1
        self._goal, self._script, self._ended = 0, written, False
        self._frames.start_run(self._runs)
        watch = Watch(
            [WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()],
            on_finding=self._send_finding, errors=known_errors(),
        )  # fmt: skip
        clip = written.simulation.clip
        play = self._play = Play(Program(written.loop.text()), self._before_batch, clip=clip, aside=watch.paused)
        self._unannounced = begin.command
        why = "finished"
        watch.start()
        try:
            play.run()
        except Stopped as stopped:
            why = str(stopped)
        except EOFError:  # the page is gone
            raise
        except Exception as error:  # noqa: BLE001 - a script of ours that PyTorch refuses is a thing to be shown
            watch.report_error(error)
            why = f"{type(error).__name__}: {error}"[:400]
        finally:
            report = watch.stop()
        self._send_ended(play, why, report)

    def _before_batch(self, play: Play) -> None:
        """Hold the script before a batch, as long as the page wants."""
        if self._unannounced is not None:
            self._send_began(play, self._unannounced)
        self._process_commands(0.0)
        frames = self._frames
        while self._next is None:
            held = play.update >= self._goal
            self._needs_frame |= held and not self._paused
            self._paused = held
            if frames.is_due and (self._needs_frame or not held):
                self._needs_frame = False
                frames.send(play, "paused" if held else "running")
            if not held and not frames.page_stopped:
                break
            self._process_commands(0.01 if self._needs_frame and frames.page_keeps_up else None)
        if self._next is not None:
            raise Stopped("another run")
        if play.held_mib() > MAX_MIB:
            raise Stopped(f"It held {MAX_MIB:g} MiB, and others need memory, too.")

    def _send_ended(self, play: Play, why: str, report: Report) -> None:
        if why != "another run" and "model" in play.program.names and "train_set" in play.program.names:
            self._frames.send(play, "ended")
        self._needs_frame, self._ended = False, True
        self._channel.send_json({
            "kind": "ended", "run": self._runs, "why": why, "updates": play.update,
            "headline": headline(report), "judged": format_counts(report), "explained": _explained(report),
        })  # fmt: skip
        if self._unannounced is not None or why == "another run":
            self._play = None

    def _send_began(self, play: Play, begin: Begin) -> None:
        assert self._script is not None
        self._unannounced, run = None, self._runs
        loop, simulation = self._script
        before, now = asdict(begin.config), asdict(simulation)
        self._needs_frame = True
        self._channel.send_json({
            "kind": "began", "run": run, "config": now, "bugs": begin.bugs,
            "changed": {name: [before[name], value] for name, value in now.items() if value != before[name]},
            "text": play.program.text, "script": highlight(play.program.text),
            "broken": [each._asdict() for each in loop.changed_lines()],
            "points": {"train": play.points("train_set"), "held_out": play.points("held_out_set")},
            "classes": simulation.classes, "span": [-play.half, play.half],
            "layers": layers(simulation.hidden, simulation.classes), "updates": simulation.updates,
            "memory": measured_by(),
        })  # fmt: skip

    def _send_finding(self, finding: Finding) -> None:
        shown = [line for excerpt in excerpts(finding) for line in excerpt.lines if line is not None]
        self._channel.send_json({
            "kind": "finding", "run": self._runs, "finding": finding_to_json(finding),
            "line": finding.location and finding.location.line,
            "excerpt": [
                {"number": line.number, "text": line.text, "fault": any(note.is_primary for note in line.notes)}
                for line in shown
            ],
        })  # fmt: skip

    # Orders ------------------------------------------------------------------------------------------------------

    def _process_commands(self, timeout_s: float | None) -> None:
        """Do what has come; wait for the first for so long, None = until one comes. Stops at what ends this run."""
        try:
            if not self._commands:
                self._commands.extend(self._read_commands(timeout_s))
            while self._commands and self._next is None:
                self._execute(self._commands.popleft())
        except TrueloopError as error:
            self._send_refused(error)

    def _read_commands(self, timeout_s: float | None) -> list[Command]:
        read: list[Command] = []
        for message in self._channel.receive(timeout_s):
            try:
                read.append(parse_command(message))
            except InvalidConfig as error:
                self._send_refused(error)
        return read

    def _execute(self, command: Command) -> None:
        if isinstance(command, AcknowledgeFrame):
            self._frames.acknowledge(command.frame)
        elif isinstance(command, ShowNeurons):
            self._frames.neurons, self._needs_frame = command.neurons, True
        elif isinstance(command, Begin):
            self._next = _PendingRun(command, _written(command))  # what cannot be written does not end the run that is there
        elif isinstance(command, RunScenario):
            self._next = command
        elif self._play is None:
            raise InvalidConfig(f"There is no run to {type(command).__name__.lower()}.", fix="Begin one.")
        elif self._ended and isinstance(command, AddPoint | RemovePoint):
            return  # nobody trains on it: the page keeps it for the script of its next run
        elif isinstance(command, EditWeight | AddPoint | RemovePoint):
            self._apply_edit(self._play, command)
        else:
            self._goal = _goal(self._play, command)
            self._needs_frame = True

    def _apply_edit(self, play: Play, command: EditWeight | AddPoint | RemovePoint) -> None:
        assert self._script is not None
        if isinstance(command, EditWeight):
            play.edit(command.parameter, command.index, command.value)
        elif isinstance(command, RemovePoint):
            play.remove(command.x, command.y)
        elif command.label < self._script.simulation.classes:
            play.add(Added(command.x, command.y, command.label))
        else:
            classes = self._script.simulation.classes
            raise InvalidConfig(f"label is {command.label}.", fix=f"There are {classes} classes: 0 to {classes - 1}.")
        self._needs_frame = True
        text = play.program.text + "\n# By hand, while it ran:\n" + "".join(f"# {each}\n" for each in play.by_hand)
        self._channel.send_json({"kind": "script", "run": self._runs, "text": text, "script": highlight(text)})

    def _send_refused(self, error: TrueloopError) -> None:
        self._channel.send_json({"kind": "refused", "what": error.what, "why": error.why, "fix": error.fix})

    # Experiments -------------------------------------------------------------------------------------------------

    def _run_scenario(self, name: str) -> None:
        scenario, said_s = SCENARIOS[name], 0.0
        self._play = None

        def hear(progress: float) -> None:
            nonlocal said_s
            self._process_commands(0.0)
            if self._next is not None:
                raise Stopped
            if perf_counter() - said_s > PROGRESS_INTERVAL_S:
                said_s = perf_counter()
                self._channel.send_json({"kind": "scenario", "name": name, "state": "running", "progress": progress})

        try:
            records = run_scenario(scenario, injects(), hear)
        except Stopped:
            self._channel.send_json({"kind": "scenario", "name": name, "state": "stopped"})
            return
        verdict = scenario.judge(records)
        self._channel.send_json({
            "kind": "scenario", "name": name, "state": "done", "title": scenario.title, "claim": scenario.claim,
            "measured": verdict.measured, "holds": verdict.holds,
            "runs": [
                {"label": variant.label, "config": asdict(variant.simulation), "bugs": variant.bugs, **asdict(record)}
                for variant, record in zip(scenario.variants, records, strict=True)
            ],
        })  # fmt: skip


def injects() -> dict[str, Inject]:
    """Return what breaks a script, for every failure that can be injected, by its code."""
    known = {code: entry.failure.inject for code, entry in catalogue().items()}
    return {code: inject for code, inject in known.items() if inject is not None}


def _written(begin: Begin) -> InjectedScript:
    known = injects()
    for code in begin.bugs:
        if code not in known:
            raise InvalidConfig(f"{code!r} is no failure that can be injected.", fix=f"Known: {', '.join(known)}.")
    for x, y, label in begin.points:
        if label >= begin.config.classes:
            raise InvalidConfig(
                f"The point at ({x:g}, {y:g}) has class {label}.", fix=f"There are {begin.config.classes}."
            )
    if begin.config.dataset == "digits" and find_spec("sklearn") is None:
        raise MissingExtra("sklearn", "demo")
    bugs = [known[code] for code in dict.fromkeys(begin.bugs)]
    return write_script(begin.config, bugs, [Added(*point) for point in begin.points])


def _explained(report: Report) -> dict[str, Any] | None:
    """Say what an error of torch's that has ended a run means, where that is known."""
    error = report.error
    line = error.location.line if error and error.location else None
    return error and {"title": error.title, "meaning": error.meaning, "fix": error.fix, "line": line}


def _goal(play: Play, asked: Run | Pause | Step | RunUntil) -> int:
    """Return the update before which a run is to be held."""
    if isinstance(asked, Step):
        return play.update + asked.updates
    if isinstance(asked, RunUntil):
        return asked.update
    return MAX_UPDATES if isinstance(asked, Run) else play.update


def main() -> None:
    """Serve on standard input and output; whatever else prints does so on standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    serve(0, output)


if __name__ == "__main__":
    sys.exit(main())
