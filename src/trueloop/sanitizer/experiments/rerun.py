"""Runs a program again up to its first backward pass, and forks there: each child goes on under one change.

The child is the program itself, with its own loop, loss, data and random numbers, so an experiment needs to know
nothing about the program. It ends after a number of updates. Where PyTorch uses a GPU, which cannot be shared with a
forked child, the rerun itself becomes the experiment.
"""

from __future__ import annotations

import gc
import json
import os
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trueloop.sanitizer.experiments.contained_files import ContainedFiles
from trueloop.sanitizer.import_hook import on_import
from trueloop.sanitizer.run_program import ProgramCommand, ProgramResult, run_program

if TYPE_CHECKING:
    from trueloop.sanitizer.experiments.changes import Change
    from trueloop.sanitizer.experiments.training_site import TrainingSite
    from trueloop.tracing.attach import Attachment
    from trueloop.tracing.events import Event
    from trueloop.tracing.trackers.learning_progress import LearningProgress

MAX_BACKWARDS: Final = 16  # for each update, after which an experiment ends although its updates are not complete
SILENCED_SERVICES: Final = {
    "WANDB_MODE": "disabled", "WANDB_SILENT": "true", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1", "MLFLOW_TRACKING_URI": "file:///tmp/mlruns", "SWANLAB_MODE": "disabled",
    "HF_HUB_DISABLE_TELEMETRY": "1", "TQDM_DISABLE": "1",
}  # fmt: skip
"""Environment variables that keep tracking services from recording the experiments."""


