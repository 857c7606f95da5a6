"""Traces calls that trace or export a model, and whether the result is saved."""

import sys
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Final, cast

import torch
import torch.export
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from trueloop.failures.checkpoint.exported_in_train_mode import ONNX, ModelExported
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location


class Exports(Hook):
    """Replaces ``torch.jit.trace``, ``torch.export.export`` and the functions that save their results.

    Cost: none for programs that do not export.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (ModelExported,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._unsaved: weakref.WeakKeyDictionary[Any, ModelExported] = weakref.WeakKeyDictionary()
        """Result of an export -> the event that is emitted when the result is saved."""
        self._inspect = stream.isolated("exported models", self._inspect_model)
        self._report = stream.isolated("written exports", stream.emit)
        self._report_saved = stream.isolated("written exports", self._on_saved)

    def install_always(self, patches: Patches) -> None:
        """Replace all functions, since calls of them are rare."""
        self._unsaved.clear()
        patches.replace(torch.jit, "trace", self._replace_export("torch.jit.trace"))
        patches.replace(torch.export, "export", self._replace_export("torch.export.export"))
        patches.replace(torch.export, "save", self._replace_save)
        for kind in (torch.jit.ScriptModule, cast("Any", torch.jit).RecursiveScriptModule):
            for name in ("save", "save_to_buffer"):
                patches.replace(kind, name, self._replace_save)

    def _replace_export(self, how: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        stream = self._stream

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def record(*args: Any, **options: Any) -> Any:
                if not stream.active:
                    return original(*args, **options)
                model = args[0] if args else next((options[key] for key in ("func", "mod") if key in options), None)
                event = self._inspect(model, how)
                result = original(*args, **options)
                if event is not None:
                    self._report(event) if event.how == ONNX else self._remember(result, event)
                return result

            return record

        return make

    def _replace_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(result: Any, *args: Any, **options: Any) -> Any:
            saved = original(result, *args, **options)
            if self._stream.active:
                self._report_saved(result)
            return saved

        return save

    def _inspect_model(self, model: Any, how: str) -> ModelExported | None:
        """Return the event with the modes of a model before it is exported, since the export may change them."""
        if not isinstance(model, nn.Module):
            return None
        active = [module for module in model.modules() if module.training]
        return ModelExported(
            location=user_location(),
            model=self._stream.registry.ref(model),
            how=ONNX if how == "torch.export.export" and _is_onnx_export() else how,
            dropout=any(_dropout_rate(module) > 0 for module in active),
            batchnorm=any(isinstance(module, _BatchNorm) and module.track_running_stats for module in active),
        )

    def _remember(self, result: Any, event: ModelExported) -> None:
        try:
            self._unsaved[result] = event
        except TypeError:  # a result that cannot be weakly referenced cannot be saved either
            return

    def _on_saved(self, result: Any) -> None:
        event = self._unsaved.pop(result, None)
        if event is not None:
            self._stream.emit(event)


def _dropout_rate(module: nn.Module) -> float:
    """Return the rate of a layer with dropout; 0 for other modules."""
    if isinstance(module, _DropoutNd):
        return module.p
    if isinstance(module, nn.MultiheadAttention):
        return float(module.dropout)
    return float(module.dropout) if isinstance(module, nn.RNNBase) and module.num_layers > 1 else 0.0


def _is_onnx_export() -> bool:
    """Return True within ``torch.onnx.export``, which calls ``torch.export``."""
    frame: Any = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("torch.onnx."):
            return True
        frame = frame.f_back
    return False


HOOK: Final = Exports
