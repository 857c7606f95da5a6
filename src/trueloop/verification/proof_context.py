"""Provide proofs with copies of the user's model, optimizer and batches."""

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidConfig, InvalidData, InvalidModel
from trueloop.verification.batch_tree import (
    batch_size,
    clone_batch,
    describe_batch,
    move_batch,
    select_samples,
    tensors,
)
from trueloop.verification.evidence import NotApplicable
from trueloop.verification.model_call import ModelCall, capture_call, mean_loss
from trueloop.verification.proof_target import ProofTarget
from trueloop.verification.rng_state import seed_all

DEFAULT_LR = 1e-3
"""Learning rate of the default optimizer, Adam; it is also Adam's default."""


@dataclass(slots=True, kw_only=True)
class TrainingCopy:
    """A copy of the target's model, loss and optimizer, for training."""

    target: ProofTarget
    model: nn.Module
    loss: Any
    optimizer: torch.optim.Optimizer

    def mean_loss(self, batch: Any) -> Tensor:
        """Return the mean loss over a batch as a 0-d tensor with its autograd graph."""
        return mean_loss(self.loss, self.model, batch)

    def measure_loss(self, batch: Any) -> float:
        """Return the mean loss over a batch as a number; the target's seed makes dropout repeatable."""
        seed_all(self.target.seed)
        with torch.no_grad():
            return float(self.mean_loss(batch))

    def update(self, batches: list[Any]) -> None:
        """Make one update from micro-batches, with the user's step function if there is one."""
        if self.target.step is not None:
            self.target.step(self.model, self.optimizer, batches)
            return
        self.optimizer.zero_grad()
        for batch in batches:
            (self.mean_loss(batch) / len(batches)).backward()
        self.optimizer.step()

    def train(self, batches: list[Any], updates: range) -> None:
        """Make the updates with these indices, each from one of the batches in turn."""
        for index in updates:
            self.update([batches[index % len(batches)]])

    def use_optimizer(self, optimizer_class: type[torch.optim.Optimizer], lr: float) -> None:
        """Replace the optimizer by a new one with the same parameter groups, which the step function may use."""
        groups = [{"params": group["params"]} for group in self.optimizer.param_groups]
        self.optimizer = optimizer_class(groups, lr=lr)  # pyright: ignore[reportCallIssue] - every class has lr


