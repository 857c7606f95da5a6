"""Forward passes of whole models, and what runs within them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from trueloop.engines.watch.patch import Patches
from trueloop.engines.watch.places import here
from trueloop.engines.watch.program import Program
from trueloop.engines.watch.stream import Stream
from trueloop.ground.events import BatchNormOfOne, ModelCalled, Ref, Refs, StrangerCalled
from trueloop.ground.findings import Place

MOST_OUTPUTS: Final = 16  # tensors of an output that are looked at

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class Forwards:
    """Tells `ModelCalled`, `StrangerCalled` and `BatchNormOfOne`, all of them while watching in full.

    Cost: 10 us for each call of a model and 1 us for each module within it.
    """

    def __init__(self, stream: Stream, program: Program) -> None:
        self._stream, self._program = stream, program
        self._tell = stream.fenced("calls of models", self._called)
        self._look = stream.fenced("modules within models", self._within)
        self._root: nn.Module | None = None
        self._held: dict[int, tuple[weakref.ref[nn.Module], set[int]]] = {}
        self._strangers: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._alone: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._named: weakref.WeakKeyDictionary[Ref, Refs] = weakref.WeakKeyDictionary()
        self._drawn: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        """Model -> batches drawn when it was last called."""

    def always(self, patches: Patches) -> None:
        """Nothing is needed lightly."""

    def in_full(self, patches: Patches) -> None:
        """Replace ``nn.Module.__call__``."""
        self._held.clear()
        patches.replace(nn.Module, "__call__", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program

        def __call__(module: nn.Module, *args: Any, **options: Any) -> Any:  # noqa: N807
            if not stream.on or _is_compiling() or program.elsewhere():
                return original(module, *args, **options)
            if program.in_forward:
                root = self._root
                if root is not None and module is not root:
                    self._look(root, module, args)
                return original(module, *args, **options)
            program.in_forward, self._root = 1, module
            start = perf_counter()
            try:
                output = original(module, *args, **options)
            finally:
                program.in_forward, self._root = 0, None
            self._tell(module, output, perf_counter() - start, here())
            return output

        return __call__

    def _called(self, model: nn.Module, output: Any, seconds: float, place: Place | None) -> None:
        parameters = list(model.parameters())
        if not parameters:
            return
        stream, program = self._stream, self._program
        ref = stream.registry.of(model)
        program.models[model] = threading.get_ident()
        refs = stream.registry.many(parameters)
        if self._named.get(ref) is not refs:
            self._named[ref] = refs
            program.structures += 1
            stream.registry.name_parameters(model, ref)
        modules = list(model.modules())
        training = [module for module in modules if module.training]
        drawn = self._drawn.get(ref, -1)
        self._drawn[ref] = program.batch
        program.autocast = _autocast()
        stream.emit(
            ModelCalled,
            place,
            model=ref,
            training=model.training,
            dropout_active=any(isinstance(m, _DropoutNd) and m.p > 0 for m in training),
            batchnorm_active=any(isinstance(m, _BatchNorm) and m.track_running_stats for m in training),
            all_eval=not training,
            grad_mode=torch.is_grad_enabled(),
            inference_mode=torch.is_inference_mode_enabled(),
            has_graph=any(tensor.grad_fn is not None for tensor in _tensors(output)),
            autocast=program.autocast,
            bypassed=False,
            recomputed=program.in_backward > 0,
            loader=program.loader if program.batch != drawn else None,
            parameters=refs,
            seconds=seconds,
            live=model,
            output=output,
        )

    def _within(self, root: nn.Module, module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, _BatchNorm) and module.training and module not in self._alone:
            self._one_sample(root, module, args)
        known = self._held.get(id(root))
        if known is None or known[0]() is not root:
            known = self._held[id(root)] = (weakref.ref(root), set(map(id, root.modules())))
        if id(module) in known[1]:
            return
        known[1].add(id(module))
        own = list(module.parameters())
        registered = set(map(id, root.parameters()))
        if module in self._strangers or not own or all(id(p) in registered for p in own):
            return
        self._strangers.add(module)
        stream = self._stream
        for parameter in own:
            stream.registry.parameter(parameter)
        stream.emit(
            StrangerCalled,
            here(),
            module=stream.registry.of(module),
            model=stream.registry.of(root),
            parameters=stream.registry.many(own),
            trainable=any(p.requires_grad for p in own),
            live=module,
        )

    def _one_sample(self, root: nn.Module, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not args or not isinstance(args[0], Tensor) or args[0].dim() < 2 or args[0].shape[0] != 1:
            return
        self._alone.add(module)
        shape = args[0].shape
        self._stream.emit(
            BatchNormOfOne,
            here(),
            module=self._stream.registry.of(module),
            model=self._stream.registry.of(root),
            values=args[0].numel() // shape[1],
        )


def _tensors(output: Any) -> list[Tensor]:
    """Return the first tensors of a model's output."""
    found, queue = list[Tensor](), [output]
    while queue and len(found) < MOST_OUTPUTS:
        value = queue.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, dict):
            queue.extend(value.values())
        elif isinstance(value, list | tuple):
            queue.extend(value[:MOST_OUTPUTS])
    return found


def _autocast() -> str | None:
    """Return the type of autocast that is on, for whichever kind of device."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None
