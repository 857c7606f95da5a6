"""Run a generated script that can be paused, inspected and edited before each training batch.

The script is unmodified PyTorch. ``DataLoader`` iteration is patched to pause it, optimizer step hooks count its
updates, and everything else is read from its variables.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
import torch.utils.data.dataloader as torch_loader
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, DistributedSampler, Subset

from trueloop.core.errors import InvalidConfig
from trueloop.lab.teaching.datasets import AddedPoint
from trueloop.lab.teaching.graph import LifetimeMarker
from trueloop.lab.teaching.memory import Meter
from trueloop.lab.teaching.program import Program

MAX_EDITS: Final = 500  # largest number of edits of one run
METADATA_KEY: Final = "trueloop.lab"  # key of the `LifetimeMarker` in the metadata of a graph node


class Stopped(BaseException):
    """Raised to end the script before a batch."""


@dataclass(slots=True)
class Curves:
    """Values per update, in order."""

    update: list[int] = field(default_factory=list[int])
    loss: list[float] = field(default_factory=list[float])
    """Mean loss of the batches of the update."""
    norm: list[float] = field(default_factory=list[float])
    """Gradient norm before clipping."""
    rate: list[float] = field(default_factory=list[float])
    evaluations: list[tuple[int, float, float]] = field(default_factory=list[tuple[int, float, float]])
    """(update, held-out loss, accuracy), after every epoch."""


class ScriptRun:
    """One run of a script.

    Args:
        program: a script of `teaching_loop`.
        before_batch: called before every training batch; it may block, read and edit the run, and raise `Stopped`.
        clip: the norm at which the script clips its gradients; 0 = no clipping.
        memory_share: share of the time that measuring memory may take; 1 = always measure.
        isolated: a context in which the sanitizer ignores operations.
    """

    def __init__(
        self,
        program: Program,
        before_batch: Callable[[ScriptRun], None],
        *,
        clip: float = 0.0,
        memory_share: float = 0.05,
        isolated: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.program, self.isolated = program, isolated
        self._before_batch, self._clip = before_batch, clip
        self._meter = Meter(memory_share)
        self.update = self.epoch = 0
        self.window = 0
        """Number of accumulation windows that have ended, each by an update or, if it made none, by its last batch."""
        self._batches = 0
        """Number of batches of this epoch since the latest window ended."""
        self._updates_before_epoch = 0
        self.curves = Curves()
        """Curves since the latest call of `take_curves`."""
        self.edits: list[str] = []
        """Descriptions of the edits that were made while the script ran."""
        self.first_not_finite: int | None = None
        """First window with a non-finite loss."""
        self.half_width = 1.0
        """Half the width of a square around all points; it is known from the first batch on."""
        self.sweep: list[float] = []
        """MiB allocated at each batch of the latest evaluation, above its first batch."""
        self._alive = set[int]()
        self._peak = self._start_bytes = self._sweep_start = 0
        self._loss_count = self._evaluation_count = 0
        """Number of the script's losses and evaluations that are in `curves` already."""
        self._norm = self._rate = 0.0
        self._script_norm: Any = None
        """The latest norm that the script has computed."""
        self._pending_changes: list[tuple[int, Callable[[], None]]] = []
        """Pending changes of the training points: the change of their number, and a function that applies it."""
        self._points_changed = False

    def run(self) -> None:
        """Run the script to its end.

        Raises:
            Stopped: `before_batch` has ended the script.
            Exception: raised by the script.
        """
        self._peak = self._start_bytes = self._meter.read()
        with self._hooks_installed():
            self.program.run()
        self._end_epoch()

    @property
    def model(self) -> nn.Module:
        """The script's network."""
        return self.program.variables["model"]

    @property
    def graphs(self) -> int:
        """Number of live graphs of the network."""
        return len(self._alive)

    def used_mib(self) -> float:
        """Return the memory in use, as MiB above the start of the run."""
        return (self._meter.read() - self._start_bytes) / 2**20

    def memory_mib(self) -> float:
        """Return the peak memory since the last call, as MiB above the start of the run."""
        peak, self._peak = max(self._peak, self._meter.read()), 0
        return (peak - self._start_bytes) / 2**20

    def take_curves(self) -> Curves:
        """Return the curves since the last call."""
        self._record_evaluations()
        curves, self.curves = self.curves, Curves()
        return curves

    def points(self, dataset_name: str) -> list[list[float]]:
        """Return [x, y, label] of each point of "train_set" or "held_out_set"."""
        inputs, labels = _tensors(self.program.variables[dataset_name])
        return [
            [round(x, 4), round(y, 4), label] for (x, y), label in zip(inputs.tolist(), labels.tolist(), strict=True)
        ]

    def edit(self, parameter: str, index: tuple[int, ...], value: float) -> None:
        """Set one weight.

        Raises:
            InvalidConfig: there is no such weight.
        """
        parameters = dict(self.model.named_parameters())
        tensor = parameters.get(parameter)
        if tensor is None:
            raise InvalidConfig(f"There is no parameter {parameter[:60]!r}.", fix=f"Known: {', '.join(parameters)}.")
        if len(index) != tensor.dim() or not all(0 <= i < size for i, size in zip(index, tensor.shape, strict=True)):
            raise InvalidConfig(f"{parameter} has no {list(index)}.", fix=f"Its shape is {list(tensor.shape)}.")
        self._record(f"{parameter}{list(index)} = {value!r}")
        with self.isolated(), torch.no_grad():
            tensor.data[index] = value

    def _record(self, edit: str) -> None:
        if len(self.edits) >= MAX_EDITS:
            raise InvalidConfig(f"This run has {MAX_EDITS} edits already.", fix="Start another run.")
        self.edits.append(f"update {self.update}: {edit}")

    def add(self, point: AddedPoint) -> None:
        """Add a training point, from the next epoch on.

        Raises:
            InvalidConfig: the script's sampler does not support it, or there are too many edits.
        """
        self._check_points_can_change()
        self._record(f"a point of class {point.label} at ({point.x!r}, {point.y!r})")

        def apply() -> None:
            inputs, labels = self.program.variables["train_set"].tensors
            self.program.variables["train_set"].tensors = (
                torch.cat([inputs, inputs.new_tensor([[point.x, point.y]])]),
                torch.cat([labels, labels.new_tensor([point.label])]),
            )

        self._pending_changes.append((1, apply))

    def remove(self, x: float, y: float) -> None:
        """Remove the nearest training point, from the next epoch on.

        Raises:
            InvalidConfig: the script's sampler does not support it, or there are too many edits.
        """
        self._check_points_can_change()
        self._record(f"the point nearest to ({x!r}, {y!r}) removed")

        def apply() -> None:
            inputs, labels = self.program.variables["train_set"].tensors
            kept_mask = torch.ones(len(inputs), dtype=torch.bool)
            kept_mask[(inputs - inputs.new_tensor([x, y])).norm(dim=1).argmin()] = len(inputs) <= 2
            self.program.variables["train_set"].tensors = (inputs[kept_mask], labels[kept_mask])

        self._pending_changes.append((-1, apply))

    def _check_points_can_change(self) -> None:
        if isinstance(self.program.variables["train_set"], Subset):
            raise InvalidConfig(
                "The points of this run cannot change: its training set is a part of another dataset.",
                fix="Begin a run that does not split its data at random.",
            )
        if isinstance(self.program.variables["train_loader"].sampler, DistributedSampler):
            raise InvalidConfig(
                "The points of this run cannot change: its sampler has a fixed length.",
                fix="Begin a run without DistributedSampler.",
            )

    # Hooks around the script -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _hooks_installed(self) -> Generator[None]:
        iterator = cast("Any", torch_loader)._BaseDataLoaderIter  # noqa: SLF001
        start, next_batch = DataLoader.__iter__, iterator.__next__

        def __iter__(loader: Any) -> Any:  # noqa: N807
            if loader is self.program.variables.get("train_loader"):
                self._begin_epoch()
            elif loader is self.program.variables.get("held_out_loader"):
                self.sweep, self._sweep_start = [], self._meter.read()
            return start(loader)

        def __next__(loader_iterator: Any) -> Any:  # noqa: N807
            if loader_iterator._dataset is self.program.variables.get("train_set"):  # noqa: SLF001
                self._stop_after_schedule()
                self._end_window_without_update()
                self._before_batch(self)
                batch = next_batch(loader_iterator)  # raises at the end of the epoch
                self._batches += 1
                return batch
            in_use = self._meter.read()
            self._peak = max(self._peak, in_use)
            self.sweep.append((in_use - self._sweep_start) / 2**20)
            return next_batch(loader_iterator)

        hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            register_module_forward_hook(self._after_forward),
        ]
        cast("Any", DataLoader).__iter__, iterator.__next__ = __iter__, __next__
        try:
            yield
        finally:
            cast("Any", DataLoader).__iter__, iterator.__next__ = start, next_batch
            for hook in hooks:
                hook.remove()

    def _begin_epoch(self) -> None:
        self._end_epoch()
        self.epoch += 1
        self._batches, self._updates_before_epoch = 0, self.update
        if self.epoch == 1:
            datasets = (self.program.variables[name] for name in ("train_set", "held_out_set"))
            max_coordinate = max(float(_tensors(dataset)[0].nan_to_num().abs().max()) for dataset in datasets)
            self.half_width = math.ceil(4.4 * max_coordinate) / 4
        added = sum(count_change for count_change, _ in self._pending_changes)
        if self._pending_changes and not self._leaves_batch_of_one(added):
            with self.isolated():
                for _, change in self._pending_changes:
                    change()
            self._pending_changes, self._points_changed = [], True

    def _stop_after_schedule(self) -> None:
        """Stop a run that exceeds the length of its schedule because points were added."""
        total = self.program.variables.get("total_updates", math.inf)
        schedule = self.program.variables.get("scheduler")
        # OneCycleLR raises past its end
        done = schedule.last_epoch if isinstance(schedule, OneCycleLR) else self.update
        if self._points_changed and done >= total:
            raise Stopped(f"The points have changed, and the schedule ends after {total} updates.")

    def _leaves_batch_of_one(self, added: int) -> bool:
        """Return True if a BatchNorm layer would raise, because with the added points a batch has only one point."""
        variables = self.program.variables
        last_batch = (len(variables["train_set"]) + added) % variables["batch_size"]
        return last_batch == 1 and any(isinstance(module, nn.BatchNorm1d) for module in self.model.modules())

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module is self.program.variables.get("model") and isinstance(output, Tensor) and output.grad_fn is not None:
            cast("Any", output.grad_fn).metadata[METADATA_KEY] = LifetimeMarker(self._alive)

    def _before_step(self, optimizer: Any, args: Any, options: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = math.hypot(*torch.stack(torch._foreach_norm(gradients)).tolist()) if gradients else 0.0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        script_norm: Any = self.program.variables.get("norm")  # by clip_grad_norm_: the norm before clipping
        if script_norm is not None and script_norm is not self._script_norm:
            clipped = min(float(script_norm), self._clip)
            norm = float(script_norm) if math.isclose(norm, clipped, rel_tol=1e-3, abs_tol=1e-9) else norm
        self._script_norm, self._norm, self._rate = script_norm, norm, float(optimizer.param_groups[0]["lr"])

    def _end_epoch(self) -> None:
        """Record the rest of an epoch without any update as a window too, and the evaluations."""
        self._end_window_without_update(1 if self.update == self._updates_before_epoch else None)
        self._record_evaluations()  # before the update count changes

    def _end_window_without_update(self, least: int | None = None) -> None:
        """Record the loss of a script that has read the batches of a window, or `least` batches, without an update."""
        if self._batches >= (least or self.program.variables.get("window", 1)):
            optimizer = self.program.variables.get("optimizer")
            if optimizer is not None:
                self._before_step(optimizer, (), {})
            self._record_window()

    def _after_step(self, optimizer: Any, args: Any, options: Any) -> None:
        self._record_window()
        self.update += 1

    def _record_window(self) -> None:
        self._batches = 0
        losses = self.program.variables.get("losses", [])
        new_losses, self._loss_count = losses[self._loss_count :], len(losses)
        total = sum(float(each.detach()) if isinstance(each, Tensor) else each for each in new_losses)
        loss = total / max(1, len(new_losses))
        if self.first_not_finite is None and not math.isfinite(loss):
            self.first_not_finite = self.window
        self.curves.update.append(self.window)
        self.curves.loss.append(loss)
        self.curves.norm.append(self._norm)
        self.curves.rate.append(self._rate)
        self.window += 1

    def _record_evaluations(self) -> None:
        evaluations = self.program.variables.get("evaluations", [])
        for loss, accuracy in evaluations[self._evaluation_count :]:
            self.curves.evaluations.append((self.window, float(loss), float(accuracy)))
        self._evaluation_count = len(evaluations)


def _tensors(dataset: Any) -> tuple[Tensor, Tensor]:
    """Return the inputs and the labels of a TensorDataset, or of a part of one."""
    if isinstance(dataset, Subset):
        inputs, labels = _tensors(cast("Any", dataset).dataset)
        return inputs[dataset.indices], labels[dataset.indices]
    return dataset.tensors
