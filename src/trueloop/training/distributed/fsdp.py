"""Sharded data parallelism with torch's FSDP2 (`fully_shard`), on sums instead of means.

Parameters, gradients and moments are DTensors, sharded along their first dimension. Only norms and checkpoints
communicate, because they need all parts; everything else works on the local part.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, cast
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.training.distributed.dtensors import local_part
from trueloop.training.distributed.processes import Numbers, Processes
from trueloop.training.distributed.replica_sync import BufferSync, broadcast_state
from trueloop.training.memory.recompute import repeated_blocks
from trueloop.training.objective import Loss, Objective
from trueloop.training.optimizers.foreach import total_norm_as_float
from trueloop.training.update import CpuUpdate, collect_gradients


class FsdpParallel:
    """Runs each window on all processes, each with its part of the model; implements `parallel.Parallel`.

    The repeated blocks of the model (`recompute.repeated_blocks`), such as a transformer's layers, are sharded one by
    one, all other parameters together.

    Args:
        model: model on its device; its parameters become DTensors, sharded from the first process's values.
        forward: the model, or its compiled version with the same parameters.
        objective: objective to minimise.
        processes: processes of the run, more than one.

    Raises:
        InvalidConfig: this version of torch can shard only on GPUs.
        InvalidModel: the processes have built different models, or FSDP cannot shard the model.
    """

    sharded = collective_forward = True

    def __init__(self, model: nn.Module, forward: nn.Module, objective: Objective, processes: Processes) -> None:
        if processes.device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
            raise InvalidConfig(
                f"torch {torch.__version__} can shard models only on GPUs.",
                fix='Use torch 2.7 or later, or set parallel.engine = "ddp".',
            )
        self.processes = processes
        broadcast_state(model, processes)
        self.mesh = init_device_mesh(processes.device.type, (processes.size,))
        try:
            for block in repeated_blocks(model).values():
                fully_shard(block, mesh=self.mesh)
            self._root = fully_shard(model, mesh=self.mesh)
        except (ValueError, NotImplementedError) as error:
            raise InvalidModel(
                f"{type(model).__name__} cannot be sharded: {error}",
                why='parallel.engine = "fsdp" shards every parameter along its first dimension, in its memory layout.',
                fix='Change that parameter, or set parallel.engine = "ddp".',
            ) from error
        self._forward, self._objective = forward, objective
        self._buffers = BufferSync(model, processes)
        self._no_context = nullcontext()
        self._syncs_gradients = True  # the default of FSDP
        self._parameters: Sequence[Tensor] = ()
        self._gradients: tuple[list[Tensor], float] = [], math.nan

    def set_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Set the parameters whose gradients `take_gradients` returns."""
        self._parameters = parameters

    def take_gradients(self) -> tuple[list[Tensor], float]:
        """Return the local parts of the window's gradients, and the square of their joint norm over all processes."""
        gradients, self._gradients = self._gradients, ([], math.nan)
        return gradients

    def __call__(self, batch: Any) -> Sequence[Loss]:
        """Run the forward pass and the loss on this process's share."""
        return self._objective(self._forward, batch)

    def sync_on_last_micro_batch(self, closes_window: bool) -> AbstractContextManager[Any]:
        """Accumulate full gradients on this process; reduce-scatter them only in the window's last micro-batch."""
        if closes_window != self._syncs_gradients:
            self._root.set_requires_gradient_sync(closes_window)
            self._syncs_gradients = closes_window
        return self._no_context

    def start_all_reduce(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        """Sum the numbers and the squared gradient norm, and broadcast the first process's buffers, in one message.

        The returned function raises InvalidModel if the processes have used different parameters.
        """

        def wait() -> Numbers:
            with torch.no_grad():  # otherwise taking the local part would be recorded in a graph
                parts = [local_part(gradient) for gradient in collect_gradients(self._parameters)]
            norm = total_norm_as_float(parts)
            used = [parameter.grad is not None for parameter in self._parameters]
            checksum = float(crc32(bytes(used)))  # below 2**32, so that sums in float64 are exact
            message = [*numbers, norm * norm, checksum]
            buffers = self._buffers.tracked_buffers()
            *sums, square, checksums = self.processes.all_reduce_sum_and_broadcast(message, buffers)
            if float(checksums) != checksum * self.processes.size:
                self._raise_unequal_use(used)
            self._gradients = parts, float(square)
            return sums

        return wait

    def backward(self, root: Tensor) -> None:
        """Run backward."""
        root.backward()

    def wait_gradient_sync(self) -> None:
        """Do nothing: when backward returns, the gradients have been reduced and scattered."""

    def sync_buffers(self) -> None:
        """Broadcast the first process's buffers, before the model is evaluated or saved."""
        self._buffers.track_and_sync()

    def close(self) -> None:
        """Do nothing: the model itself is sharded."""

    def gradient_divisor(self, divisor: Tensor | float) -> Tensor | float:
        """Return the divisor divided by the number of processes: FSDP has already averaged over them."""
        return divisor / self.processes.size

    def _raise_unequal_use(self, used: Sequence[bool]) -> NoReturn:
        """Raise an error that names a parameter which only some processes have used in this window."""
        used_by_rank = self.processes.all_gather_object(used)
        index = next(index for index, used_on in enumerate(zip(*used_by_rank, strict=True)) if len(set(used_on)) > 1)
        used_on = [flags[index] for flags in used_by_rank]
        names = {id(parameter): name for name, parameter in cast("nn.Module", self._root).named_parameters()}
        raise InvalidModel(
            f"In this window {names[id(self._parameters[index])]} got a gradient on process {used_on.index(True)}, but "
            f"none on process {used_on.index(False)}.",
            why="FSDP sums gradients in the order in which they arrive, so it has added those of different parameters.",
            fix='Use every parameter on every process, or set parallel.engine = "ddp" and '
            'parallel.find_unused_parameters = "always".',
        )


class ShardedUpdate(CpuUpdate):
    """The end of a window over sharded parameters.

    Args:
        optimizer: optimizer of DTensors.
        parameters: all parameters of the optimizer.
        clip: upper bound of the gradient norm over all parameters and processes, or None.
        sharded: the `FsdpParallel` of the run, which computes this norm.
        skip_nonfinite: whether to skip updates with non-finite gradients.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[Tensor],
        clip: float | None,
        sharded: FsdpParallel,
        *,
        skip_nonfinite: bool = True,
    ) -> None:
        super().__init__(optimizer, parameters, clip, fused_scaling=False, skip_nonfinite=skip_nonfinite)
        self._sharded = sharded
        sharded.set_parameters(parameters)

    def _read_gradients(self) -> tuple[list[Tensor], float]:
        """Return the local parts of the gradients, not divided yet, and their joint norm over all processes."""
        parts, square = self._sharded.take_gradients()
        return parts, math.sqrt(square)
