"""Run the training loop with evaluation, checkpoints, early stopping, interruption and resuming.

`loop` performs updates; this module adds epochs, checkpoints and reporters. A run saves and stops only between two
updates, so that a checkpoint never holds half an update.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import Any, Final

from torch import Tensor

from trueloop.core.errors import CheckpointError, ProcessLost, TrueloopError
from trueloop.core.protocols import (
    BatchSource,
    Evaluated,
    Notice,
    Reporter,
    RunEnded,
    RunEvent,
    RunStarted,
    UpdatesDone,
)
from trueloop.training.checkpoint.checkpoints import Checkpoint, CheckpointFolder
from trueloop.training.checkpoint.mirror import Mirror
from trueloop.training.checkpoint.resume_epoch import EpochOrder
from trueloop.training.checkpoint.run_identity import Identity
from trueloop.training.checkpoint.run_state import Position, ResumeNotice, RunState
from trueloop.training.checkpoint.saver import Saver
from trueloop.training.checkpoint.sharded import (
    check_folder_shared,
    extract_shards,
    load_on_all_ranks,
    save_on_all_ranks,
)
from trueloop.training.compiled.compiled_loop import train_epoch
from trueloop.training.config import TrainConfig
from trueloop.training.distributed.processes import SINGLE_PROCESS, as_process_lost
from trueloop.training.evaluation.evaluate import Evaluation, MetricFactories, evaluate, evaluation_processes
from trueloop.training.evaluation.monitor import Monitor, MonitorDecision
from trueloop.training.interrupt import Interrupt
from trueloop.training.loop import Assembly
from trueloop.training.memory.device_memory import MemorySampler, peak_memory_mib
from trueloop.training.objective import Criterion, TorchLoss
from trueloop.training.precision.skipped_update import explain_skip, share_explanation
from trueloop.training.profiling.layer_norms import LayerNorms
from trueloop.training.result import FitResult
from trueloop.training.update_buffer import UpdateBuffer

REPORT_EVERY: Final = 8  # number of updates; several processes report together, because explaining a skip needs all


class Fit:
    """Train one run to its end, starting at its first update or at a checkpoint.

    Args:
        assembly: model, optimizer and the other objects of the run, from `assemble`.
        config: the settings.
        source: training data.
        held_out: maps a split's name ("val") to its batches, which are iterated once per evaluation.
        metrics: metrics to compute on every split, in addition to the loss.
        checkpoints: folder for the run's checkpoints; None = save none. Always None on processes other than the first.
        reporters: receive every event.
    """

    def __init__(
        self,
        assembly: Assembly,
        config: TrainConfig,
        source: BatchSource,
        *,
        held_out: Mapping[str, Iterable[Any]],
        metrics: MetricFactories,
        checkpoints: CheckpointFolder | None,
        reporters: Sequence[Reporter],
    ) -> None:
        self.assembly = assembly
        self._processes = self._active_processes = assembly.parallel.processes
        self.state = RunState(assembly, Monitor(config.monitor), EpochOrder(source, self._processes))
        self._config = config
        self._source = source
        self._held_out = held_out
        self._metrics = metrics
        self._checkpoints = checkpoints
        mirror = Mirror(config.checkpoint.mirror) if checkpoints and config.checkpoint.mirror else None
        blocking = config.checkpoint.blocking
        self._saver = Saver(checkpoints, blocking=blocking, mirror=mirror) if checkpoints else None
        self._reporters = reporters
        self._saves_checkpoints = self._processes.broadcast_object(checkpoints is not None)
        self._evaluation_processes = evaluation_processes(metrics, self._processes)
        self._update_buffer = UpdateBuffer(drain_every=None if self._processes.size == 1 else REPORT_EVERY)
        self._saved_position = (-1, -1)  # (epoch, update) of the latest save
        self._checkpoint_problems: list[str] = []
        self._resume_notices: list[ResumeNotice] = []
        self._started = perf_counter()
        self._memory_sampler = MemorySampler(assembly.device)
        self._layer_norms = LayerNorms(assembly.model)

    @property
    def position(self) -> Position:
        """Number of epochs and updates done."""
        return self.state.position

    def run(self, *, name: str, facts: Mapping[str, Any]) -> FitResult:
        """Train to the end, or until asked to stop.

        Args:
            name: name of the run, for display.
            facts: JSON-ready description, see `RunStarted`.

        Raises:
            TrueloopError: training failed; the run's last complete checkpoint stays on disk.
        """
        single_loss = isinstance(self.assembly.objective, (TorchLoss, Criterion))  # a function may name its terms
        self.state.monitor.check(self._held_out, {"loss", *self._metrics} if single_loss else None)
        start = self.position.update
        updates_per_epoch = self._source.updates_per_epoch
        total = None if updates_per_epoch is None else updates_per_epoch * self._config.epochs
        self.report(RunStarted(name=name, epochs=self._config.epochs, updates=total, start_update=start, facts=facts))
        for problem in self._checkpoint_problems:
            self._note("checkpoint_passed_over", problem)
        for notice in self._resume_notices:
            self._note(*notice)
        with Interrupt() as interrupt:
            try:
                reason = self._train_epochs(interrupt)
                self._finish_saving()
            except BaseException as error:  # within Interrupt, so that SIGTERM from torchrun does not stop the saving
                process_lost = as_process_lost(error, self._processes)
                self._close_after_error(process_lost or error)
                if process_lost:
                    raise process_lost from error
                raise
            finally:
                self.assembly.parallel.close()
        return self._result(reason, start)

    def _close_after_error(self, error: BaseException) -> None:
        """Finish saving and reporting as far as possible; errors in doing so become notes of the first error."""
        self._active_processes = SINGLE_PROCESS  # the other processes do not execute this code
        steps: list[Callable[[], None]] = [self._finish_saving, self._report_updates]
        if isinstance(error, ProcessLost):
            steps.append(partial(self._note, "process_lost", f"{error.what} {error.why}"))
        steps.append(partial(self.end, "failed"))
        for step in steps:
            try:
                step()
            except (TrueloopError, OSError) as later_error:
                error.add_note(f"Also: {later_error}")

    def _train_epochs(self, interrupt: Interrupt) -> str:
        position = self.position
        if self.state.monitor.exhausted:  # the run has stopped early before; the same command does not continue it
            return "early_stop"
        while position.epoch < self._config.epochs:
            if self._processes.any_rank_stops(interrupt.requested is not None) or not self._train_epoch(interrupt):
                return self._save_and_stop(interrupt)
            position.epoch += 1
            position.update_in_epoch = 0
            decision = self._evaluate_if_due()
            is_due = position.epoch % self._config.checkpoint.every_epochs == 0
            if decision.best or decision.stop or is_due or position.epoch == self._config.epochs:
                self._save()
            if decision.stop:
                return "early_stop"
        return "finished"

    def _save_and_stop(self, interrupt: Interrupt) -> str:
        """Save the state between two updates and report what stopped the run."""
        self._save()
        self._finish_saving()
        requests = self._processes.all_gather_object((interrupt.requested, interrupt.signal))
        reason, signal = next(((request, name) for request, name in requests if request), ("interrupted", ""))
        cause = "Ctrl-C" if reason == "interrupted" else signal
        self._note(reason, f"Stopped by {cause} after update {self.position.update}; everything is saved.")
        return reason

    def _train_epoch(self, interrupt: Interrupt) -> bool:
        """Train one epoch, or the rest of it; return False if the run was asked to stop."""
        position, save_every = self.position, self._config.checkpoint.every_updates
        batches = self.state.order.open(position.epoch, position.update_in_epoch)
        for result in train_epoch(self.assembly, batches, update=position.update):
            position.update += 1
            position.update_in_epoch += 1
            if self._update_buffer.add(result, update=position.update, epoch=position.epoch + 1):
                self._report_updates()
            if save_every and position.update % save_every == 0:
                self._save()
            if self._should_stop(interrupt):
                return False
        self._report_updates()
        return True

    def _should_stop(self, interrupt: Interrupt) -> bool:
        """Return whether to stop. Several processes stop after the same update: the first after which all know it."""
        if self._processes.size == 1:
            return interrupt.requested is not None
        self._processes.stop_requested = interrupt.requested is not None
        return self._processes.stop_agreed

    def _report_updates(self) -> None:
        """Report the buffered updates, and explain every skipped update."""
        entries = self._update_buffer.drain()
        if entries and self._reporters:
            rows = [entry.row for entry in entries]
            layers = self._layer_norms.read_if_due(rows[-1].grad_norm)
            self.report(UpdatesDone(rows=rows, memory_mib=self._memory_sampler.sample_if_due(), layers=layers))
        self._report_saves()
        for retry in self.assembly.oom_retry.drain_notices():
            self._note("out_of_memory", retry.message, retry.details, update=retry.update)
        for notice in self.assembly.compiled_step.drain_notices() if self.assembly.compiled_step else ():
            self._note(*notice)
        if self._active_processes is not self._processes:
            return  # the other processes may be needed to explain a skipped update
        for entry in entries:
            self.assembly.guard.record_update(skipped=entry.row.skipped)
            if entry.row.skipped:
                skip = share_explanation(explain_skip(self.assembly, entry), self._active_processes)
                self._note(skip.kind, skip.message, skip.details, update=entry.row.update)
                self.assembly.guard.raise_if_too_many(entry.row.update, skip.culprit)

    def _evaluate_if_due(self) -> MonitorDecision:
        """Evaluate every split if due; decide whether the model is the best yet, and whether to stop."""
        is_last_epoch = self.position.epoch == self._config.epochs
        if not self._held_out or not (is_last_epoch or self.position.epoch % self._config.evaluate_every_epochs == 0):
            return MonitorDecision(best=False, stop=False)
        self.assembly.parallel.sync_buffers()
        results = {split: self.evaluate(batches) for split, batches in self._held_out.items()}
        for split, result in results.items():
            self.position.metrics |= {f"{split}/{name}": value for name, value in result.metrics.items()}
        self.position.measured_at = self.position.update
        decision = self.state.monitor.observe(self.position.metrics, self.position.update)
        self.assembly.schedule.after_evaluation(self.position.metrics[self._config.monitor.metric])
        for split, result in results.items():
            self.report_evaluation(split, result, best=decision.best)
        if decision.stop:
            self._note("early_stop", self.state.monitor.stop_message())
        return decision

    def evaluate(self, batches: Iterable[Any]) -> Evaluation:
        """Evaluate the weights that would be shipped: the averaged ones if the run averages weights."""
        average = self.assembly.average
        with average.swapped_in() if average else nullcontext():
            return self._evaluate_current(batches)

    def _evaluate_current(self, batches: Iterable[Any]) -> Evaluation:
        assembly = self.assembly
        return evaluate(
            assembly.forward,
            assembly.oom_retry.split_batches(batches),
            assembly.objective,
            metrics=self._metrics,
            device=assembly.device,
            context=assembly.autocast(),
            processes=self._evaluation_processes,
        )

    def report_evaluation(self, split: str, result: Evaluation, *, best: bool) -> None:
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
        """Save the full state, unless it was already saved at this position."""
        self._report_updates()
        position = self.position
        current = (position.epoch, position.update)
        if not self._saves_checkpoints or self._saved_position == current:
            return
        self.assembly.parallel.sync_buffers()
        metrics = position.metrics if position.measured_at == position.update else {}  # only metrics of these weights
        state, sharded = extract_shards(self.state.state_dict())
        description = {"update": position.update, "epoch": position.epoch, "metrics": metrics}
        save = partial(self._saver.save, state, **description) if self._saver else None
        save_on_all_ranks(save, sharded, self._processes)
        self._saved_position = current
        self._report_saves()

    def _report_saves(self) -> None:
        """Report the checkpoints that were completed since the last call."""
        for event in self._saver.drain_events() if self._saver else ():
            self.report(event)

    def _finish_saving(self) -> None:
        """Wait until every checkpoint is complete on disk, and report them."""
        try:
            if self._saver:
                self._saver.close()
        finally:
            self._report_saves()

    def resume(self, identity: Identity | None = None, *, allow_change: bool = False) -> None:
        """Continue from the newest complete checkpoint, if there is one.

        Args:
            identity: identity of this run, from `identify`; saved with every checkpoint from now on.
            allow_change: also continue if the checkpoint belongs to another run.

        Raises:
            InvalidConfig: ``epochs`` is less than the epochs done.
            CheckpointError: the checkpoint belongs to another run.
        """
        self.state.identity = identity or {}
        if not self._saves_checkpoints:
            return
        check_folder_shared(self._checkpoints, self.assembly.parallel)
        loaded = self._saver.load_latest() if self._saver else None
        self._checkpoint_problems = self._saver.problems() if self._saver else []
        state = load_on_all_ranks(loaded, self.assembly.parallel)
        if state is not None:
            self._resume_notices = self.state.resume(state, self._config.epochs, allow_change=allow_change)
            self._saved_position = (self.position.epoch, self.position.update)

    def final_weights(self) -> dict[str, Tensor]:
        """Return the weights to ship: those of the best checkpoint if requested and present, else the current ones."""
        best_state = load_on_all_ranks(self._best_state(), self.assembly.parallel)
        if best_state is not None:
            self.state.load_weights(best_state)
        return self.state.shipped_weights()

    def _best_state(self) -> tuple[Checkpoint, Mapping[str, Any]] | None:
        """Load the best checkpoint if it should be shipped and is not the current model; else return None."""
        if not self._checkpoints or self._config.checkpoint.final != "best":
            return None
        best_state: tuple[Checkpoint, Mapping[str, Any]] | None = None
        shipped_update, some_damaged = self.position.update, False
        while best_state is None and (best := self._checkpoints.best()) and best.update != self.position.update:
            try:
                loaded = self._checkpoints.load(best)
            except CheckpointError as damage:  # best() skips it from now on and returns the next best one
                self._note("checkpoint_passed_over", str(damage))
                some_damaged = True
            else:
                best_state = best, {"model": loaded["model"], "average": loaded["average"]}
                shipped_update = best.update
        best_update = self.state.monitor.best_update
        if best_update not in (None, shipped_update) and not some_damaged:
            path = self._checkpoints.path_of(best_update)
            self._note("best_missing", f"The best checkpoint {path} is missing; update {shipped_update} is shipped.")
        return best_state

    def test(self, batches: Iterable[Any]) -> dict[str, float]:
        """Evaluate the current model once, on the test set."""
        result = self._evaluate_current(batches)
        self.report_evaluation("test", result, best=False)
        return {f"test/{name}": value for name, value in result.metrics.items()}

    def best(self) -> Checkpoint | None:
        """Return the complete checkpoint with the best monitored value; None if there is none."""
        return self._checkpoints.best() if self._checkpoints else None

    def end(self, reason: str) -> None:
        """Report that the run has ended; call this after everything has been written to disk."""
        self.report(
            RunEnded(
                update=self.position.update,
                reason=reason,
                seconds=perf_counter() - self._started,
                peak_memory_mib=peak_memory_mib(self.assembly.device),
            )
        )

    def report(self, event: RunEvent) -> None:
        """Send one event to every reporter."""
        for reporter in self._reporters:
            reporter.report(event)

    def _note(self, kind: str, message: str, details: Mapping[str, Any] | None = None, update: int = -1) -> None:
        update = self.position.update if update < 0 else update
        self.report(Notice(update=update, kind=kind, message=message, details=details or {}))

    def _result(self, reason: str, start: int) -> FitResult:
        best = self._processes.broadcast_object(self.best())
        return FitResult(
            reason=reason,
            update=self.position.update,
            epochs=self.position.epoch,
            metrics=dict(self.position.metrics),
            best_value=self.state.monitor.best_value,
            best_update=self.state.monitor.best_update,
            best_checkpoint=best.path if best else None,
            skipped=self.assembly.guard.skipped,
            seconds=perf_counter() - self._started,
            resumed_from=start,
        )
