"""A whole training run around the loop: evaluate, judge, save, stop, resume.

The loop knows updates; this module knows epochs, checkpoints and reporters. Saving and stopping happen at update
boundaries only, so that a saved state is always the state between two updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from torch import Tensor

from trueloop.engines.train.checkpoint import Checkpoint, CheckpointFolder
from trueloop.engines.train.config import TrainConfig
from trueloop.engines.train.evaluate import Evaluation, MetricFactories, evaluate
from trueloop.engines.train.interrupt import Interrupt
from trueloop.engines.train.ledger import Entry, Ledger
from trueloop.engines.train.locate import Replay, locate_in_batches
from trueloop.engines.train.loop import Parts, train_epoch
from trueloop.engines.train.monitor import Monitor
from trueloop.engines.train.run_state import Position, RunState
from trueloop.ground.seams import (
    BatchSource,
    CheckpointSaved,
    Evaluated,
    Noted,
    Reporter,
    RunEnded,
    RunEvent,
    RunStarted,
    UpdatesDone,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """How a run ended."""

    reason: str
    """"finished", "early_stop" or "interrupted"."""
    update: int
    epochs: int
    metrics: Mapping[str, float]
    """The newest value of every evaluated metric: {"val/loss": 0.1, "test/accuracy": 0.98}."""
    best_value: float | None
    best_update: int | None
    best_checkpoint: Path | None
    skipped: int
    """Updates that were not finite and not stepped."""
    seconds: float
    resumed_from: int
    """The update this process began at."""


class Fit:
    """One run, from its first update or from a checkpoint, to its end.

    Args:
        parts: what the loop turns.
        config: the settings.
        source: training data.
        held_out: split name ("val") -> batches to evaluate on after epochs; each pass iterates it anew.
        metrics: beside the loss, on every split.
        checkpoints: where the state is saved; None = nowhere.
        reporters: hear what happens.
    """

    def __init__(
        self,
        parts: Parts,
        config: TrainConfig,
        source: BatchSource,
        *,
        held_out: Mapping[str, Iterable[Any]],
        metrics: MetricFactories,
        checkpoints: CheckpointFolder | None,
        reporters: Sequence[Reporter],
    ) -> None:
        self.parts = parts
        self.state = RunState(parts, Monitor(config.monitor))
        self._config = config
        self._source = source
        self._held_out = held_out
        self._metrics = metrics
        self._checkpoints = checkpoints
        self._reporters = reporters
        self._ledger = Ledger()
        self._saved_at = (-1, -1)
        self._problems: list[str] = []
        self._resumed = ""
        self._started = perf_counter()

    @property
    def position(self) -> Position:
        """How far the run is."""
        return self.state.position

    def run(self, *, name: str, facts: Mapping[str, Any]) -> FitResult:
        """Train to the end, or until told to stop.

        Args:
            name: of the run, for people.
            facts: JSON-ready description, see `RunStarted`.

        Raises:
            TrueloopError: with the run's last whole checkpoint left on disk.
        """
        start = self.position.update
        per_epoch = self._source.updates_per_epoch
        total = None if per_epoch is None else per_epoch * self._config.epochs
        self.report(RunStarted(name=name, epochs=self._config.epochs, updates=total, start_update=start, facts=facts))
        for problem in self._problems:
            self._note("checkpoint_passed_over", problem)
        if self._resumed:
            self._note("resumed", self._resumed)
        try:
            with Interrupt() as interrupt:
                reason = self._epochs(interrupt)
        except BaseException:
            self._tell()
            self.report(self._ended("failed"))
            raise
        return self._result(reason, start)

    def _epochs(self, interrupt: Interrupt) -> str:
        position = self.position
        while position.epoch < self._config.epochs:
            if not self._one_epoch(interrupt):
                self._save()
                self._note("interrupted", f"Stopped by Ctrl-C after update {position.update}; everything is saved.")
                return "interrupted"
            position.epoch += 1
            position.update_in_epoch = 0
            stop = self._evaluate_if_due()
            last = stop or position.epoch == self._config.epochs
            if last or position.epoch % self._config.checkpoint.every_epochs == 0:
                self._save()
            if stop:
                return "early_stop"
        return "finished"

    def _one_epoch(self, interrupt: Interrupt) -> bool:
        """Train one epoch, or what is left of it; False when interrupted."""
        position, every = self.position, self._config.checkpoint.every_updates
        steps = train_epoch(
            self.parts, self._source, position.epoch, skip=position.update_in_epoch, update=position.update
        )
        for done in steps:
            position.update += 1
            position.update_in_epoch += 1
            if self._ledger.add(done, update=position.update, epoch=position.epoch + 1):
                self._tell()
            if every and position.update % every == 0:
                self._save()
            if interrupt.requested:
                return False
        self._tell()
        return True

    def _tell(self) -> None:
        """Pass on what the ledger holds, and look after every update that was not finite."""
        entries = self._ledger.take()
        if entries:
            self.report(UpdatesDone(rows=[entry.row for entry in entries]))
        for entry in entries:
            self.parts.guard.count(skipped=entry.row.skipped)
            if entry.row.skipped:
                self._not_finite(entry)

    def _not_finite(self, entry: Entry) -> None:
        parts, guard, update = self.parts, self.parts.guard, entry.row.update
        if parts.scale.settling:  # float16 looking for its scale: no fault of the data, unless the batch shows it
            culprit = locate_in_batches(entry.window)
            kind, message = "loss_scale", f"Update {update} overflowed float16 and was skipped; the loss scale halves"
        else:
            guard.count_in_a_row()
            replay = Replay(
                model=parts.model, objective=parts.objective, device=parts.device, autocast=parts.autocast,
                generator=guard.generator,
            )  # fmt: skip
            culprit = guard.find(replay, entry.window)
            kind, message = "not_finite", f"Update {update} was not finite and was skipped"
        message += f"; {culprit}." if culprit else "."
        self._note(kind, message, culprit.as_dict() if culprit else {}, update=update)
        guard.stop_if_hopeless(update, culprit)

    def _evaluate_if_due(self) -> bool:
        """Evaluate every split after this epoch; True when the monitor says stop."""
        last = self.position.epoch == self._config.epochs
        if not self._held_out or not (last or self.position.epoch % self._config.evaluate_every_epochs == 0):
            return False
        results = {split: self.measure(batches) for split, batches in self._held_out.items()}
        for split, result in results.items():
            self.position.metrics |= {f"{split}/{name}": value for name, value in result.metrics.items()}
        judgement = self.state.monitor.observe(self.position.metrics, self.position.update)
        for split, result in results.items():
            self.tell_evaluation(split, result, best=judgement.best)
        if judgement.stop:
            monitor = self._config.monitor
            self._note(
                "early_stop",
                f"{monitor.metric} did not improve in {monitor.patience} evaluations; the best is "
                f"{self.state.monitor.best_value:.6g} after update {self.state.monitor.best_update}.",
            )
        return judgement.stop

    def measure(self, batches: Iterable[Any]) -> Evaluation:
        """Evaluate the weights as they would be shipped: averaged where an average is kept."""
        parts = self.parts
        with parts.average.applied() if parts.average else nullcontext():
            return evaluate(
                parts.forward,
                batches,
                parts.objective,
                metrics=self._metrics,
                device=parts.device,
                context=parts.autocast(),
            )

    def tell_evaluation(self, split: str, result: Evaluation, *, best: bool) -> None:
        """Report one evaluation."""
        position = self.position
        self.report(
            Evaluated(
                update=position.update,
                epoch=position.epoch,
                split=split,
                metrics=result.metrics,
                tables=result.tables,
                seconds=result.seconds,
                best=best,
            )
        )

    def _save(self) -> None:
        """Write the whole state, unless this very position is saved already."""
        self._tell()
        position = self.position
        here = (position.epoch, position.update)
        if self._checkpoints is None or self._saved_at == here:
            return
        started = perf_counter()
        saved = self._checkpoints.save(
            self.state.state_dict(), update=position.update, epoch=position.epoch, metrics=position.metrics
        )
        self._saved_at = here
        self.report(
            CheckpointSaved(
                update=saved.update,
                epoch=saved.epoch,
                path=str(saved.path),
                metrics=saved.metrics,
                seconds=perf_counter() - started,
            )
        )

    def resume(self) -> None:
        """Continue from the newest whole checkpoint, where there is one.

        Raises:
            InvalidConfig: fewer epochs are asked for than are done.
            CheckpointError: it is another run's.
        """
        if self._checkpoints is None:
            return
        found = self._checkpoints.load_latest()
        self._problems = self._checkpoints.problems()
        if found is not None:
            self._resumed = self.state.resume(cast("Mapping[str, Any]", found[1]), self._config.epochs)
            self._saved_at = (self.position.epoch, self.position.update)

    def final_weights(self) -> dict[str, Tensor]:
        """Return the weights to ship: those of the best checkpoint where asked for and there is one, else the last."""
        best = self.best() if self._config.checkpoint.final == "best" else None
        if best is not None and self._checkpoints is not None and best.update != self.position.update:
            state = cast("Mapping[str, Any]", self._checkpoints.load(best))
            self.parts.model.load_state_dict(state["model"])
            if self.parts.average:
                self.parts.average.load_state_dict(state["average"])
        return self.state.shipped_weights()

    def test(self, batches: Iterable[Any]) -> dict[str, float]:
        """Evaluate the model as it is now, once, on the test set."""
        parts = self.parts
        result = evaluate(
            parts.forward, batches, parts.objective, metrics=self._metrics, device=parts.device,
            context=parts.autocast(),
        )  # fmt: skip
        self.tell_evaluation("test", result, best=False)
        return {f"test/{name}": value for name, value in result.metrics.items()}

    def best(self) -> Checkpoint | None:
        """Return the whole checkpoint with the best monitored value, where one was saved."""
        return self._checkpoints.best() if self._checkpoints else None

    def end(self, reason: str) -> None:
        """Tell the reporters that everything is on disk."""
        self.report(self._ended(reason))

    def report(self, event: RunEvent) -> None:
        """Pass one event to every reporter."""
        for reporter in self._reporters:
            reporter.report(event)

    def _note(self, kind: str, message: str, details: Mapping[str, Any] | None = None, update: int = -1) -> None:
        update = self.position.update if update < 0 else update
        self.report(Noted(update=update, kind=kind, message=message, details=details or {}))

    def _ended(self, reason: str) -> RunEnded:
        return RunEnded(update=self.position.update, reason=reason, seconds=perf_counter() - self._started)

    def _result(self, reason: str, start: int) -> FitResult:
        best = self.best()
        return FitResult(
            reason=reason,
            update=self.position.update,
            epochs=self.position.epoch,
            metrics=dict(self.position.metrics),
            best_value=self.state.monitor.best_value,
            best_update=self.state.monitor.best_update,
            best_checkpoint=best.path if best else None,
            skipped=self.parts.guard.skipped,
            seconds=perf_counter() - self._started,
            resumed_from=start,
        )
