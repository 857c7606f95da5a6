"""Inspects the inputs of BatchNorm and recurrent layers at each call within a model."""

import weakref
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from trueloop.tracing.events import BatchNormSingleSample, RecurrentLayerCalled
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

INSPECTED_LAYERS: Final = (_BatchNorm, nn.RNNBase)
MAX_SHAPES: Final = 64  # input shapes of one recurrent layer; no loader has batches of so many sizes


class LayerCalls:
    """Emits `BatchNormSingleSample` and `RecurrentLayerCalled` during full tracing.

    Cost: 1 us for each call of a BatchNorm or recurrent layer.
    """

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._reported: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._batch_sizes: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        """BatchNorm layer -> size of its latest batch of more than one sample."""
        self._shapes = WeakIdDict[nn.Module, set[tuple[int, ...]]]()
        """Recurrent layer -> shapes of its inputs, without the last dimension."""

    def reset(self) -> None:
        """Forget earlier watches."""
        self._reported.clear()
        self._batch_sizes.clear()
        self._shapes.clear()

    def inspect(self, root: nn.Module, module: nn.Module, args: tuple[Any, ...], model_args: tuple[Any, ...]) -> None:
        """Inspect one call.

        Args:
            root: the running model.
            module: a layer of the model, about to run.
            args: the arguments of the layer.
            model_args: the arguments of the model.
        """
        if not args or not isinstance(args[0], Tensor) or args[0].dim() < 2:
            return
        if isinstance(module, nn.RNNBase):
            if not (module.batch_first and args[0].dim() == 3):
                self._check_recurrent(module, args[0].shape, model_args)
        elif module.training:
            self._check_batchnorm(root, module, args[0])

    def _check_batchnorm(self, root: nn.Module, module: nn.Module, batch: Tensor) -> None:
        shape = batch.shape
        if shape[0] != 1:
            self._batch_sizes[module] = shape[0]
        elif module in self._batch_sizes and module not in self._reported:
            self._reported.add(module)
            self._stream.emit(
                BatchNormSingleSample(
                    location=user_location(),
                    module=self._stream.registry.ref(module),
                    model=self._stream.registry.ref(root),
                    values_per_channel=batch.numel() // max(1, shape[1]),
                    previous_batch_size=self._batch_sizes[module],
                )
            )

    def _check_recurrent(self, module: nn.Module, shape: tuple[int, ...], model_args: tuple[Any, ...]) -> None:
        program = self._program
        sizes, program.record_batch_sizes = program.batch_sizes, True
        if sizes is None or program.loader is None:
            return
        known = self._shapes.get(module) or self._shapes.put(module, set())
        first = tuple(shape[: len(shape) - 1])
        if first in known or len(known) >= MAX_SHAPES:
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
                    each.shape[: len(first)] == first and (each.shape[0], each.numel()) in sizes
                    for each in model_args
                    if isinstance(each, Tensor)
                ),
            )
        )


def tensor_sizes(batch: Any, depth: int = 2) -> frozenset[tuple[int, int]]:
    """Return (size of the first dimension, number of elements) of each tensor in a batch."""
    if isinstance(batch, Tensor):
        return frozenset({(batch.shape[0], batch.numel())}) if batch.dim() else frozenset()
    if not depth or not isinstance(batch, dict | list | tuple):
        return frozenset()
    inner = batch.values() if isinstance(batch, dict) else batch
    return frozenset[tuple[int, int]]().union(*(tensor_sizes(each, depth - 1) for each in list(inner)[:16]))