class ProofContext:
    """Creates copies of a target.

    Args:
        target: the user's target.
        clock: function that returns seconds, for proofs that measure time.

    Raises:
        InvalidModel: the model function does not return a module.
    """

    def __init__(self, target: ProofTarget, *, clock: Callable[[], float] = perf_counter) -> None:
        self.target = target
        self.clock = clock
        self.original = target.model if isinstance(target.model, nn.Module) else self.make_model()
        _check_initialized(self.original)
        first = next(self.original.parameters(), None)
        self.device = first.device if first is not None else torch.device("cpu")
        self._cached_batches: list[Any] = []  # read once: every iteration over a loader starts its workers
        self._exhausted = False

    @property
    def loaders(self) -> list[Any]:
        """The training and validation loaders that the target has."""
        return [loader for loader in (self.target.loader, self.target.val) if loader is not None]

    def make_model(self) -> nn.Module:
        """Create a new model from the seed.

        Raises:
            InvalidModel: the model function does not return a module.
            NotApplicable: the target's model is not a function.
        """
        if isinstance(self.target.model, nn.Module):
            raise NotApplicable("The model is a module, not a function that creates one.")
        seed_all(self.target.seed)
        model: Any = self.target.model()
        if not isinstance(model, nn.Module):
            raise InvalidModel(f"The function for the model returned {type(model).__name__}, not an nn.Module.")
        return model

    def training_copy(self) -> TrainingCopy:
        """Return a copy in train mode; submodules that the user set to eval mode stay in eval mode."""
        optimizer = self.target.optimizer
        loss = self.target.loss if isinstance(self.target.loss, nn.Module) else None
        model, loss, copied_optimizer = self._copy_objects(
            loss, optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        )
        if not model.training:
            model.train()
        return TrainingCopy(
            target=self.target,
            model=model,
            loss=self.target.loss if loss is None else loss,
            optimizer=copied_optimizer or _make_optimizer(optimizer, model),
        )

    def _copy_objects(self, loss: Any, optimizer: Any) -> tuple[nn.Module, Any, Any]:
        if optimizer is not None:
            _check_optimizer_matches(self.original, optimizer)
        try:
            # One call copies all three, so that the copied optimizer refers to the copied parameters.
            copied = copy.deepcopy((self.original, loss, optimizer))
        except (RuntimeError, TypeError) as error:
            if isinstance(self.target.model, nn.Module):
                raise InvalidModel(
                    f"The model cannot be copied: {error}",
                    why="A proof works on copies so that your model stays unchanged.",
                    fix="Pass a function that creates the model instead.",
                ) from error
            if optimizer is not None:
                raise
            copied = self.make_model(), copy.deepcopy(loss), None
        for original, copied_parameter in zip(self.original.parameters(), copied[0].parameters(), strict=True):
            if original.grad is not None and not original.requires_grad:
                # the optimizer applies weight decay to a frozen parameter if its gradient is not None
                copied_parameter.grad = original.grad.detach().clone()
        return copied

    @property
    def batch(self) -> Any:
        """The target's batch, or the first batch of its loader, copied to the model's device.

        Raises:
            NotApplicable: the target has neither a batch nor a loader.
        """
        return self.batches(1)[0]

    def batches(self, limit: int) -> list[Any]:
        """Return up to ``limit`` first batches of the loader, or the target's only batch.

        Raises:
            NotApplicable: the target has neither a batch nor a loader.
            InvalidData: the loader is empty.
        """
        if self.target.batch is not None and (limit == 1 or self.target.loader is None):
            return [move_batch(clone_batch(self.target.batch), self.device)]
        if self.target.loader is None:
            raise NotApplicable("There is neither a batch nor a loader.")
        if len(self._cached_batches) < limit and not self._exhausted:
            self._cached_batches = list(self.read_batches(self.target.loader, limit))
            self._exhausted = len(self._cached_batches) < limit
        if not self._cached_batches:
            raise InvalidData("The loader yields no batch.", fix="Check its dataset, its sampler and drop_last.")
        return [clone_batch(batch) for batch in self._cached_batches[:limit]]

    def iter_batches(self, limit: int) -> Iterator[Any]:
        """Yield the target's batch or, without one, up to ``limit`` first batches of the loader.

        Raises:
            NotApplicable: the target has neither a batch nor a loader.
        """
        if self.target.batch is not None or self.target.loader is None:
            yield from self.batches(1)
        else:
            yield from self.read_batches(self.target.loader, limit)

    def read_batches(self, loader: Any, limit: int) -> Iterator[Any]:
        """Yield the first batches of a loader, each copied to the model's device."""
        seed_all(self.target.seed)
        for batch in islice(iter(loader), limit):
            yield move_batch(clone_batch(batch), self.device)

    def first_samples(self, limit: int, *, minimum: int = 1) -> Any:
        """Return a batch with up to ``limit`` first samples of the target's batch.

        Raises:
            NotApplicable: the batch has fewer than ``minimum`` samples.
        """
        batch = self.batch
        samples = batch_size(batch)
        if samples < minimum:
            raise NotApplicable(f"The batch has {samples} samples, but this proof needs {minimum}.")
        return select_samples(batch, slice(0, limit)) if samples > limit else batch

    def aligned_samples(self, model: nn.Module, limit: int, *, minimum: int = 1) -> tuple[Any, ModelCall]:
        """Return the first samples of the batch and the model's call for them, with one row per sample.

        Raises:
            NotApplicable: the rows of the arguments are not samples, as with sequence-first inputs.
        """
        batch = self.first_samples(limit, minimum=minimum)
        call = self.call(model, batch)
        samples = batch_size(batch)
        if samples > minimum and any(leaf.dim() > 1 and leaf.shape[1] == samples for leaf in tensors(call.tree)):
            samples -= 1  # so that the number of rows is not also the number of columns
            batch = select_samples(batch, slice(0, samples))
            call = self.call(model, batch)
        if batch_size(call.tree) != samples:
            raise NotApplicable(
                f"For {samples} samples the model is called with {describe_batch(call.tree)}: its rows are not samples."
            )
        return batch, call

    def call(self, model: nn.Module, batch: Any) -> ModelCall:
        """Return the model's arguments for a batch."""
        return capture_call(self.target, model, batch)


def _check_initialized(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InvalidModel(
                f"{name} is uninitialized: it belongs to a lazy module.",
                why="A copy would not be the model that you train.",
                fix="Call the model once on a batch first.",
            )


def _check_optimizer_matches(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model_ids = {id(parameter) for parameter in model.parameters()}
    if not any(id(p) in model_ids for group in optimizer.param_groups for p in group["params"]):
        raise InvalidConfig(
            "The optimizer holds no parameter of the model.",
            why="The optimizer was created for another instance of the model.",
            fix="Pass a class such as torch.optim.AdamW, a functools.partial of one, or a function of the model.",
        )


def _make_optimizer(optimizer: Any, model: nn.Module) -> torch.optim.Optimizer:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if optimizer is None:
        if not trainable:
            # Nothing can be trained, but proofs of the model still work.
            return torch.optim.SGD([torch.zeros(1, requires_grad=True)])
        return torch.optim.Adam(trainable, lr=DEFAULT_LR)
    factory = optimizer.func if isinstance(optimizer, functools.partial) else optimizer
    result: Any = optimizer(trainable) if isinstance(factory, type) else optimizer(model)
    if not isinstance(result, torch.optim.Optimizer):
        raise InvalidConfig(
            f"The optimizer function returned {type(cast('object', result)).__name__}, not an optimizer.",
            fix="Pass a class such as torch.optim.AdamW, a functools.partial of one, or a function of the model.",
        )
    return result
