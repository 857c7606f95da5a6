"""Layers within a running model that are looked at each time: what they are given must be right, not what they are."""

from __future__ import annotations

import weakref
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from trueloop.tracing.events import BatchNormSingleSample, RecurrentLayerCalled
from trueloop.tracing.object_facts import WeakIdDict
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

INSPECTED_LAYERS: Final = (_BatchNorm, nn.RNNBase)
MOST_SHAPES: Final = 64  # of one recurrent layer's inputs: no loader has batches of so many sizes


class LayerCalls:
    """Tells `BatchNormOfOne` and `SequenceRun`; asked at each call of such a layer while watching in full.

    Cost: 1 us for each.
    """

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._alone: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._batch: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        """Batch normalisation -> samples in its latest batch of more than one."""
        self._shapes = WeakIdDict[nn.Module, set[tuple[int, ...]]]()
        """Recurrent layer -> the first dimensions of what it was given."""

    def begin(self) -> None:
        """Forget what was told: somebody else listens now."""
        self._alone.clear()
        self._batch.clear()
        self._shapes.clear()

    def look(self, root: nn.Module, module: nn.Module, args: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        """Look at one call.

        Args:
            root: the model that runs, and was ``given`` these arguments.
            module: within it, is about to run on ``args``.
        """
        if not args or not isinstance(args[0], Tensor) or args[0].dim() < 2:
            return
        if isinstance(module, nn.RNNBase):
            if not (module.batch_first and args[0].dim() == 3):
                self._run(module, args[0].shape, given)
        elif module.training:
            self._normalise(root, module, args[0])

    def _normalise(self, root: nn.Module, module: nn.Module, batch: Tensor) -> None:
        shape = batch.shape
        if shape[0] != 1:
            self._batch[module] = shape[0]
        elif module in self._batch and module not in self._alone:
            self._alone.add(module)
            self._stream.emit(
                BatchNormSingleSample(
                    location=user_location(),
                    module=self._stream.registry.ref(module),
                    model=self._stream.registry.ref(root),
                    values=batch.numel() // max(1, shape[1]),
                    previous_batch_size=self._batch[module],
                )
            )

    def _run(self, module: nn.Module, shape: tuple[int, ...], given: tuple[Any, ...]) -> None:
        program = self._program
        drawn, program.record_batch_sizes = program.batch_sizes, True
        if drawn is None or program.loader is None:
            return
        known = self._shapes.get(module) or self._shapes.put(module, set())
        first = tuple(shape[: len(shape) - 1])
        if first in known or len(known) >= MOST_SHAPES:
            return
        known.add(first)
        self._stream.emit(
            RecurrentLayerCalled(
                location=user_location(),
                module=self._stream.registry.ref(module),
                time_steps=first[0],
                sequences=first[1] if len(first) > 1 else None,
                loader=program.loader,
                input_from_loader=any(
                    each.shape[: len(first)] == first and (each.shape[0], each.numel()) in drawn
                    for each in given
                    if isinstance(each, Tensor)
                ),
            )
        )


def tensor_sizes(batch: Any, depth: int = 2) -> frozenset[tuple[int, int]]:
    """Return (first dimension, number of values) of each tensor in a batch."""
    if isinstance(batch, Tensor):
        return frozenset({(batch.shape[0], batch.numel())}) if batch.dim() else frozenset()
    if not depth or not isinstance(batch, dict | list | tuple):
        return frozenset()
    inner = batch.values() if isinstance(batch, dict) else batch
    return frozenset[tuple[int, int]]().union(*(tensor_sizes(each, depth - 1) for each in list(inner)[:16]))
