"""Train any PyTorch module with `Trainer`, from a model, a loss and data."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trueloop.app.training.data_feed import DataFeed, Sampler, evaluation_batches
from trueloop.app.training.run_facts import describe_run
from trueloop.app.training.run_folder import RunFolder
from trueloop.app.training.startup_checks import inspect_machine, refuse_cpu_fallback
from trueloop.app.training.tracking import reporters_with_sync, validate_store
from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import Finding
from trueloop.core.protocols import BatchSource, Notice, Reporter
from trueloop.reporting.json_report import finding_to_json
from trueloop.runs import Journal, read_journal, save_curves, write_report
from trueloop.runs.tracking import parse_target
from trueloop.sanitizer.finding_bus import subscribed
from trueloop.training.assemble import MakeOptimizer, MakeScheduler, UserComponents, assemble
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.checkpoint.mirror import Mirror
from trueloop.training.checkpoint.run_identity import Identity, identify
from trueloop.training.checkpoint.sharded import gather_full_tensors
from trueloop.training.checkpoint.weights import save_weights
from trueloop.training.code_version import fingerprint_sources
from trueloop.training.config import ScheduleConfig, TrainConfig
from trueloop.training.distributed.processes import (
    SINGLE_PROCESS,
    Processes,
    join_processes,
    local_device,
    require_single_process,
)
from trueloop.training.evaluation.evaluate import Evaluation, MetricFactories, evaluate, evaluation_processes
from trueloop.training.fit import Fit
from trueloop.training.loop import Assembly
from trueloop.training.memory.device import resolve_device
from trueloop.training.precision.mixed_precision import autocast
from trueloop.training.profiling.pace import Throughput, measure_throughput
from trueloop.training.profiling.profile import Profile, profile_updates
from trueloop.training.profiling.smoke_test import SmokeResult, run_smoke_test
from trueloop.training.result import FitResult
from trueloop.training.seeding import prepare_generators, seed_process
from trueloop.training.validate import validate
from trueloop.training.window import Counts


@dataclass(kw_only=True)
class Trainer:
    """Trains any ``nn.Module``.

    Accumulating K micro-batches gives the same update as one big batch. Non-finite gradients are never applied. With a
    ``run_dir``, the complete state is saved, and the same call resumes a run that was stopped.

    Example:
        ``Trainer(model=net, objective=nn.CrossEntropyLoss(), run_dir="runs/mine").fit(train_set, val=val_set)``
    """

    model: nn.Module
    """The model, trained in place; it ends with the weights that `TrainConfig.checkpoint.final` selects."""
    objective: Any
    """A ``torch.nn`` loss over ``(inputs, target)`` batches, or a function ``(model, batch)`` that returns a mean, a
    ``(sum, count)`` pair, a `Loss` or a list of `Loss`."""
    config: TrainConfig = field(default_factory=TrainConfig)
    """All settings of the training loop."""
    run_dir: Path | str | Callable[[Identity], Path] | None = None
    """The run folder, or a function from the run's identity to the run folder; None = write nothing."""
    metrics: MetricFactories = field(default_factory=dict[str, Any])
    """Factories of metrics by name; the metrics are evaluated on val and test in addition to the loss."""
    optimizer: MakeOptimizer | None = None
    """Function from the trainable parameters to an optimizer; None = use `TrainConfig.optim`."""
    scheduler: MakeScheduler | None = None
    """Function from the optimizer to a PyTorch scheduler, stepped once per update; None = `TrainConfig.schedule`."""
    counts: Counts | None = None
    """Function from a batch to the number of items (samples, tokens) that each loss term averages over; only needed if
    the terms average over different items."""
    reporters: Sequence[Reporter] = ()
    """Receivers of all run events, in addition to the journal."""
    name: str = "run"
    """Name of the run in its report and in lists of runs."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further JSON-ready facts to record in the journal."""
    fresh: bool = False
    """True = start over: remove an earlier run from `run_dir` and from the mirror."""
    identity: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further JSON-ready parts of the run's identity: ``{"options": vars(args)}``. The identity, which covers settings,
    model, data and code, is saved with every checkpoint; a run folder with another identity is refused."""
    store: str | None = None
    """Experiment tracker that a separate process syncs the journal to: "sqlite" (an MLflow file next to the run),
    "postgresql+psycopg://user@host/runs", "http://host:5000" (an MLflow server), "tensorboard:DIR", "wandb:DIR"."""
    allow_change: bool = False
    """True = resume the run in `run_dir` even if its identity has changed; the journal records the changes."""

    def fit(
        self,
        train: Any,
        *,
        val: Any = None,
        test: Any = None,
        collate: Callable[[list[Any]], Any] | None = None,
        sampler: Sampler = "random",
        labels: Any = None,
        accumulate: int = 1,
    ) -> FitResult:
        """Train, evaluate and save; resume the run in the run folder if there is one.

        Args:
            train: a map-style dataset or `Shards`, split into windows (the samples of one update) of
                ``config.effective_batch`` samples; or ready batches (a DataLoader, a list), ``accumulate`` per window.
            val: a dataset or an iterable of batches, evaluated after epochs.
            test: a dataset or an iterable of batches, evaluated once, at the end, with the final weights.
            collate: function from a list of samples to a batch, for datasets.
            sampler: order of a training dataset: "random", "sequential", or "weighted" by ``labels``.
            labels: one class index per training sample, for the weighted sampler.
            accumulate: number of batches per window, if ``train`` is an iterable of batches.

        Raises:
            InvalidConfig, InvalidData, InvalidModel: an invalid argument or setting, before training starts.
            NotFinite: too many consecutive updates had a NaN or infinite loss or gradient.
            OutOfMemory: an update does not fit into device memory, even split into the smallest micro-batches.
            RunFolderError: the run folder cannot be written, or another process is training in it.
            CheckpointError: a checkpoint cannot be written, read or trusted.
        """
        validate_store(self.store, self.run_dir)
        device = self._prepare()
        processes = self._join_processes(device)
        feed = DataFeed(self.config, collate=collate, pin_memory=device.type == "cuda", processes=processes)
        source = feed.training_source(train, sampler=sampler, labels=labels, accumulate=accumulate)
        held_out_processes = evaluation_processes(self.metrics, processes)
        val_batches = feed.evaluation_batches("val", val, held_out_processes) if val is not None else None
        test_batches = feed.evaluation_batches("test", test, held_out_processes) if test is not None else None

        assembly = self._assemble(device, source.updates_per_epoch, processes=processes)
        identity = self._make_identity(assembly, feed, code_from=(train, val, collate, *feed.shard_readers))
        with self._open_session(identity, processes) as session:
            fit = Fit(
                assembly,
                self.config,
                source,
                held_out={} if val_batches is None else {"val": val_batches},
                metrics=self.metrics,
                checkpoints=self._make_checkpoints(session.folder),
                reporters=session.reporters,
            )
            fit.resume(identity, allow_change=self.allow_change)
            if session.folder:
                session.folder.write_config(asdict(self.config))
            facts = self._make_facts(assembly, feed, identity, session.folder)
            with subscribed(lambda finding: session.record_finding(finding, fit.position.update)):
                result = self._finish(fit, fit.run(name=self.name, facts=facts), session.folder, test_batches)
            if session.folder:
                _write_curves_and_report(session.folder)
            return result

    def smoke(
        self, train: Any, *, collate: Callable[[list[Any]], Any] | None = None, accumulate: int = 1
    ) -> SmokeResult:
        """Train for two passes over the same five windows, and check that the mean loss of the second is lower.

        The smoke test writes nothing, but changes the weights.

        Args:
            train: as for `fit`.
            collate: as for `fit`.
            accumulate: as for `fit`.

        Raises:
            InvalidModel: the loss did not fall.
        """
        device = self._prepare()
        processes = self._join_processes(device)
        feed = DataFeed(self.config, collate=collate, pin_memory=False, processes=processes)
        source = feed.training_source(train, accumulate=accumulate)
        constant_rate = replace(self.config, schedule=ScheduleConfig(name="constant"))
        assembly = self._assemble(device, source.updates_per_epoch, config=constant_rate, processes=processes)
        return run_smoke_test(assembly, source)

    def profile(self, train: Any, *, updates: int = 20, trace: Path | None = None, **data: Any) -> Profile:
        """Profile a few updates with the PyTorch profiler; writes only the trace, but changes the weights.

        Args:
            train: as for `fit`.
            updates: number of updates to profile.
            trace: file for a trace that Chrome and Perfetto can open; None = no trace.
            data: ``collate``, ``sampler``, ``labels`` and ``accumulate``, as for `fit`.
        """
        assembly, source = self._prepare_measurement(train, **data)
        return profile_updates(assembly, source, updates=updates, trace=trace)

    def measure_throughput(self, train: Any, *, seconds: float = 2.0, **data: Any) -> Throughput:
        """Train for a few seconds and measure the throughput; writes nothing, but changes the weights.

        Args:
            train: as for `fit`.
            seconds: length of the measurement, after a few warm-up updates.
            data: ``collate``, ``sampler``, ``labels`` and ``accumulate``, as for `fit`.
        """
        assembly, source = self._prepare_measurement(train, **data)
        return measure_throughput(assembly, source, seconds=seconds)

    def evaluate(self, data: Any, *, collate: Callable[[list[Any]], Any] | None = None) -> Evaluation:
        """Evaluate the current model on the device and in the precision of the config; see `trueloop.evaluate`.

        Args:
            data: a dataset or an iterable of batches.
            collate: function from a list of samples to a batch, for a dataset.
        """
        batch_size = self.config.micro_batch or self.config.effective_batch
        batches = evaluation_batches(data, batch=batch_size, collate=collate)
        device = resolve_device(self.config.device)
        return evaluate(
            self.model.to(device),
            batches,
            self.objective,
            metrics=self.metrics,
            device=device,
            context=autocast(self.config.precision, device),
        )

    def _prepare(self) -> torch.device:
        """Validate the settings, apply those that concern the process, and return the device."""
        validate(self.config)
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        prepare_generators(self.config)
        device = resolve_device(local_device(self.config.device))
        refuse_cpu_fallback(self.config.device, device, os.environ)
        return device

    def _join_processes(self, device: torch.device) -> Processes:
        parallel = self.config.parallel
        return join_processes(device, timeout_s=parallel.timeout_s, keepalive_timeout_s=parallel.keepalive_timeout_s)

    def _assemble(
        self,
        device: torch.device,
        updates_per_epoch: int | None,
        config: TrainConfig | None = None,
        processes: Processes = SINGLE_PROCESS,
    ) -> Assembly:
        assembly = assemble(
            self.model,
            self.objective,
            config or self.config,
            device=device,
            updates_per_epoch=updates_per_epoch,
            components=UserComponents(optimizer=self.optimizer, scheduler=self.scheduler, counts=self.counts),
            processes=processes,
        )
        if self.config.seeding:
            # after assembling the model, whose weights must be equal on all ranks; later random numbers must differ
            seed_process(self.config.seed, processes.rank)
        return assembly

    def _prepare_measurement(self, train: Any, *, collate: Any = None, **order: Any) -> tuple[Assembly, BatchSource]:
        require_single_process("A measurement")
        device = self._prepare()
        feed = DataFeed(self.config, collate=collate, pin_memory=device.type == "cuda")
        source = feed.training_source(train, **order)
        # a retry after running out of memory would measure a smaller micro-batch size
        config = replace(self.config, out_of_memory="stop")
        return self._assemble(device, source.updates_per_epoch, config=config), source

    def _make_identity(self, assembly: Assembly, feed: DataFeed, *, code_from: Sequence[object]) -> Identity:
        user_objects = (self.model, self.objective, self.optimizer, self.scheduler, self.counts, *code_from)
        extra = {**self.identity, "data": feed.identity()}
        extra["code"] = {**extra.get("code", {}), **fingerprint_sources(user_objects)}
        has_user_optimizer = self.optimizer is not None
        return identify(
            self.config, assembly, objective=self.objective, extra=extra, has_user_optimizer=has_user_optimizer
        )

    def _make_facts(
        self, assembly: Assembly, feed: DataFeed, identity: Identity, folder: RunFolder | None
    ) -> dict[str, Any]:
        code = {key.removeprefix("code."): value for key, value in identity.items() if key.startswith("code.")}
        facts: dict[str, Any] = {"run_id": folder.run_id()} if folder else {}
        if assembly.parallel.processes.is_first:
            facts["doctor"] = inspect_machine(assembly, self.config, folder.path if folder else None)
        return {**facts, **describe_run(assembly, asdict(self.config), code), **feed.facts(), **self.facts}

    def _make_folder(self, identity: Identity) -> RunFolder | None:
        if self.run_dir is None:
            return None
        return RunFolder(self.run_dir(identity) if callable(self.run_dir) else self.run_dir)

    @contextmanager
    def _open_session(self, identity: Identity, processes: Processes) -> Generator[_RunSession]:
        """Lock the run folder, and open the journal and the store; only the first process does this."""
        folder = self._make_folder(identity) if processes.is_first else None
        with folder.lock(fresh=self.fresh) if folder else nullcontext():
            target = parse_target(self.store, folder.path.parent) if folder and self.store else None
            journal = Journal(folder.journal) if folder else None
            observers = self.reporters if processes.is_first else ()
            with reporters_with_sync(journal, target, observers=observers) as reporters:
                try:
                    yield _RunSession(folder=folder, journal=journal, reporters=reporters)
                finally:
                    for reporter in reporters:
                        reporter.close()

    def _make_checkpoints(self, folder: RunFolder | None) -> CheckpointFolder | None:
        checkpoint, monitor = self.config.checkpoint, self.config.monitor
        if self.run_dir is None and checkpoint.mirror:
            raise InvalidConfig(
                f"checkpoint.mirror is {checkpoint.mirror!r}, but there is no run folder.",
                why="A checkpoint is saved in the run folder before it is copied to the mirror.",
                fix="Pass run_dir=..., or set checkpoint.mirror to none.",
            )
        if folder is None:
            return None
        if self.fresh and checkpoint.mirror:
            Mirror(checkpoint.mirror).clear()  # otherwise the next start would resume the removed run
        return CheckpointFolder(
            folder.checkpoints,
            keep_last=checkpoint.keep_last,
            keep_best=checkpoint.keep_best,
            metric=monitor.metric,
            mode=monitor.mode,
        )

    def _finish(self, fit: Fit, result: FitResult, folder: RunFolder | None, test: Iterable[Any] | None) -> FitResult:
        """Load the final weights, evaluate them on the test set, save them, and end the run."""
        processes = fit.assembly.parallel.processes
        if not result.unfinished:
            weights = fit.final_weights()
            self.model.load_state_dict(weights)
            if test is not None:
                result = replace(result, metrics={**result.metrics, **fit.test(test)})
            full_weights = gather_full_tensors(weights, processes)
            if folder:
                save_weights(full_weights, folder.weights)
        fit.end(result.reason)
        return replace(result, run_dir=processes.broadcast_object(folder.path if folder else None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunSession:
    """The open outputs of one run in this process."""

    folder: RunFolder | None
    journal: Journal | None
    reporters: list[Reporter]

    def record_finding(self, finding: Finding, update: int) -> None:
        """Record a finding of the sanitizer in the journal."""
        if self.journal is not None:
            message = f"{finding.code} {finding.title}: {finding.message}"
            self.journal.report(
                Notice(update=update, kind="finding", message=message, details=finding_to_json(finding))
            )


def _write_curves_and_report(folder: RunFolder) -> None:
    """Write the curves and the report of a run from its journal."""
    history = read_journal(folder.journal)
    save_curves(history, folder.curves)
    write_report(folder.path, history)