def rerun(program: ProgramCommand, channel: socket.socket, *, seed: int, folder: Path) -> None:
    """Run the program in this process, which has just been forked for it; never returns."""
    code = 1
    try:
        folder.mkdir(parents=True)
        messages = _Messages(channel)
        messages.send({"pid": os.getpid()})
        files = ContainedFiles(folder)
        os.environ.update(SILENCED_SERVICES, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        files.install()
        random.seed(seed)
        experimenter = _Experimenter(messages, files, seed)
        on_import("torch", experimenter.attach)
        experimenter.end(run_program(program))
        code = 0
    finally:
        os._exit(code)


class _Messages:
    """Lines of JSON to and from the parent."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._lines = channel, channel.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # the parent has ended
            os._exit(1)

    def receive(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            os._exit(0)
        return json.loads(line)


class _Experimenter:
    """Follows the program to its first backward pass, forks, and measures the losses of a child."""

    def __init__(self, messages: _Messages, files: ContainedFiles, seed: int) -> None:
        self._messages, self._files, self._seed = messages, files, seed
        self._attachment: Attachment | None = None
        self._site: TrainingSite | None = None
        self._locations: dict[Any, Any] = {}
        self._progress: LearningProgress | None = None
        self._updates, self._limit = 0, 0
        self._roots: list[tuple[int, float]] = []
        self._problem = ""

    def attach(self) -> None:
        """Prepare the rerun, once PyTorch is imported."""
        from trueloop.sanitizer.experiments.training_site import TrainingSite
        from trueloop.tracing.attach import Attachment
        from trueloop.tracing.hooks import loss_hooks

        self._site = TrainingSite(self._seed, self._files)
        self._site.install()
        self._attachment = Attachment(loss_hooks)
        self._attachment.attach(self._follow)

    def end(self, ended: ProgramResult) -> None:
        """Report that the program has ended, in the rerun or in an experiment."""
        reason = "" if ended.error is None else f"{type(ended.error).__name__}: {ended.error}"
        if self._progress is not None:
            self._send_result(reason or "the script ended")
        attachment = self._attachment
        problems = attachment.stream.problems if attachment is not None else []
        self._messages.send({"failed": reason or "; ".join(problems) or "it made no backward pass"})

    def _follow(self, event: Event) -> None:
        """Collect what is known before the first backward pass has ended; then fork."""
        from trueloop.tracing.events import BackwardEnded, LossGraphRead, ModelCalled, OptimizerCreated

        site = self._site
        if site is None or self._progress is not None:
            return
        if isinstance(event, ModelCalled) and event.grad_mode:
            known = {id(model.module) for model in site.models}
            if id(event.live_module) not in known:
                from trueloop.sanitizer.experiments.training_site import KnownModel

                site.models.append(KnownModel(event.live_module, event.location))
        elif isinstance(event, OptimizerCreated):
            self._locations[event.optimizer] = event.location
        elif isinstance(event, LossGraphRead):
            site.losses, site.loss_location = list(event.live_losses), event.location
            site.operations = [each.operation for each in event.live_nodes]
        elif isinstance(event, BackwardEnded):
            site.loss_location = site.loss_location or event.location
            try:
                self._serve(site)
            except Exception as error:  # noqa: BLE001 - reported to the parent
                self._messages.send({"failed": f"{type(error).__name__}: {error}"})
                os._exit(1)

    def _serve(self, site: TrainingSite) -> None:
        """Announce the possible changes, and fork for each order; returns in the process of an experiment."""
        import torch

        from trueloop.sanitizer.experiments.changes import possible_changes, probes
        from trueloop.sanitizer.experiments.training_site import KnownOptimizer

        attachment = self._attachment
        if attachment is None:
            return
        registry = attachment.stream.registry
        for optimizer, _state in attachment.program.optimizers.items():  # noqa: PERF102 - it has no keys()
            site.optimizers.append(KnownOptimizer(optimizer, self._locations.get(registry.ref(optimizer))))
        changes = possible_changes(site)
        forks = not torch.cuda.is_initialized()
        self._messages.send({"ready": _facts(site, changes), "forks": forks})
        gc.collect()
        gc.freeze()  # otherwise the garbage collector of every child would copy all memory pages
        by_key = {change.key: change for change in (*changes, *probes(site))}
        while True:
            order = self._messages.receive()
            child = os.fork() if forks else 0
            if child == 0:
                self._begin(site, [by_key[key] for key in order["changes"]], order)
                return
            _, status = os.waitpid(child, 0)
            self._messages.send({"done": os.waitstatus_to_exitcode(status)})

    def _begin(self, site: TrainingSite, changes: list[Change], order: dict[str, Any]) -> None:
        """Go on as an experiment."""
        from trueloop.tracing.trackers.learning_progress import LearningProgress

        attachment = self._attachment
        if attachment is None:
            return
        self._limit, self._progress = order["updates"], LearningProgress()
        self._files.add_layer(order["name"])
        attachment.detach(self._follow)
        attachment.attach(self._measure)
        site.clear_gradients()
        for change in changes:
            change.apply()

    def _measure(self, event: Event) -> None:
        """Record the losses; end after the last update."""
        from trueloop.tracing.events import BackwardEnded, BackwardStarted, LossGraphRead

        progress, site = self._progress, self._site
        if progress is None or site is None:
            return
        if isinstance(event, BackwardStarted):
            if event.update >= self._limit or event.backward_count >= MAX_BACKWARDS * self._limit:
                self._send_result("")
            self._updates = event.update
        elif isinstance(event, LossGraphRead):
            progress.on_loss_graph_read(event)
        elif isinstance(event, BackwardEnded):
            if event.root_value is not None:
                self._roots.append((event.update, event.root_value))
            if site.gradient_factor != 1 and not site.optimizers:
                for parameter in event.live_parameters.values():
                    if parameter.grad is not None:
                        parameter.grad.mul_(site.gradient_factor)

    def _send_result(self, ended: str) -> None:
        progress = self._progress
        courses = progress.courses() if progress is not None else []
        losses = [
            {
                "kind": each.kind,
                "location": _position(each.location),
                "updates": list(each.updates),
                "values": list(each.values),
                "constant": each.constant,
            }
            for each in courses
        ]
        if not losses and self._roots:
            updates, values = zip(*self._roots, strict=True)
            losses = [{"kind": "", "location": "", "updates": updates, "values": values, "constant": None}]
        self._messages.send({"result": losses, "ended": ended})
        os._exit(0)


def _facts(site: TrainingSite, changes: list[Change]) -> dict[str, Any]:
    from trueloop.sanitizer.experiments.changes import can_repeat_batch, can_shuffle_labels

    return {
        "changes": [
            {
                "key": each.key,
                "title": each.title,
                "advice": each.advice,
                "location": each.location,
                "after": each.after,
            }
            for each in changes
        ],
        "optimizers": len(site.optimizers),
        "one_batch": can_repeat_batch(site),
        "random_labels": can_shuffle_labels(site),
    }


def _position(location: Any) -> str:
    if location is None:
        return ""
    found = location.source_location
    return f"{found.path}:{found.line}"
