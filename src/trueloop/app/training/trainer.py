"""`Trainer`: model, loss and data in, a finished run out. Here the engines meet; each part of the work is theirs."""

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
from trueloop.app.training.tracking import validate_store, reporters_with_sync
from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import Finding
from trueloop.core.protocols import BatchSource, Notice, Reporter
from trueloop.reporting.json_report import finding_to_json
from trueloop.runs import Journal, read_journal, save_curves, write_report
from trueloop.runs.tracking import parse_target
from trueloop.sanitizer.finding_bus import subscribed
from trueloop.training.assemble import UserComponents, MakeOptimizer, MakeScheduler, assemble
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.checkpoint.mirror import Mirror
from trueloop.training.checkpoint.run_identity import Identity, identify
from trueloop.training.checkpoint.sharded import gather_full_tensors
from trueloop.training.checkpoint.weights import save_weights
from trueloop.training.code_version import fingerprint_sources
from trueloop.training.config import ScheduleConfig, TrainConfig
from trueloop.training.distributed.processes import SINGLE_PROCESS, Processes, join_processes, local_device, require_single_process
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
    """Trains any ``nn.Module``, correct by construction.

    The update after K micro-batches is that of the one big batch; nothing that is not finite is stepped; with a
    ``run_dir`` the whole state is saved, and the same call continues a run that was stopped.

    Example:
        ``Trainer(model=net, objective=nn.CrossEntropyLoss(), run_dir="runs/mine").fit(train_set, val=val_set)``
    """

    model: nn.Module
    """Trained in place; ends with the weights that `TrainConfig.checkpoint.final` asks for."""
    objective: Any
    """A ``torch.nn`` loss over ``(inputs, target)`` batches, or a function ``(model, batch)`` that returns a mean, a
    ``(sum, count)`` pair, a `Loss` or a list of `Loss`."""
    config: TrainConfig = field(default_factory=TrainConfig)
    """Every setting of the loop."""
    run_dir: Path | str | Callable[[Identity], Path] | None = None
    """Where everything is written; None = nothing is. A function chooses it once the run's identity is known."""
    metrics: MetricFactories = field(default_factory=dict[str, Any])
    """Name -> factory, measured on val and test beside the loss."""
    optimizer: MakeOptimizer | None = None
    """Trainable parameters -> optimizer; None = `TrainConfig.optim`."""
    scheduler: MakeScheduler | None = None
    """Optimizer -> torch scheduler, advanced once per update; None = `TrainConfig.schedule`."""
    counts: Counts | None = None
    """Batch -> count of each term; only needed by several losses that count different things."""
    reporters: Sequence[Reporter] = ()
    """Told what happens, beside the journal."""
    name: str = "run"
    """What the run is called in its report and in lists of runs."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON-ready facts to journal with the run."""
    fresh: bool = False
    """Start over, removing what an earlier run left in `run_dir` and in the mirror."""
    identity: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else makes the run what it is, JSON-ready: ``{"options": vars(args)}``. Saved with every checkpoint, like
    the settings, the model, the data and your code; a run folder of another identity is refused."""
    store: str | None = None
    """Where a process of its own copies the journal to, so that training never waits: "sqlite" (MLflow's file beside
    the run), "postgresql+psycopg://user@host/runs", "http://host:5000" (its server), "tensorboard:DIR", "wandb:DIR"."""
    allow_change: bool = False
    """Continue the run in `run_dir` although its identity has changed; what changed is noted."""

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
        """Train, evaluate, save; continue where the run folder says so.

        Args:
            train: a map-style dataset or `Shards`, cut into windows of ``config.effective_batch``; or ready batches
                (a DataLoader, a list), of which ``accumulate`` make a window.
            val: evaluated after epochs; a dataset or an iterable of batches.
            test: evaluated once, at the end, with the final weights.
            collate: samples -> batch, for datasets.
            sampler: order of a training dataset: "random", "sequential", or "weighted" by ``labels``.
            labels: one class index per training sample, for the weighted sampler.
            accumulate: batches per window, where ``train`` is an iterable of batches.

        Raises:
            InvalidConfig, InvalidData, InvalidModel: what cannot work, named with its value, before training.
            NotFinite: too many updates in a row were not finite.
            OutOfMemory: an update does not fit, however it is cut up.
            RunFolderError: it cannot be written, or another process is training in it.
            CheckpointError: what cannot be written or trusted.
        """
        validate_store(self.store, self.run_dir)
        device = self._prepare()
        processes = self._join_processes(device)
        feed = DataFeed(self.config, collate=collate, pin_memory=device.type == "cuda", processes=processes)
        source = feed.training_source(train, sampler=sampler, labels=labels, accumulate=accumulate)
        shared = evaluation_processes(self.metrics, processes)
        held_out = {"val": feed.evaluation_batches("val", val, shared)} if val is not None else {}
        tested = feed.evaluation_batches("test", test, shared) if test is not None else None
        parts = self._assemble(device, source.updates_per_epoch, processes=processes)
        identity = self._make_identity(parts, feed, made_by=(train, val, collate, *feed.shard_readers))
        folder = self._make_folder(identity) if processes.is_first else None
        held = folder.lock(fresh=self.fresh) if folder else nullcontext()
        with held, self._reporting(folder, processes) as (reporters, journal):
            fit = Fit(
                parts, self.config, source, held_out=held_out, metrics=self.metrics,
                checkpoints=self._make_checkpoints(folder), reporters=reporters,
            )  # fmt: skip
            fit.resume(identity, allow_change=self.allow_change)
            if folder:
                folder.write_config(asdict(self.config))
            facts = self._make_facts(parts, feed, identity, folder)
            with subscribed(lambda finding: _journal_finding(finding, fit, journal)):
                result = fit.run(name=self.name, facts=facts)
                result = self._finish(fit, result, folder, tested)
            if folder:
                _write_curves_and_report(folder)
            return result

    def smoke(self, train: Any, *, collate: Callable[[list[Any]], Any] | None = None, accumulate: int = 1) -> SmokeResult:
        """Train on five batches twice and see whether the loss falls; nothing is written, the weights change.

        Args:
            train: as for `fit`.
            collate: as for `fit`.
            accumulate: as for `fit`.

        Raises:
            InvalidModel: the loss did not fall.
        """
        device = self._prepare()
        processes = self._join_processes(device)
        source = DataFeed(self.config, collate=collate, pin_memory=False, processes=processes).training_source(
            train, accumulate=accumulate
        )
        steady = replace(self.config, schedule=ScheduleConfig(name="constant"))
        parts = self._assemble(device, source.updates_per_epoch, config=steady, processes=processes)
        return run_smoke_test(parts, source)

    def profile(self, train: Any, *, updates: int = 20, trace: Path | None = None, **data: Any) -> Profile:
        """Train a few updates under torch's profiler; nothing is written but a trace, and the weights change.

        Args:
            train: as for `fit`, and so are ``collate``, ``sampler``, ``labels`` and ``accumulate``.
            updates: that are looked at.
            trace: where to write a trace for Chrome or Perfetto.
            data: those of `fit` named above.
        """
        parts, source = self._prepare_measurement(train, **data)
        return profile_updates(parts, source, updates=updates, trace=trace)

    def pace(self, train: Any, *, seconds: float = 2.0, **data: Any) -> Throughput:
        """Train for a few seconds and say how fast it went; nothing is written, and the weights change.

        Args:
            train: as for `fit`, and so are ``collate``, ``sampler``, ``labels`` and ``accumulate``.
            seconds: to measure for, after a few updates that warm up.
            data: those of `fit` named above.
        """
        parts, source = self._prepare_measurement(train, **data)
        return measure_throughput(parts, source, seconds=seconds)

    def _prepare_measurement(self, train: Any, *, collate: Any = None, **order: Any) -> tuple[Assembly, BatchSource]:
        require_single_process("What is measured here")
        device = self._prepare()
        feed = DataFeed(self.config, collate=collate, pin_memory=device.type == "cuda")
        source = feed.training_source(train, **order)
        as_given = replace(self.config, out_of_memory="stop")  # or another micro-batch would be measured than asked for
        return self._assemble(device, source.updates_per_epoch, config=as_given), source

    def evaluate(self, data: Any, *, collate: Callable[[list[Any]], Any] | None = None) -> Evaluation:
        """Measure the model as it is now, on the run's device and in its precision; see `trueloop.evaluate`.

        Args:
            data: a dataset or an iterable of batches.
            collate: samples -> batch, for a dataset.
        """
        batches = evaluation_batches(data, batch=self.config.micro_batch or self.config.effective_batch, collate=collate)
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
        validate(self.config)
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        prepare_generators(self.config)
        device = resolve_device(local_device(self.config.device))
        refuse_cpu_fallback(self.config.device, device, os.environ)
        return device

    def _join_processes(self, device: torch.device) -> Processes:
        waiting = self.config.parallel
        return join_processes(device, timeout_s=waiting.timeout_s, keepalive_timeout_s=waiting.keepalive_timeout_s)

    def _assemble(
        self,
        device: torch.device,
        updates_per_epoch: int | None,
        config: TrainConfig | None = None,
        processes: Processes = SINGLE_PROCESS,
    ) -> Assembly:
        given = UserComponents(optimizer=self.optimizer, scheduler=self.scheduler, counts=self.counts)
        parts = assemble(
            self.model,
            self.objective,
            config or self.config,
            device=device,
            updates_per_epoch=updates_per_epoch,
            components=given,
            processes=processes,
        )
        if self.config.seeding:
            seed_process(self.config.seed, processes.rank)  # after the model, which is the same everywhere
        return parts

    def _make_identity(self, parts: Assembly, feed: DataFeed, *, made_by: Sequence[object]) -> Identity:
        users = (self.model, self.objective, self.optimizer, self.scheduler, self.counts, *made_by)
        given = {**self.identity, "data": feed.identity()}
        given["code"] = {**given.get("code", {}), **fingerprint_sources(users)}
        own_optimizer = self.optimizer is not None
        return identify(self.config, parts, objective=self.objective, extra=given, own_optimizer=own_optimizer)

    def _make_facts(self, parts: Assembly, feed: DataFeed, identity: Identity, folder: RunFolder | None) -> dict[str, Any]:
        code = {key.removeprefix("code."): word for key, word in identity.items() if key.startswith("code.")}
        number: dict[str, Any] = {"run_id": folder.run_id()} if folder else {}
        if parts.parallel.processes.is_first:
            number["doctor"] = inspect_machine(parts, self.config, folder.path if folder else None)
        return {**number, **describe_run(parts, asdict(self.config), code), **feed.facts(), **self.facts}

    def _make_folder(self, identity: Identity) -> RunFolder | None:
        if self.run_dir is None:
            return None
        return RunFolder(self.run_dir(identity) if callable(self.run_dir) else self.run_dir)

    @contextmanager
    def _reporting(
        self, folder: RunFolder | None, processes: Processes
    ) -> Generator[tuple[list[Reporter], Journal | None]]:
        """Open journal and store, and close every reporter at the end; of several processes only the first is heard."""
        target = parse_target(self.store, folder.path.parent) if folder and self.store else None
        journal = Journal(folder.journal) if folder else None
        watchers = self.reporters if processes.is_first else ()
        with reporters_with_sync(journal, target, observers=watchers) as reporters:
            try:
                yield reporters, journal
            finally:
                for reporter in reporters:
                    reporter.close()

    def _make_checkpoints(self, folder: RunFolder | None) -> CheckpointFolder | None:
        kept, monitor = self.config.checkpoint, self.config.monitor
        if self.run_dir is None and kept.mirror:
            raise InvalidConfig(
                f"checkpoint.mirror is {kept.mirror!r}, but there is no run folder.",
                why="A checkpoint is whole on this machine before it is copied anywhere.",
                fix="Give a run_dir, or set checkpoint.mirror to none.",
            )
        if folder is None:
            return None
        if self.fresh and kept.mirror:
            Mirror(kept.mirror).clear()  # or the next start would find the run that was to be forgotten
        return CheckpointFolder(
            folder.checkpoints,
            keep_last=kept.keep_last,
            keep_best=kept.keep_best,
            metric=monitor.metric,
            mode=monitor.mode,
        )

    def _finish(self, fit: Fit, result: FitResult, folder: RunFolder | None, test: Iterable[Any] | None) -> FitResult:
        """Choose the final weights, test them, write what is left to look at."""
        if not result.unfinished:
            weights = fit.final_weights()
            self.model.load_state_dict(weights)
            if test is not None:
                result = replace(result, metrics={**result.metrics, **fit.test(test)})
            gathered = gather_full_tensors(weights, fit.parts.parallel.processes)
            if folder:
                save_weights(gathered, folder.weights)
        fit.end(result.reason)
        return replace(result, run_dir=fit.parts.parallel.processes.broadcast_object(folder.path if folder else None))


def _journal_finding(finding: Finding, fit: Fit, journal: Journal | None) -> None:
    """Note what the sanitizer has found, where this run is watched."""
    if journal is not None:
        message = f"{finding.code} {finding.title}: {finding.message}"
        details = finding_to_json(finding)
        journal.report(Notice(update=fit.position.update, kind="finding", message=message, details=details))


def _write_curves_and_report(folder: RunFolder) -> None:
    """Draw curves and report from the journal."""
    history = read_journal(folder.journal)
    save_curves(history, folder.curves)
    write_report(folder.path, history)
