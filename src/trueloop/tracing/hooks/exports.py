"""Traces calls that trace or export a model, and whether the result is saved."""

import sys
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
import torch.export
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Event, ModelExported, Ref
from trueloop.tracing.patch import Patches
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

_ONNX: Final = "torch.onnx."


class _Recorded(NamedTuple):
    """The state of a model when it was traced or exported."""

    model: Ref
    how: str
    location: CodePosition | None
    dropout: bool
    batchnorm: bool


class Exports:
    """Replaces ``torch.jit.trace``, ``torch.export.export`` and the functions that save their results.

    Cost: none for programs that do not export.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (ModelExported,)

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._recorded: weakref.WeakKeyDictionary[Any, _Recorded] = weakref.WeakKeyDictionary()
        self._inspect = stream.isolated("exported models", self._inspect_model)
        self._report_saved = stream.isolated("written exports", self._on_saved)

    def install_always(self, patches: Patches) -> None:
        """Replace all functions, since calls of them are rare."""
        self._recorded.clear()
        patches.replace(torch.jit, "trace", self._recording("torch.jit.trace"))
        patches.replace(torch.export, "export", self._recording("torch.export.export"))
        patches.replace(torch.export, "save", self._saving)
        for kind in (torch.jit.ScriptModule, cast("Any", torch.jit).RecursiveScriptModule):
            for name in ("save", "save_to_buffer"):
                patches.replace(kind, name, self._saving)

    def install_full_tracing(self, patches: Patches) -> None:
        """Do nothing: `install_always` has installed everything."""

    def _recording(self, how: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        stream = self._stream

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def record(*args: Any, **options: Any) -> Any:
                if not stream.active:
                    return original(*args, **options)
                model = args[0] if args else next((options[key] for key in ("func", "mod") if key in options), None)
                before = self._inspect(model, how)
                result = original(*args, **options)
                if before is not None:
                    self._report_saved(None, before) if before.how.startswith(_ONNX) else self._remember(result, before)
                return result

            return record

        return make

    def _saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(result: Any, *args: Any, **options: Any) -> Any:
            saved = original(result, *args, **options)
            if self._stream.active:
                self._report_saved(result, None)
            return saved

        return save

    def _inspect_model(self, model: Any, how: str) -> _Recorded | None:
        """Record the modes of a model before it is exported, since the export may change them."""
        if not isinstance(model, nn.Module):
            return None
        dropout = batchnorm = False
        for module in model.modules():
            if module.training:
                rate = module.p if isinstance(module, _DropoutNd) else _dropout_rate(module)
                dropout |= rate > 0
                batchnorm |= isinstance(module, _BatchNorm) and bool(module.track_running_stats)
        exporter = "torch.onnx.export" if how == "torch.export.export" and _is_onnx_export() else how
        return _Recorded(self._stream.registry.ref(model), exporter, user_location(), dropout, batchnorm)

    def _remember(self, result: Any, recorded: _Recorded) -> None:
        try:
            self._recorded[result] = recorded
        except TypeError:  # a result that cannot be weakly referenced cannot be saved either
            return

    def _on_saved(self, result: Any, recorded: _Recorded | None) -> None:
        recorded = recorded or self._recorded.pop(result, None)
        if recorded is not None:
            model, how, location, dropout, batchnorm = recorded
            self._stream.emit(
                ModelExported(location=location, model=model, how=how, dropout=dropout, batchnorm=batchnorm)
            )


def _dropout_rate(module: nn.Module) -> float:
    """Return the dropout rate of a recurrent or attention layer."""
    if isinstance(module, nn.MultiheadAttention):
        return float(module.dropout)
    return float(module.dropout) if isinstance(module, nn.RNNBase) and module.num_layers > 1 else 0.0


def _is_onnx_export() -> bool:
    """Return True within ``torch.onnx.export``, which calls ``torch.export``."""
    frame: Any = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_ONNX):
            return True
        frame = frame.f_back
    return False
